"""Which entries of a Redis stream a node still keeps, by bytes and by age."""

import time
from collections import deque
from dataclasses import dataclass

REPAIR_LOG_BYTES = 64 << 20  # of a node's repair log, from which other nodes read missed messages
REPAIR_LOG_SECONDS = 60.0
SEGMENTS = 512  # of a full log


@dataclass(eq=False, slots=True)
class Segment:
    """Consecutive entries that are trimmed together."""

    first: bytes  # id of the first
    size: int
    began: float
    ended: float


class LogBounds:
    """The bounds of a log that this node writes.

    A log may have millions of entries, so sizes and ages are recorded per segment.
    """

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self._segments: deque[Segment] = deque()
        self.size = 0

    def add(self, entry_id: bytes, size: int) -> None:
        """Count an entry that is about to be written."""
        now = time.monotonic()
        self.size += size
        if self._segments:
            last = self._segments[-1]
            if last.size + size <= self.max_bytes / SEGMENTS and now - last.began <= self.max_seconds / SEGMENTS:
                last.size += size
                last.ended = now
                return
        self._segments.append(Segment(entry_id, size, now, now))

    def oldest(self) -> bytes:
        """The id of the oldest entry to keep."""
        now, known = time.monotonic(), self._segments
        while len(known) > 1 and (self.size > self.max_bytes or now - known[0].ended > self.max_seconds):
            self.size -= known.popleft().size
        return known[0].first if known else b"0-0"

    def halve(self, waiting: int) -> bool:
        """Release the older half of the written bytes; the last `waiting` bytes are not written yet.

        Returns whether there was anything to release.
        """
        kept = self.size - (self.size - waiting) // 2
        before = self.size
        while len(self._segments) > 1 and self.size - self._segments[0].size >= kept:
            self.size -= self._segments.popleft().size
        return self.size < before

    def renew(self) -> None:
        """Entries count as new: while the link was broken, other nodes could not read them."""
        now = time.monotonic()
        for segment in self._segments:
            segment.ended = now
