"""The entries of all logs in one order: by the times at which their first messages were accepted.

Each log keeps its own order. Between nodes the order follows their clocks.
"""

from collections import deque

from .message_log import Entry, MessageLog
from .start_position import Place, Start

PIECE_ENTRIES = 256
PIECE_BYTES = 1 << 19
FIRST_COUNT = 8  # entries per reading while their size is unknown
MAX_COUNT = 1024
GROWTH = 4


class Reading:
    """One log, as far as it has been read."""

    def __init__(self, node: str, place: Place | None) -> None:
        self.node = node
        self.place = place  # after the newest entry that was read
        self.entries: deque[Entry] = deque()
        self.at_end = False  # all entries that there were have been read
        self._count = FIRST_COUNT

    async def fill(self, log: MessageLog, since: int) -> None:
        """Read more entries."""
        entries, self.at_end = await log.read(self.node, self.place, since, self._count)
        if entries:
            self.entries.extend(entries)
            self.place = Place(entries[-1].ms, entries[-1].total)
            largest = max(len(entry.block) for entry in entries)
            self._count = max(1, min(PIECE_BYTES // largest, self._count * GROWTH, MAX_COUNT))


class Merge:
    """Reads the logs of all nodes.

    Args:
        log: to read.
        start: where to begin.
    """

    def __init__(self, log: MessageLog, start: Start) -> None:
        self._log = log
        self._since = start.since
        self._places = dict(start.places)
        self._readings: dict[str, Reading] = {}

    def ended(self, node: str) -> bool:
        """Whether the log of a node is no more, and all of it has been taken."""
        return bool(self._readings) and node not in self._readings

    async def next(self) -> list[Entry]:
        """The next entries: at least one, which may take for ever. Raises LogAway."""
        while True:
            version = self._log.version
            nodes = await self._log.nodes()
            for node in nodes:
                if node not in self._readings:
                    self._readings[node] = Reading(node, self._places.get(node))
            for node in self._readings.keys() - nodes if nodes else ():
                if not self._readings[node].entries:
                    del self._readings[node]
            for reading in self._readings.values():
                if not reading.entries:
                    await reading.fill(self._log, self._since)
            if piece := self._take():
                return piece
            await self._log.wait(version)

    def _take(self) -> list[Entry]:
        """The entries that precede all that are yet to be read."""
        piece: list[Entry] = []
        size = 0
        while size < PIECE_BYTES and len(piece) < PIECE_ENTRIES:
            readings = [reading for reading in self._readings.values() if reading.entries or not reading.at_end]
            if not readings or not all(reading.entries for reading in readings):
                break
            first = min(readings, key=lambda reading: reading.entries[0].accepted)
            entry = first.entries.popleft()
            piece.append(entry)
            size += len(entry.block)
        return piece
