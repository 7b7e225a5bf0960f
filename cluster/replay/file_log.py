"""The log of messages of a node alone, in files, as a replay reads it. `analytics/log/log.py` reads the log in
Redis."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ...broker.storage.log_segments import LogReader, frames, read_id, segments
from ..analytics.log.log import Entry, Gap, KnownLog
from ..analytics.position import START, Position

PIECE_COUNT, PIECE_BYTES = 4096, 2 << 20
NAME = "node"  # of a node alone


class FileLog:
    """The log of the node.

    Args:
        folder: of the log.
        node: its id.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self.node = node
        self._folder = folder
        self._reader = LogReader(folder)

    def first(self) -> Entry | None:
        """The oldest remaining entry."""
        return next((entry for entry in self._entries(0)), None)

    def last(self) -> Entry | None:
        """The newest entry."""
        for segment in reversed(segments(self._folder)):
            last = None
            for frame in frames(segment):
                last = frame
            if last is not None:
                return Entry(Position(last.ms, last.total), last.block)
        return None

    def at_time(self, ms: int) -> Position:
        """The place before the first entry whose block was closed at `ms` or later."""
        piece, _ = self._reader.read(None, ms, count=1, size=1)
        if piece:
            return Position(piece[0].ms, piece[0].total - len(piece[0].block))
        last = self.last()
        return START if last is None else last.position

    def read(self, start: Position, end: Position, lost: Callable[[Gap], None]) -> Iterator[list[Entry]]:
        """The entries of a range, some megabytes at a time; `lost` is called for each gap, and may raise."""
        position = start
        while position.total < end.total:
            piece, _ = self._reader.read(position.total, 0, count=PIECE_COUNT, size=PIECE_BYTES, end=end.total)
            entries = [Entry(Position(frame.ms, frame.total), frame.block) for frame in piece]
            if not entries:
                break
            for entry in entries:
                if entry.before.total != position.total:
                    lost(Gap(self.node, position, entry.before))
                position = entry.position
            yield entries
        if position.total < end.total:
            lost(Gap(self.node, position, end))

    def _entries(self, after: int) -> list[Entry]:
        piece, _ = self._reader.read(after, 0, count=1, size=1)
        return [Entry(Position(frame.ms, frame.total), frame.block) for frame in piece]


class FileLogs:
    """The logs of a node alone: one, or none.

    Args:
        folder: of the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log(self, node: str) -> FileLog:
        """The log."""
        return FileLog(self._folder, node)

    def known(self) -> dict[str, KnownLog]:
        """The log, by its id."""
        ids = [read_id(segment) for segment in segments(self._folder)[-1:]]
        return {log_id: KnownLog(log_id, NAME, 0, None) for log_id in ids if log_id}
