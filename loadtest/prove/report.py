"""The report of a proof: the promises, the findings, and the short history of each; as text, JSON and HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .checker import RULES, shown
from .history import (
    Connected,
    Connecting,
    Delivered,
    Ended,
    Event,
    Fault,
    History,
    Leaving,
    Subscribed,
    Taken,
)
from .run import Proof

STORIES = 3  # findings of a rule that have their history in the report
STORY_EVENTS = 40
OF_CONNECTIONS = (Connected, Connecting, Ended, Leaving, Subscribed)
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2433 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .4rem .6rem; vertical-align: top }
tr + tr { border-top: 1px solid #d8dde6 } .kept { color: #1a7f37 } .broken { color: #c4320a; font-weight: 600 }
pre { background: #f5f7fa; padding: .8rem; overflow-x: auto; font-size: 13px }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #dde3ec } pre { background: #1d232d } tr + tr { border-color: #2c3442 }
  .kept { color: #4ac26b } .broken { color: #ff8a65 }
}
"""


def by_rule(proof: Proof) -> dict[str, list[str]]:
    """The findings of each rule, without its name."""
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    for finding in proof.findings:
        rule, _, text = finding.partition(" ")
        found[rule].append(text)
    return found


def as_text(proof: Proof) -> str:
    """A line for each promise, and the first findings."""
    lines = [summary(proof), ""]
    for rule, texts in by_rule(proof).items():
        lines.append(f"{'broken' if texts else 'kept  '}  {RULES[rule]}")
        lines += [f"          {text}" for text in texts[:STORIES]]
        if len(texts) > STORIES:
            lines.append(f"          and {len(texts) - STORIES} more")
    return "\n".join(lines)


def summary(proof: Proof) -> str:
    """The size of the proof, and its result."""
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(proof.faults.items())) or "none"
    result = f"{len(proof.findings)} findings" if proof.findings else "no finding"
    return (
        f"{result} in {proof.messages} messages and {len(proof.history.events)} events; faults: {faults}; "
        f"seed {proof.plan.seed}, {proof.seconds:.0f} s"
    )


def as_json(proof: Proof, commands: list[str]) -> str:
    """All of it, as one JSON object."""
    return json.dumps(
        {
            "commands": commands,
            "seed": proof.plan.seed,
            "seconds": round(proof.seconds, 1),
            "messages": proof.messages,
            "events": len(proof.history.events),
            "faults": dict(proof.faults),
            "promises": [
                {
                    "rule": rule,
                    "promise": RULES[rule],
                    "findings": len(texts),
                    "examples": [
                        {"finding": text, "history": list(story(proof.history, text))} for text in texts[:STORIES]
                    ],
                }
                for rule, texts in by_rule(proof).items()
            ],
        },
        indent=2,
    )


def as_html(proof: Proof, commands: list[str]) -> str:
    """A whole page."""
    rows, stories = [], []
    for rule, texts in by_rule(proof).items():
        result = f'<td class="broken">{len(texts)} findings' if texts else '<td class="kept">kept'
        rows.append(f"<tr><td>{rule}<td>{html.escape(RULES[rule])}{result}")
        for text in texts[:STORIES]:
            lines = html.escape("\n".join(story(proof.history, text)))
            stories.append(f"<h3>{rule}: {html.escape(text)}</h3><pre>{lines}</pre>")
    started = html.escape("\n".join(commands))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>flockmq prove</title><style>{STYLE}</style>'
        f"<h1>Proof of a broker</h1><p>{html.escape(summary(proof))}</p><pre>{started}</pre>"
        f"<table><tr><th>Rule<th>Promise<th>Result{''.join(rows)}</table>"
        + (f"<h2>Findings</h2>{''.join(stories)}" if stories else "")
        + "</html>\n"
    )


# ---- the history of a finding ----


def story(history: History, finding: str) -> Iterator[str]:
    """The events of the messages in a finding; in that time also the events of their clients' connections, and the
    faults."""
    about = [at for at, event in enumerate(history.events) if (name := _name_of(event)) and name in finding]
    named = {event.client for event in history.of(Connecting) if event.client in finding}
    clients = named | {
        history.events[at].client for at in about if not isinstance(history.events[at], Delivered | Taken)
    }
    first, last = (about[0], about[-1]) if about else (0, len(history.events))
    told = 0
    for at, event in enumerate(history.events[: last + 1]):
        is_connection = at >= first and event.client in clients and isinstance(event, OF_CONNECTIONS)
        is_delivery = isinstance(event, Delivered | Taken) and named and event.client not in named
        is_fault = at >= first and isinstance(event, Fault)
        if is_connection or is_fault or (at in about and not is_delivery):
            told += 1
            if told <= STORY_EVENTS:
                yield f"{at:7} {described(event)}"
    if told > STORY_EVENTS:
        yield f"        and {told - STORY_EVENTS} more events"


def _name_of(event: Event) -> str:
    """The message of an event as findings name it; empty: it is about none."""
    payload = getattr(event, "payload", None) or getattr(event, "will", None)
    return shown(payload) if payload else ""


def described(event: Event) -> str:
    """An event in a line: the client, the kind, and the fields."""
    names = [field.name for field in fields(event) if field.name != "client"]
    values = ", ".join(f"{name}={_value(getattr(event, name))}" for name in names)
    return f"{event.client:13} {type(event).__name__.lower():12} {values}"


def _value(value: Any) -> str:
    return shown(value) if isinstance(value, bytes) else str(value)
