"""The newest entries of a log, kept in memory: live streams read each entry once for all of them."""

from collections import deque

from .message_log import Entry
from .start_position import Place

KEPT_BYTES = 4 << 20  # of the newest entries of each log


class Tail:
    """The newest entries of one log.

    Args:
        ms, total: the place of the entry before the first one here.
    """

    def __init__(self, ms: int, total: int) -> None:
        self.entries: deque[Entry] = deque()
        self.start_ms = ms  # of the entry before the first one here
        self.start = total  # bytes of the log before the first entry here
        self.last = f"{ms}-{total}"  # id of the newest entry
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """A new entry."""
        self.entries.append(entry)
        self.last = f"{entry.ms}-{entry.total}"
        self._bytes += len(entry.block)
        while self._bytes > KEPT_BYTES:
            oldest = self.entries.popleft()
            self._bytes -= len(oldest.block)
            self.start_ms, self.start = oldest.ms, oldest.total

    def find(self, place: Place | None, since: int) -> list[Entry] | None:
        """The entries to read for `MessageLog.read`; None: earlier ones may be among them."""
        if place is None:
            return self._after(self.start) if since // 1000 > self.start_ms else None
        return self._after(place.total) if not place.rows and place.total >= self.start else None

    def _after(self, total: int) -> list[Entry]:
        found: list[Entry] = []
        for entry in reversed(self.entries):
            if entry.total <= total:
                break
            found.append(entry)
        return found[::-1]
