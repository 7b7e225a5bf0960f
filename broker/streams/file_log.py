"""The log of messages of a node alone, in files, as its streams read it.

The store passes on each entry when it is stored. The newest ones stay in memory up to a limit; threads read earlier
ones from the files.
"""

import asyncio

from ..storage.log_files import LogEntry
from ..storage.log_segments import LogReader
from ..storage.sqlite import SqliteStore
from .message_log import Entry, LogAway, LogEnd, MessageLog
from .start_position import Place
from .tail import Tail

READERS = 4  # threads that read at a time
PIECE_BYTES = 1 << 20  # that one of them reads, at most, but one entry


class FileLog(MessageLog):
    """The log of a node alone.

    Args:
        store: of the node, open.
    """

    def __init__(self, store: SqliteStore) -> None:
        files = store.log_files
        self._id = files.id
        self._reader = LogReader(files.folder)
        self._end = Place(files.reached.ms, files.reached.total)  # of the entries that are stored
        self._tail = Tail(self._end.ms, self._end.total)
        self._version = 0
        self._changed = asyncio.Event()
        self._readers = asyncio.Semaphore(READERS)
        store.on_logged(self._on_logged)

    @property
    def version(self) -> int:
        return self._version

    async def wait(self, version: int) -> None:
        while self._version == version:
            await self._changed.wait()

    async def nodes(self) -> list[str]:
        return [self._id]

    async def ends(self) -> dict[str, LogEnd]:
        return {self._id: LogEnd("", self._end)}

    async def read(self, node: str, place: Place | None, since: int, count: int) -> tuple[list[Entry], bool]:
        newest = self._tail.find(place, since)
        if newest is not None:
            return newest, True
        after = None if place is None else place.total - bool(place.rows)
        async with self._readers:
            try:
                found, at_end = await asyncio.to_thread(
                    self._reader.read, after, since // 1000, count=count, size=PIECE_BYTES, end=self._end.total
                )
            except OSError as error:
                raise LogAway(f"its files can't be read: {error}") from error
        return [Entry(node, frame.ms, frame.total, frame.block) for frame in found], at_end

    def _on_logged(self, entries: list[LogEntry]) -> None:
        for entry in entries:
            self._tail.add(Entry(self._id, entry.ms, entry.total, entry.block))
        self._end = Place(entries[-1].ms, entries[-1].total)
        self._version += 1
        self._changed.set()
        self._changed.clear()
