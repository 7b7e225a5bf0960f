"""When all nodes have applied a change: then, and not before, a client is told that it is subscribed (G4)."""

from collections import deque
from collections.abc import Callable


class Agreement:
    """What the other nodes have applied of this node's changes."""

    def __init__(self) -> None:
        self._applied: dict[bytes, int] = {}
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    def joined(self, node: bytes, change: int) -> None:
        """A node takes part from now on, and has applied what came before."""
        self._applied[node] = change

    def left(self, node: bytes) -> None:
        """A node is not waited for any more."""
        self._applied.pop(node, None)
        self._advance()

    def heard(self, node: bytes, change: int) -> None:
        """A node has applied all changes up to this one."""
        if self._applied.get(node, change) < change:
            self._applied[node] = change
            self._advance()

    def wait(self, change: int, done: Callable[[], object]) -> None:
        """Call `done` when all nodes have applied this change; at once if they have."""
        self._waiting.append((change, done))
        self._advance()

    def _advance(self) -> None:
        least = min(self._applied.values(), default=None)
        while self._waiting and (least is None or self._waiting[0][0] <= least):
            self._waiting.popleft()[1]()
