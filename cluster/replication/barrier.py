"""Barrier: a client gets SUBACK when all nodes have applied the change that its subscription made (G4)."""

from collections import deque
from collections.abc import Callable

from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.session.turn import Turn
from ..peers.node_link import NodeLink


class Barrier:
    """The changes of this node that the other nodes have applied.

    Args:
        turn: of this node.
        journal: of this node.
        link: of this node.
    """

    def __init__(self, turn: Turn, journal: ClusterJournal, link: NodeLink) -> None:
        self._turn = turn
        self._journal = journal
        self._link = link
        self._last_change = 0  # of this node
        self._applied: dict[bytes, int] = {}
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    def made(self, change: int) -> None:
        """This node has made a change."""
        self._last_change = max(self._last_change, change)

    def node_joined(self, node: bytes, change: int) -> None:
        """A node has joined, and has applied all changes up to this one."""
        self._applied[node] = change

    def node_left(self, node: bytes) -> None:
        """A node has left: no change waits for it any more."""
        self._applied.pop(node, None)
        self._advance()

    def node_applied(self, node: bytes, change: int) -> None:
        """A node has applied all changes up to this one."""
        if self._applied.get(node, change) < change:
            self._applied[node] = change
            self._advance()

    def when_applied(self, done: Callable[[], object]) -> None:
        """Call `done` when everything recorded so far is committed, and all nodes have applied it."""

        def committed() -> None:
            self._waiting.append((self._last_change, done))
            self._advance()

        if len(self._journal) or self._turn.sealed > self._turn.committed:
            self._turn.after_commit(committed)
        else:  # the changes of other nodes before this call must be applied here, too
            self._link.call(lambda reply: committed(), "PING")

    def _advance(self) -> None:
        least = min(self._applied.values(), default=None)
        while self._waiting and (least is None or self._waiting[0][0] <= least):
            self._waiting.popleft()[1]()
