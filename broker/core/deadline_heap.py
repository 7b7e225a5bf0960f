"""Deadlines by key: a heap whose replaced and removed entries are skipped when they are due."""

import heapq
from collections.abc import Iterator


class Deadlines:
    """One deadline for each key, in the time of the turn's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []
        self._of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._of)

    def get(self, key: bytes) -> int | None:
        """The deadline of a key, if it has one."""
        return self._of.get(key)

    def set(self, key: bytes, deadline: int) -> None:
        """Set the deadline of a key, in place of an earlier deadline."""
        if self._of.get(key) == deadline:
            return
        self._of[key] = deadline
        heapq.heappush(self._heap, (deadline, key))
        if len(self._heap) > 2 * len(self._of) + 64:
            self._heap = [(deadline, key) for key, deadline in self._of.items()]
            heapq.heapify(self._heap)

    def remove(self, key: bytes) -> bool:
        """Forget the deadline of a key; whether it had one."""
        return self._of.pop(key, None) is not None

    def due(self, now: int) -> Iterator[bytes]:
        """Remove and yield the keys whose deadlines have come, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            deadline, key = heapq.heappop(self._heap)
            if self._of.get(key) == deadline:
                del self._of[key]
                yield key
