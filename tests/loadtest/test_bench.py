"""The bench's table from made-up figures, and the baseline it measures against."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import pytest

from flockmq.loadtest.compare import benchmark, brokers, micro
from flockmq.loadtest.compare.benchmark import SCENARIOS, Results, is_reached, ratio_of, render
from flockmq.loadtest.compare.brokers import BrokerError, PortInUse, start, start_on_free_port
from flockmq.loadtest.compare.scenarios import Goal, Row, Scenario
from flockmq.loadtest.generator.runs import find_faults, publish_load
from flockmq.loadtest.generator.target import Target, Workload

ROW = Row("cpu", "CPU µs", per_second=True, goals=(Goal(0.5, "Mosquitto", "≤ half"), Goal(1.5, "baseline")))
SCENARIO = Scenario("made-up", "made-up load", (ROW,), brokers=("FlockMQ", "Mosquitto", "baseline"))


def _report(results: Results) -> dict[str, Any]:
    return {"machine": {}, "rounds": 3, "seconds": 1.0, "results": {"made-up": results}, "micro": []}


def _rounds(*values: float) -> list[dict[str, Any]]:
    return [{"cpu": value} for value in values]


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    results = {"FlockMQ": _rounds(1, 2, 9), "Mosquitto": _rounds(2, 8, 10)}
    assert ratio_of(results, "Mosquitto", ROW) == 0.5  # of 0.5, 0.25, 0.9


def test_goals_that_are_reached_missed_and_unknown() -> None:
    results: Results = {"FlockMQ": _rounds(2.0), "Mosquitto": _rounds(8.0), "baseline": _rounds(1.0)}
    assert [is_reached(results, ROW, goal) for goal in ROW.goals] == [True, False]
    assert is_reached(results, ROW, Goal(2.0)) is True
    assert is_reached(results, ROW, Goal(1.9)) is False
    assert is_reached({"FlockMQ": [{"failure": "gone"}]}, ROW, Goal(1.0)) is None


def test_table_names_the_goal_that_was_missed() -> None:
    results: Results = {"FlockMQ": _rounds(2.0), "Mosquitto": _rounds(8.0), "baseline": _rounds(1.0)}
    text = render(_report(results), [SCENARIO])
    cells = "| made-up load | CPU µs | 2 | 8 | - | 1 | 0.25 | - | 2 | ≤ half, ≤ 1.5 x baseline |"
    assert f"{cells} no: ≤ 1.5 x baseline | 500,000 |" in text.splitlines()


def test_a_broker_that_does_not_start_is_noted_and_nothing_is_claimed() -> None:
    results: Results = {"FlockMQ": [{"failure": "ended", "missing": True}], "Mosquitto": _rounds(8.0)}
    text = render(_report(results), [SCENARIO])
    assert "- FlockMQ: ended (made-up)" in text
    assert "| made-up load | CPU µs | - | 8 | - | - | - | - | - | ≤ half, ≤ 1.5 x baseline | ? | - |" in text


def test_losses_are_noted() -> None:
    results: Results = {"FlockMQ": [{"cpu": 1.0, "lost": 3}]}
    assert "- FlockMQ: lost: 3 (made-up)" in render(_report(results), [SCENARIO])


def test_scenarios_have_names_of_their_own() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


@pytest.mark.parametrize("shape", ["pairs", "fanin", "fanout"])
def test_baseline_relays_everything(shape: str) -> None:
    with start("baseline", "memory", os.sched_getaffinity(0)) as baseline:
        figures = publish_load(
            Target(port=baseline.port, pids=[baseline.pid]),
            Workload(shape=shape, publishers=4, subscribers=4, count=4000, batch=8),
        )
    assert find_faults(figures) == []
    assert figures["received"] == 4000 * (1 if shape == "pairs" else 4)


def test_a_broker_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(brokers.COMMANDS, "broken", lambda *_: ["sh", "-c", "echo no such option; exit 3"])
    with (
        pytest.raises(BrokerError, match="status 3: no such option"),
        start("broken", "memory", os.sched_getaffinity(0)),
    ):
        pass


def test_micro_benchmarks_measure_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(seconds: float) -> float:
        raise ImportError("not built")

    rows = (
        micro.Micro("loop", "ns", lambda seconds: micro.time_ns(lambda: None, seconds), 1e6),
        micro.Micro("x", "ns", missing),
    )
    monkeypatch.setattr(micro, "MICROS", rows)
    loop, absent = micro.run(quick=True)
    assert 0 < loop["value"] < 1e6
    assert absent["skipped"] == "not built"


def test_a_port_that_was_taken_meanwhile_is_not_the_end() -> None:
    ports: list[int] = []
    undone: list[int] = []

    def attempt(port: int, stack: ExitStack) -> int:
        ports.append(port)
        stack.callback(undone.append, port)
        if len(ports) < 3:
            raise PortInUse("in use")
        return port

    with ExitStack() as stack:
        assert start_on_free_port(attempt, stack) == ports[2]
        assert undone == ports[:2]
    assert undone == ports


def test_a_broker_that_says_its_port_is_in_use_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = iter([["sh", "-c", "echo Address already in use; exit 1"]])
    baseline = brokers.COMMANDS["baseline"]
    monkeypatch.setitem(brokers.COMMANDS, "unlucky", lambda *given: next(commands, None) or baseline(*given))
    with start("unlucky", "memory", os.sched_getaffinity(0)) as running:
        assert running.port


@pytest.mark.parametrize(("cores", "apart"), [("one", False), ("each", True)])
def test_both_arrangements_of_cores(cores: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Scenario] = []

    def measure(scenario: Scenario, rounds: int, seconds: float) -> Results:
        ran.append(scenario)
        return {}

    monkeypatch.setattr(benchmark, "measure", measure)
    benchmark.main(["--only", "single", "--cores", cores])
    assert ran and all(scenario.apart == apart for scenario in ran)
    assert not apart or not any(scenario.saturated for scenario in ran)
