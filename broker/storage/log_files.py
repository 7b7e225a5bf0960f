"""The writer of the log of messages as files (`log_segments.py` has their layout): appends, syncs, bounds, mends.

An entry may be bound to records of the store: both are of one turn. The writer appends it first, then the store commits
the records, with the bytes of the log so far. So after a crash a bound entry beyond these bytes is one whose records
the store does not have. It is cut off, with all that follows.
"""

import os
import secrets
import struct
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .. import logs
from ..files import sync_folder
from .log_segments import (
    FRAME,
    HEAD,
    Frame,
    Segment,
    first_ms,
    frames,
    pack_frame,
    pack_head,
    read_id,
    segment_path,
    segments,
)

PARTS = 16  # of the bytes, and of the seconds of the log: a segment has one of them, and is dropped as a whole
MIN_SEGMENT, MAX_SEGMENT = 1 << 16, 1 << 24  # bytes
COUNTS = struct.Struct("<4xI8x8xQ")  # in the head of a block: rows, and messages that the log lacks
UNKNOWN = 1 << 62  # more bytes than a log has
ROWS_BEFORE = struct.Struct("<8xQ")

log = logs.get("flockmq.store")


class LogEntry(NamedTuple):
    """An entry to append."""

    ms: int
    total: int  # bytes of the log up to this entry, included
    block: bytes
    is_bound: bool  # the store has records of the same turn


class Reached(NamedTuple):
    """The end of a log."""

    ms: int = 0  # of the newest entry
    total: int = 0  # bytes
    rows: int = 0
    lacking: int = 0  # messages that were not logged


@dataclass
class Part:
    """A segment, as its writer knows it."""

    path: Path
    size: int  # bytes of the file
    first_ms: int
    last_ms: int


class LogFiles:
    """The log of messages in a folder. After `open` it belongs to one thread, but for `bound`.

    Args:
        folder: of the log; the first entry makes it.
        sync: whether `durable` waits for the disk.
    """

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.folder = folder
        self.id = ""
        self.reached = Reached()
        self.end = 0  # bytes of the log
        self._sync = sync
        self._parts: list[Part] = []
        self._file = -1  # descriptor of the last segment; -1: the next entry begins one
        self._unsynced = False
        self._max_bytes, self._max_seconds = 1 << 62, 1e12

    @property
    def size(self) -> int:
        """Bytes of the segments that are kept. From any thread."""
        return sum(part.size for part in list(self._parts))

    def bound(self, max_bytes: int, max_seconds: float) -> None:
        """Bound the log. From any thread."""
        self._max_bytes, self._max_seconds = max_bytes, max_seconds

    # ---- opening ----

    def open(self, known: int | None) -> None:
        """Find the end of the log, and cut off what is not of it.

        Args:
            known: bytes of the log that the store knows of; None: it knows of none.

        Raises:
            StoreError: a file is none of a log that this version reads.
            OSError: the files can't be used.
        """
        found = segments(self.folder)
        while found and not read_id(found[-1]):
            found.pop().path.unlink()  # the process ended while it began this segment
        self.id = read_id(found[-1]) if found else f"node-{secrets.token_hex(4)}"
        newest = _mend(found, UNKNOWN if known is None else known)
        if self.folder.exists():
            sync_folder(self.folder)  # else a segment that was cut off could return when others have its place
        if newest is not None:
            rows, lacking = COUNTS.unpack_from(newest.block)
            self.reached = Reached(newest.ms, newest.total, ROWS_BEFORE.unpack_from(newest.block)[0] + rows, lacking)
        if found and self.reached.total >= (known or 0):
            self._file = os.open(found[-1].path, os.O_WRONLY | os.O_APPEND)
        else:  # a loss of power has cut the log: it goes on with a gap, which readers detect
            self.reached = self.reached._replace(total=known or 0)
        self.end = self.reached.total
        times = [*map(first_ms, found), self.reached.ms]
        self._parts = [
            Part(segment.path, segment.path.stat().st_size, begin, end)
            for segment, (begin, end) in zip(found, pairwise(times), strict=True)
        ]

    # ---- writing ----

    def append(self, entries: list[LogEntry], *, durable: bool) -> None:
        """Append entries: all of them, or none. Raises OSError.

        Args:
            entries: in their order.
            durable: wait until the disk has all that was appended, if this log is synced at all.
        """
        count, end, is_open = len(self._parts), self.end, self._file >= 0
        last = replace(self._parts[-1]) if self._parts else None
        try:
            self._append(entries)
            if durable:
                self._flush()
        except OSError:
            self._close()
            for part in self._parts[count:]:
                part.path.unlink(missing_ok=True)
            self._parts[max(0, count - 1) :] = [last] if last is not None else []
            self.end = end
            if last is not None and is_open:
                _truncate(last.path, last.size)
                self._file = os.open(last.path, os.O_WRONLY | os.O_APPEND)
            raise
        self._trim()

    def _append(self, entries: list[LogEntry]) -> None:
        pending: list[bytes] = []
        for entry in entries:
            length = FRAME.size + len(entry.block)
            if self._file < 0 or self._is_full(length, entry.ms):
                self._write(pending)
                self._begin_segment(entry.ms)
                pending = [pack_head(self.end, self.id)]
            part = self._parts[-1]
            pending.append(pack_frame(entry.ms, entry.block, is_bound=entry.is_bound))
            part.size += length
            part.last_ms = entry.ms
            self.end = entry.total
        self._write(pending)

    def _is_full(self, length: int, ms: int) -> bool:
        """Whether the last segment has its part of the log, without an entry of this length and time."""
        part = self._parts[-1]
        largest = min(MAX_SEGMENT, max(MIN_SEGMENT, self._max_bytes // PARTS))
        return part.size + length > largest or ms - part.first_ms > self._max_seconds / PARTS * 1000

    def _begin_segment(self, ms: int) -> None:
        self._flush()
        self._close()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = segment_path(self.folder, self.end)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        self._parts.append(Part(path, HEAD.size, ms, ms))
        if self._sync:
            for folder in (self.folder, self.folder.parent):
                sync_folder(folder)

    def _write(self, pieces: list[bytes]) -> None:
        data = memoryview(b"".join(pieces))
        while data:
            self._unsynced = True
            data = data[os.write(self._file, data) :]

    def _flush(self) -> None:
        """Wait until the disk has what was written to the last segment."""
        if self._unsynced and self._sync:
            os.fdatasync(self._file)
        self._unsynced = False

    def _trim(self) -> None:
        """Drop the oldest segments, while the log is beyond its bounds."""
        size = sum(part.size for part in self._parts)
        oldest = (time.time() - self._max_seconds) * 1000
        while len(self._parts) > 1 and (size > self._max_bytes or self._parts[0].last_ms < oldest):
            dropped = self._parts.pop(0)
            size -= dropped.size
            dropped.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Close the files."""
        self._close()


def _mend(found: list[Segment], known: int) -> Frame | None:
    """Cut off all from the first entry on whose records the store lacks, or that is not whole; returns the last entry.

    Args:
        found: the segments; segments behind a cut are removed.
        known: bytes of the log that the store knows of.
    """
    number = max(0, bisect_right(found, known, key=lambda segment: segment.before) - 1)
    last: Frame | None = None
    while number < len(found):
        last, is_cut = _sound(found[number], known)
        number += 1
        if is_cut or number == len(found):
            _cut(found, number - 1, last.end if last is not None else 0)
    while last is None and found:
        last = next(iter(deque(frames(found[-1]), 1)), None)
        if last is None:
            _cut(found, len(found) - 1, 0)
    return last


def _sound(segment: Segment, known: int) -> tuple[Frame | None, bool]:
    """The last entry of a segment that stays, and whether one follows whose records the store lacks."""
    last: Frame | None = None
    for frame in frames(segment):
        if frame.is_bound and frame.total > known:
            return last, True
        last = frame
    return last, False


def _cut(found: list[Segment], number: int, size: int) -> None:
    """Let a segment be the last, with this size; 0: it is dropped, too."""
    dropped = sum(segment.path.stat().st_size for segment in found[number:]) - size
    if not dropped:
        return
    if size:
        _truncate(found[number].path, size)
        number += 1
    for segment in found[number:]:
        segment.path.unlink()
    del found[number:]
    log.info("the end of the log of messages was not confirmed, and is cut off", bytes=dropped)


def _truncate(path: Path, size: int) -> None:
    """Cut a file for good: after a loss of power its end could stand behind entries that were written since."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(file, size)
        os.fsync(file)
    finally:
        os.close(file)
