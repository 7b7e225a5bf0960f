"""Reads the logs of all nodes from a position up to their present ends, a piece of one log at a time.

Positions are exact: a piece begins where the piece before it ended. What is missing in between raises `Missing`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .merge import Reading
from .message_log import Entry, LogEnd, MessageLog
from .start_position import SECOND, Place

START = Place(0, 0)  # of each log
LATE = 10 * SECOND  # microseconds: a block is closed soon after its messages were accepted, or later if the node stood
Position = dict[str, Place]  # by node id


class Piece(NamedTuple):
    """Entries of one log that follow one another."""

    name: str  # of the node
    entries: list[Entry]
    position: Position  # behind them, in all logs

    def behind(self, entry: Entry) -> Position:
        """The position behind one of the entries."""
        return {**self.position, entry.node: Place(entry.ms, entry.total)}


class Missing(Exception):
    """Entries are missing from a log.

    Attributes:
        node: its id.
        start: the place behind which they are missing.
        end: the place before the next entry; None: there is no such log any more.
        before: the position before them, in all logs.
        position: behind them, in all logs.
    """

    def __init__(self, node: str, start: Place, end: Place | None, before: Position, reason: str = "") -> None:
        super().__init__(reason or _sentence(node, start, end))
        self.node, self.start, self.end, self.before = node, start, end, before
        others = {other: place for other, place in before.items() if other != node}
        self.position = others if end is None else {**others, node: end}

    @property
    def bytes(self) -> int:
        """The missing bytes, as far as they are known."""
        return 0 if self.end is None else max(0, self.end.total - self.start.total)


class LogReader:
    """Reads logs.

    Args:
        log: to read.
        position: where to begin; a log that it lacks is read from its start. None: at `since`.
        since: microseconds since 1970.
        until: microseconds since 1970: entries that were closed long after it are not read. None: no limit.
    """

    def __init__(
        self, log: MessageLog, position: Mapping[str, Place] | None, since: int = 0, until: int | None = None
    ) -> None:
        self._log = log
        self._is_new = position is None
        self.position = dict(position or {})  # behind all pieces that `next` has returned
        self._since = since
        self._last_ms = None if until is None else (until + LATE) // 1000
        self._ends: dict[str, LogEnd] = {}
        self._readings: dict[str, Reading] = {}

    async def start(self) -> None:
        """Find the present ends of the logs. Raises LogAway, Missing."""
        self._ends = await self._log.ends()
        for node in self.position.keys() - self._ends.keys():
            if self.position[node].total:
                raise Missing(node, self.position[node], None, self.position)
            del self.position[node]  # nothing was in it
        for node, (_, end) in self._ends.items():
            place = None if self._is_new else self.position.setdefault(node, START)
            if place is not None and place.total > end.total:
                raise Missing(node, place, end, self.position)
            if place is None or place.total < end.total:
                self._readings[node] = Reading(node, place)

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
        """Read on in a log, or leave it if that is not possible."""
        node, end = reading.node, self._ends[reading.node].place
        await reading.fill(self._log, self._since)
        if not reading.entries:
            before = self.position.setdefault(node, end)  # nothing was logged since then
            if before.total < end.total:
                raise Missing(node, before, end, self.position)
            del self._readings[node]
            return
        first = reading.entries[0]
        place = self.position.setdefault(node, Place(first.ms, first.before))
        for entry in reading.entries:
            if entry.before != place.total:
                raise Missing(node, place, Place(entry.ms, entry.before), self.position)
            place = Place(entry.ms, entry.total)

    def _take(self, reading: Reading) -> Piece | None:
        """The entries that were read of a log; None if all are too new."""
        entries = [entry for entry in reading.entries if self._last_ms is None or entry.ms <= self._last_ms]
        is_over = len(entries) < len(reading.entries)
        reading.entries.clear()
        if entries:
            self.position = {**self.position, reading.node: Place(entries[-1].ms, entries[-1].total)}
        name, end = self._ends[reading.node]
        if is_over or self.position[reading.node].total >= end.total:
            del self._readings[reading.node]
        return Piece(name, entries, self.position) if entries else None


def _sentence(node: str, start: Place, end: Place | None) -> str:
    if end is None:
        return f"the log of node {node}, which was read up to {start.ms}-{start.total}, is gone"
    if end.total < start.total:
        return f"the log of node {node} was read up to {start.ms}-{start.total}, but has less: {end.ms}-{end.total}"
    return (
        f"{end.total - start.total} bytes are missing from the log of node {node}, after {start.ms}-{start.total} up "
        f"to {end.ms}-{end.total}"
    )
