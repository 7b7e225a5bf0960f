"""Whether a test has passed: locust's statistics against the scenario's thresholds, in words.

Owns the mapping of failures to thresholds. Locust rounds response times, and therefore quantiles, to two digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from locust.stats import RequestStats

from .scenario import Scenario, ScenarioError, Thresholds
from .streams import DUPLICATE, LOST, NOT_ACKNOWLEDGED, OUT_OF_ORDER, SESSION_LOST, TWICE
from .swarm import TYPE
from .values import LATENCY, latencies, limit

# The first words of failures, by threshold.
WORDS: Mapping[str, tuple[str, ...]] = {
    "lost": (LOST, SESSION_LOST),
    "duplicates": (DUPLICATE,),
    "out_of_order": (OUT_OF_ORDER,),
    "not_acknowledged": (NOT_ACKNOWLEDGED,),
    "no_reply": ("no reply",),
    "disconnected": ("disconnected",),
    "refused": ("refused",),
}


def with_changes(thresholds: Thresholds, text: str) -> Thresholds:
    """Thresholds changed by `lost=5, deliver qos1 p99=500ms`. Raises ScenarioError."""
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (part.strip() for part in each.partition("="))
        try:
            if LATENCY.fullmatch(name):
                thresholds = replace(thresholds, latency={**thresholds.latency, **latencies({name: value})})
            elif name in {field.name for field in fields(Thresholds)} - {"latency"}:
                change: Any = {name: limit(int(value) if value.isdecimal() else value)}
                thresholds = replace(thresholds, **change)
            else:
                names = ", ".join(field.name for field in fields(Thresholds))
                raise ValueError(f'one of {names}, or such as "deliver qos1 p99"')
        except ValueError as error:
            raise ScenarioError(f"{each!r}: expected {error}") from None
    return thresholds


def counts(stats: RequestStats) -> dict[str, int]:
    """Number of failures by threshold."""
    found = dict.fromkeys([*WORDS, "lost_qos0", "failures"], 0)
    for error in stats.errors.values():
        found["failures"] += error.occurrences
        for name, words in WORDS.items():
            if str(error.error).startswith(words):
                found["lost_qos0" if (name, error.name) == ("lost", "deliver qos0") else name] += error.occurrences
    return found


def breaches(stats: RequestStats, thresholds: Thresholds) -> Iterable[str]:
    """The exceeded thresholds, in words."""
    for name, number in counts(stats).items():
        limit = getattr(thresholds, name)
        if limit is not None and number > limit:
            yield f"{name.replace('_', ' ')}: {number} (at most {limit})"
    twice = stats.entries.get((TWICE, TYPE))  # `get` would make it a row of the tables
    if thresholds.twice is not None and twice is not None and twice.num_requests > thresholds.twice:
        yield f"{TWICE}: {twice.num_requests} (at most {thresholds.twice})"
    for name, milliseconds in thresholds.latency.items():
        match = LATENCY.fullmatch(name)
        assert match is not None, "the same expression has read it"
        entry = stats.get(match[1], TYPE)
        if not entry.num_requests:
            yield f"{name}: no such event"
        elif entry.get_response_time_percentile(float(match[2]) / 100) > milliseconds:
            measured = entry.get_response_time_percentile(float(match[2]) / 100)
            yield f"{name}: {measured:g} ms (at most {milliseconds:g} ms)"


def omissions(stats: RequestStats, scenario: Scenario) -> Iterable[str]:
    """The missing kinds of events, in words."""
    requests = {name: entry.num_requests - entry.num_failures for (name, _), entry in stats.entries.items()}
    if not requests.get("connect"):
        yield "no client ever connected"
    delivered = any(number for name, number in requests.items() if name.startswith("deliver"))
    if (scenario.dashboard or scenario.offline) and scenario.sensor and not delivered:
        yield "nothing was delivered"
    if scenario.worker and scenario.sensor and not any(name.startswith("work ") for name in requests):
        yield "no work was done"


def judge(environment: Any, scenario: Scenario, thresholds: Thresholds, silent: list[str]) -> list[str]:
    """The reasons why the test has failed; empty if it has passed."""
    stats = environment.stats
    reasons = [*breaches(stats, thresholds), *omissions(stats, scenario)]
    reasons += [f"worker {worker} sent no final count" for worker in silent]
    exceptions = environment.runner.exceptions.values()
    reasons += [f"an error of the load test itself: {each['msg']}" for each in exceptions]
    return reasons


def summary(stats: RequestStats) -> str:
    """The numbers of successful events, in a line."""
    entries = sorted((name, entry.num_requests - entry.num_failures) for (name, _), entry in stats.entries.items())
    return ", ".join(f"{number} {name}" for name, number in entries if number)
