"""The end of a batch when there is more than it may read: all logs are read up to the same time.

With a cut by bytes alone, a short log would reach the present while another is an hour behind. The watermark follows
the newest row, so windows would close before all their messages are read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..position import MAX, Position
from .log import Logs, one_entry, until_command

FULL = 0.75  # share of the budget at which a batch is large enough
QUESTIONS = 80


class Backlog(NamedTuple):
    """The part of a log that is to be read."""

    start: Position
    first: Position  # of the first entry after `start`
    end: Position  # of the last entry

    @property
    def bytes(self) -> int:
        """The bytes of all its blocks."""
        return max(0, self.end.total - self.start.total)


Places = dict[str, Position]


def cut(logs: Logs, backlogs: Mapping[str, Backlog], budget: int) -> Places:
    """The end in each log of a batch of at most `budget` bytes, or of one entry if that is larger."""
    ends = {node: backlog.end for node, backlog in backlogs.items()}
    if sum(backlog.bytes for backlog in backlogs.values()) <= budget:
        return ends
    low, low_ms = {node: backlog.start for node, backlog in backlogs.items()}, _first_ms(backlogs) - 1
    high, high_ms = ends, max(end.ms for end in ends.values())
    for question in range(QUESTIONS):
        low_size, high_size = _size(backlogs, low), _size(backlogs, high)
        if low_size >= FULL * budget or high_ms - low_ms <= 1:
            break
        # Interpolate as if all seconds had the same number of bytes; every other time bisect, for bursts.
        share = 0.5 if question % 2 else max(0.0, budget * 0.9 - low_size) / max(1, high_size - low_size)
        ms = min(high_ms - 1, max(low_ms + 1, low_ms + int((high_ms - low_ms) * share)))
        places = _places(logs, backlogs, low, high, ms)
        if _size(backlogs, places) <= budget:
            low, low_ms = places, ms
        else:
            high, high_ms = places, ms
    return low if _size(backlogs, low) else _within(logs, backlogs, high_ms, budget)


def _first_ms(backlogs: Mapping[str, Backlog]) -> int:
    return min(backlog.first.ms for backlog in backlogs.values())


def _size(backlogs: Mapping[str, Backlog], places: Places) -> int:
    return sum(max(0, places[node].total - backlog.start.total) for node, backlog in backlogs.items())


def _places(logs: Logs, backlogs: Mapping[str, Backlog], low: Places, high: Places, ms: int) -> Places:
    """The position in each log at the end of a millisecond."""
    open_ = {node: (Position(ms, MAX),) for node in backlogs if low[node] != high[node]}
    found = dict(low)
    for node, reply in logs.ask(until_command, open_).items():
        entry = one_entry(reply)
        if entry is not None:
            found[node] = max(low[node], min(high[node], entry.position))
    return found


def _within(logs: Logs, backlogs: Mapping[str, Backlog], ms: int, budget: int) -> Places:
    """Some entries of the first millisecond, log after log, if that millisecond alone exceeds the budget."""
    places: Places = {}
    left = budget
    for node, backlog in backlogs.items():
        places[node] = backlog.start
        if backlog.first.ms <= ms and backlog.first.total - backlog.start.total <= left:
            entry = logs.log(node).until(min(backlog.end, Position(ms, backlog.start.total + left)))
            places[node] = max(backlog.first, entry.position if entry is not None else backlog.first)
            left -= places[node].total - backlog.start.total
    if places == {node: backlog.start for node, backlog in backlogs.items()}:
        first = min(backlogs, key=lambda node: backlogs[node].first)
        places[first] = backlogs[first].first
    return places
