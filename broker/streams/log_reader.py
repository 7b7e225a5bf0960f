"""Reads the logs of all nodes from a position up to their present ends, a piece of one log at a time.

Positions are exact: a piece begins where the piece before it ended. What is missing in between raises `Missing`.
"""

import json
import re
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from .merge import Reading
from .message_log import Entry, LogEnd, MessageLog
from .start_position import SECOND, Place

LATE = 10 * SECOND  # microseconds: a block is closed soon after its messages were accepted, or later if the node stood
EARLIEST, ENDED = "earliest", "ended"
REACHED = re.compile(rf"(\d{{1,19}})-(\d{{1,19}})(?: ({EARLIEST}|{ENDED}))?", re.ASCII)


class Reached(NamedTuple):
    """How far a log has been read; its text is also the offset of Spark's source."""

    ms: int = 0  # of the last entry
    total: int = 0  # bytes of the log up to there
    mark: str = ""  # EARLIEST: nothing was read, and trimmed entries were not requested; ENDED: no entry will follow

    def __str__(self) -> str:
        return f"{self.ms}-{self.total} {self.mark}".rstrip()


Position = Mapping[str, Reached]  # by node id


def parse_position(text: str) -> Position:
    """From JSON. Raises ValueError; its text completes "expected ..."."""
    try:
        found = {str(node): REACHED.fullmatch(reached) for node, reached in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = {"": None}
    if not all(found.values()):
        raise ValueError('JSON such as {"NODE ID": "MS-BYTES"}, as an earlier reply has it')
    return {node: Reached(int(one[1]), int(one[2]), one[3] or "") for node, one in found.items() if one is not None}


def shown(position: Position) -> dict[str, str]:
    """As JSON has it."""
    return {node: str(position[node]) for node in sorted(position)}


class Piece(NamedTuple):
    """Entries of one log that follow one another."""

    name: str  # of the node
    entries: list[Entry]
    position: Position  # behind them, in all logs

    def behind(self, entry: Entry) -> Position:
        """The position behind one of the entries."""
        if entry is self.entries[-1]:
            return self.position
        return {**self.position, entry.node: Reached(entry.ms, entry.total)}

    def of(self, entry: Entry) -> "Piece":
        """One of the entries alone."""
        return Piece(self.name, [entry], self.behind(entry))


class Missing(Exception):
    """Entries are missing from a log.

    Attributes:
        node: its id.
        bytes: that are missing, as far as they are known.
        before: the position before them, in all logs.
        position: behind them, in all logs.
    """

    def __init__(self, reason: str, node: str, before: Position, behind: Reached | None) -> None:
        super().__init__(reason)
        others = {other: reached for other, reached in before.items() if other != node}
        self.node, self.before = node, before
        self.bytes = 0 if behind is None else max(0, behind.total - before[node].total)
        self.position = others if behind is None else {**others, node: behind}


class LogReader:
    """Reads logs.

    Args:
        log: to read.
        position: where to begin; a log that it lacks is read from its start. None: at `since`.
        since: microseconds since 1970.
        until: microseconds since 1970: entries that were closed long after it are not read. None: no limit.
        to: where to end, instead of at the present ends; logs that it lacks are not read.
    """

    def __init__(
        self,
        log: MessageLog,
        position: Position | None,
        since: int = 0,
        until: int | None = None,
        to: Position | None = None,
    ) -> None:
        self._log = log
        self._is_new = position is None
        self.position = dict(position or {})  # behind all pieces that `next` has returned
        self._since = since
        self._to = to
        self._last_ms = None if until is None else (until + LATE) // 1000
        self._ends: dict[str, LogEnd] = {}
        self._readings: dict[str, Reading] = {}

    async def start(self) -> None:
        """Find the present ends of the logs. Raises LogAway, Missing."""
        self._ends = await self._log.ends()
        if self._to is not None:
            self._ends = {
                node: end._replace(place=Place(self._to[node].ms, self._to[node].total))
                for node, end in self._ends.items()
                if node in self._to
            }
        for node in self.position.keys() - self._ends.keys():
            reached = self.position[node]
            if reached.total and not reached.mark:
                words = f"the log of node {node}, which was read up to {reached}, is gone"
                raise Missing(words, node, self.position, None)
            del self.position[node]  # nothing was in it, or all was read
        for node in self._ends:
            if self._is_new:
                self._readings[node] = Reading(node, None)
                continue
            reached = self.position.setdefault(node, Reached())
            if reached.total == self._ends[node].place.total:
                self._ended(node)
                continue
            if reached.total > self._ends[node].place.total:
                raise self._missing(node, Reached(*self._ends[node].place[:2]))
            self._readings[node] = Reading(node, Place(reached.ms, reached.total))

    async def next(self) -> Piece | None:
        """The next piece; None: the ends are reached. Raises LogAway, Missing."""
        while True:
            for reading in list(self._readings.values()):
                if not reading.entries:
                    await self._fill(reading)
            if not self._readings:
                return None
            if piece := self._take(min(self._readings.values(), key=lambda each: each.entries[0].accepted)):
                return piece

    async def _fill(self, reading: Reading) -> None:
        """Read on in a log, or leave it if nothing is left."""
        node = reading.node
        await reading.fill(self._log, self._since)
        if reading.entries:
            self._check(node, reading.entries)
            return
        end = Reached(*self._ends[node].place[:2])
        reached = self.position.setdefault(node, end)  # nothing was logged since then
        if reached.total < end.total and reached.mark != EARLIEST:
            raise self._missing(node, end)
        self.position[node] = end
        self._ended(node)

    def _check(self, node: str, entries: deque[Entry]) -> None:
        """Check that entries follow one another. Of those behind a gap nothing is kept: they are read again."""
        first = entries[0]
        reached = self.position.get(node)
        if reached is None or reached.mark == EARLIEST:
            reached = self.position[node] = Reached(first.ms, first.before)
        if first.before != reached.total:
            raise self._missing(node, Reached(first.ms, first.before))
        at = reached.total
        for number, entry in enumerate(entries):
            if entry.before != at:
                while len(entries) > number:
                    entries.pop()
                self._readings[node].place = Place(entries[-1].ms, entries[-1].total)
                return
            at = entry.total

    def _take(self, reading: Reading) -> Piece | None:
        """The entries that were read of a log; None if all are too new."""
        node = reading.node
        entries = [
            entry
            for entry in reading.entries
            if (self._last_ms is None or entry.ms <= self._last_ms)
            and (self._to is None or entry.total <= self._ends[node].place.total)
        ]
        is_over = len(entries) < len(reading.entries)
        reading.entries.clear()
        if entries:
            self.position[node] = Reached(entries[-1].ms, entries[-1].total)
        if is_over or self.position[node].total >= self._ends[node].place.total:
            self._ended(node)
        return Piece(self._ends[node].name, entries, dict(self.position)) if entries else None

    def _ended(self, node: str) -> None:
        """Read no more of a log."""
        self._readings.pop(node, None)
        if self._ends[node].is_deleted and self.position[node].total == self._ends[node].place.total:
            self.position[node] = self.position[node]._replace(mark=ENDED)

    def _missing(self, node: str, behind: Reached) -> Missing:
        reached = self.position[node]
        if behind.total < reached.total:
            words = f"the log of node {node} was read up to {reached}, but ends at {behind}"
        else:
            size = behind.total - reached.total
            words = f"{size} bytes are missing from the log of node {node}, after {reached} up to {behind}"
        return Missing(words, node, self.position, behind)
