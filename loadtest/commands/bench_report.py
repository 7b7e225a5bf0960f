"""The output of `flockmq bench`: a line of progress, then the figures as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any, TextIO

from ..generator.cost import Figures
from ..generator.latency import QUANTILES
from ..generator.port_owner import process_name

BAR = 24  # characters
CLEAR = "\r\x1b[K"


class Progress:
    """The line of progress.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False
        self._last = (time.monotonic(), 0)

    def begin(self) -> None:
        """All clients are connected."""
        self._last = (time.monotonic(), 0)

    def look(self, phase: str, share: float, done: int) -> None:
        """Show a phase, the share of its time that has passed, and the rate of `done`."""
        now = time.monotonic()
        since, before = self._last
        rate = (done - before) / (now - since) if now > since else 0.0
        self._last = (now, done)
        filled = "#" * round(BAR * min(share, 1.0))
        text = f"{rate:,.0f} /s" if phase not in ("connecting", "holding") else f"{done:,}"
        self._stream.write(f"{CLEAR}{phase} [{filled:<{BAR}}] {text}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            self._stream.write(CLEAR)
            self._stream.flush()


def as_json(figures: Figures, options: dict[str, Any]) -> str:
    """All figures and options."""
    shown = dict(figures)
    if "latencies" in shown:
        shown["latencies"] = {f"{nanoseconds / 1e3:.3f}": n for nanoseconds, n in shown["latencies"].counts.items()}
    return json.dumps({"options": options, "figures": shown}, indent=2)


def describe(asked: argparse.Namespace, options: dict[str, Any], figures: Figures) -> str:
    """The figures as a table."""
    rows = list(_rows(asked.shape, figures))
    rows += _cost(options["pids"], figures)
    width = max(len(name) for name, _ in rows)
    return "\n".join([_title(asked, options), *(f"  {name:<{width}}  {text}" for name, text in rows)])


def _title(asked: argparse.Namespace, options: dict[str, Any]) -> str:
    copies = f" in each of {asked.processes} processes" if asked.processes > 1 else ""
    if asked.shape == "connections":
        return f"connections: {options['connections']:,} idle{copies}"
    if asked.shape == "connects":
        return f"connects: {options['parallel']} at a time{copies}"
    if asked.shape == "take-overs":
        return f"take-overs: {options['clients']:,} clients{copies}"
    clients = f"{options['publishers']:,} to {options['subscribers']:,} clients"
    more = ", MQTT 5.0" if options["level"] == 5 else ""
    more += f", {options['properties']} bytes of properties" if options.get("properties") else ""
    more += ", subscription identifiers" if options.get("ids") else ""
    more += f", topic aliases {options['alias']}" if options.get("alias") else ""
    return f"{asked.shape}: {clients}{copies}, QoS {options['qos']}, {options['payload']} bytes{more}"


def _rows(shape: str, figures: Figures) -> Iterator[tuple[str, str]]:
    if shape == "connections":
        yield "connected", f"{figures['connections']:,} in {figures['connect_s']:.2f} s"
        yield "pings", f"{figures['pings']:,} sent, {figures['pongs']:,} answered"
        return
    if shape == "connects":
        yield "connects", f"{figures['connects_per_s']:,.0f} /s"
        return
    if shape == "take-overs":
        yield "take-overs", f"{figures['take_overs_per_s']:,.0f} /s"
    else:
        yield "published", f"{figures['published_per_s']:,.0f} /s"
        yield "delivered", f"{figures['delivered_per_s']:,.0f} /s"
        wrong = ", ".join(
            f"{figures[name]:,} {word}"
            for name, word in (("lost", "lost"), ("duplicates", "twice"), ("reordered", "out of order"))
            if figures[name]
        )
        right = "none lost, none twice" + ("" if figures.get("returned") else ", all in order")
        if figures.get("repeated"):
            right = "none lost, none twice without a cut"
        yield "checked", f"{figures['received']:,} messages: {wrong or right}"
        if "skew_share" in figures:
            yield from _subscribers(figures)
    yield "latency", ", ".join(f"{name} {_time(figures[f'latency_{name}_us'])}" for name in QUANTILES)


def _subscribers(figures: Figures) -> Iterator[tuple[str, str]]:
    """The subscribers of a shared subscription."""
    if figures["equal_subscribers"]:
        differ = f"{figures['skew_share']:.1%} apart, {figures['skew_second_share']:.1%} in the worst second"
        number = figures["equal_subscribers"]
        yield "subscribers", f"{number} equal, with {figures['received_equal']:,} messages: {differ}"
    if figures["returned"]:
        yield "late", f"{figures['returned']:,} messages: another subscriber or node had them first"
    if figures["slow_subscribers"]:
        yield "slow ones", f"{figures['slow_subscribers']}, with {figures['received_slow']:,} messages"
    if figures["dying_subscribers"]:
        again = f"{figures['repeated']:,} came twice"
        number = f"{figures['dying_subscribers']}, cut {figures['cuts']} times"
        yield "dying ones", f"{number}, with {figures['received_dying']:,} messages: {again}"


def _cost(pids: list[int], figures: Figures) -> Iterator[tuple[str, str]]:
    if not pids:
        return
    for name, thing in (("delivery", "message"), ("connect", "connect"), ("take_over", "take-over")):
        if f"cpu_us_per_{name}" in figures:
            share = f", {figures['cpu_share']:.0%} of a core" if "cpu_share" in figures else ""
            yield "broker's CPU", f"{figures[f'cpu_us_per_{name}']:.3g} us a {thing}{share}"
    if "idle_cpu_share" in figures:
        yield "while idle", f"{figures['idle_cpu_share']:.2%} of a core"
        yield "memory", f"{figures['memory_per_connection_bytes']:,.0f} bytes more per connection"
    yield "measured", ", ".join(f"{process_name(pid)} ({pid})" for pid in pids)


def _time(microseconds: float) -> str:
    return f"{microseconds:.0f} us" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
