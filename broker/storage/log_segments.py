"""The log of messages as files: the layout of its segments, and how they are read, also by other processes.

The log is a folder of segments. A segment is named by the bytes of the log before it. It has a head, then frames: the
entries of the log, each with its length and its checksum. Entries are as in a log in Redis, and so are their places:
the time at which a block was closed, and the bytes of all blocks up to it. Only the node writes.
"""

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreError

MAGIC = b"FQLOG\0\0\1"  # the last byte is the layout
HEAD = struct.Struct("<8sQ16s")  # MAGIC, bytes of the log before the segment, id of the log
FRAME = struct.Struct("<IIqB7x")  # bytes of the block, checksum of all that follows, milliseconds of the id, bits
CHECKED = 8  # bytes of a frame before the bytes of its checksum
BOUND = 1  # bit of a frame: the entry is one of the log only if the store has the records of its turn
SUFFIX = ".log"
BUFFER = 1 << 18
MAX_CURSORS = 64  # places in files that a reader remembers


class Frame(NamedTuple):
    """An entry of the log."""

    ms: int
    total: int  # bytes of the log up to this entry, included
    block: bytes
    is_bound: bool
    end: int  # its end in the file


class Segment(NamedTuple):
    """A file of the log."""

    before: int  # bytes of the log before it
    path: Path


def folder_of(store: Path) -> Path:
    """The folder of the log beside the file of a store."""
    return store.with_name(store.name + "-log")


def segment_path(folder: Path, before: int) -> Path:
    """Where a segment is."""
    return folder / f"{before:020}{SUFFIX}"


def segments(folder: Path) -> list[Segment]:
    """All segments, the oldest first."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    stems = sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
    return [Segment(int(stem), folder / f"{stem}{SUFFIX}") for stem in stems if stem.isascii() and stem.isdigit()]


def read_id(segment: Segment) -> str:
    """The id of the log that a segment is of; empty if the segment has no whole head.

    Raises:
        StoreError: it is none that this version reads.
    """
    with segment.path.open("rb") as file:
        head = file.read(HEAD.size)
    if len(head) < HEAD.size or not any(head):  # a loss of power may leave zeros in place of unsynced bytes
        return ""
    magic, before, log_id = HEAD.unpack(head)
    if magic != MAGIC or before != segment.before:
        raise StoreError(
            f"{segment.path} is no segment of a log of messages that this version reads",
            "use the version that wrote it, or move the folder away to begin with an empty log",
        )
    return str(log_id.rstrip(b"\0").decode())


def pack_head(before: int, log_id: str) -> bytes:
    """The head of a segment."""
    return HEAD.pack(MAGIC, before, log_id.encode())


def pack_frame(ms: int, block: bytes, *, is_bound: bool) -> bytes:
    """An entry as a segment has it."""
    head = FRAME.pack(len(block), 0, ms, BOUND * is_bound)
    checksum = zlib.crc32(block, zlib.crc32(head[CHECKED:]))
    return FRAME.pack(len(block), checksum, ms, BOUND * is_bound) + block


def frames(segment: Segment, offset: int = HEAD.size, total: int | None = None) -> Iterator[Frame]:
    """The entries of a segment, up to the first that is cut or damaged.

    Args:
        segment: to read.
        offset: where a frame begins.
        total: bytes of the log before it; None: of the segment.

    Raises:
        FileNotFoundError: the segment was dropped.
    """
    total = segment.before if total is None else total
    with segment.path.open("rb", buffering=BUFFER) as file:
        file.seek(offset)
        while len(head := file.read(FRAME.size)) == FRAME.size:
            size, checksum, ms, bits = FRAME.unpack(head)
            block = file.read(size)
            if len(block) < size or zlib.crc32(block, zlib.crc32(head[CHECKED:])) != checksum:
                return
            total += size
            offset += FRAME.size + size
            yield Frame(ms, total, block, bool(bits & BOUND), offset)


def find(segment: Segment, is_wanted: Callable[[int, int], bool]) -> tuple[int, int]:
    """Find an entry: where its frame begins, and the bytes of the log before it. Without one: the end of the segment.

    Args:
        segment: to read.
        is_wanted: called with milliseconds and bytes of the place of each entry.

    Raises:
        FileNotFoundError: the segment was dropped.
    """
    offset, total = HEAD.size, segment.before
    with segment.path.open("rb", buffering=BUFFER) as file:
        file.seek(offset)
        while len(head := file.read(FRAME.size)) == FRAME.size:
            size, _, ms, _ = FRAME.unpack(head)
            if is_wanted(ms, total + size):
                break
            offset += FRAME.size + size
            total += size
            file.seek(size, 1)
    return offset, total


class LogReader:
    """Reads the entries of a log. Threads may share it.

    Args:
        folder: of the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cursors: dict[int, tuple[Segment, int]] = {}  # bytes of the log -> where the next frame begins

    def read(
        self, after: int | None, since: int, *, count: int, size: int, end: int | None = None
    ) -> tuple[list[Frame], bool]:
        """Read entries.

        Args:
            after: bytes of the log: entries that end after them. None: those from `since` on.
            since: milliseconds since 1970.
            count, size: entries and bytes, at most; one entry at least.
            end: bytes of the log that may be read; None: all.

        Returns:
            Entries, and whether these were all.
        """
        found = segments(self._folder)
        piece: list[Frame] = []
        first = self._first(found, after, since)
        nexts = [segment.before for segment in found[first + 1 :]]
        for segment, limit in zip_longest(found[first:], nexts):
            try:
                for frame in self._frames(segment, after, since):
                    if end is not None and frame.total > end:
                        return piece, True
                    if limit is not None and frame.total > limit:
                        break  # left by an append that failed
                    piece.append(frame)
                    size -= len(frame.block)
                    if len(piece) == count or size <= 0:
                        self._remember(segment, frame)
                        return piece, False
            except FileNotFoundError:
                pass  # the writer has dropped it
        return piece, True

    def _first(self, found: list[Segment], after: int | None, since: int) -> int:
        """The number of the segment with the first entry that is wanted."""
        if after is not None:
            return max(0, bisect_right(found, after, key=lambda segment: segment.before) - 1)
        return max(0, bisect_left(found, since, key=first_ms) - 1)

    def _frames(self, segment: Segment, after: int | None, since: int) -> Iterator[Frame]:
        if after is None:
            return frames(segment, *find(segment, lambda ms, _: ms >= since))
        known = self._cursors.get(after)
        if known is not None and known[0] == segment:
            return frames(segment, known[1], after)
        return frames(segment, *find(segment, lambda _, total: total > after))

    def _remember(self, segment: Segment, frame: Frame) -> None:
        if len(self._cursors) >= MAX_CURSORS:
            self._cursors.clear()
        self._cursors[frame.total] = (segment, frame.end)


def first_ms(segment: Segment) -> int:
    """The time of the first entry of a segment; 0 if it has none, or was dropped."""
    try:
        return next((frame.ms for frame in frames(segment)), 0)
    except FileNotFoundError:
        return 0
