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
        self._applied: dict[bytes, int] = {}  # by node, as it has reported itself
        self._applied_by_all = 0  # as Redis has counted
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    def __len__(self) -> int:
        """The number of the other nodes."""
        return len(self._applied)

    @property
    def wanted(self) -> int:
        """The last change that something waits for; 0 = nothing waits."""
        return self._waiting[-1][0] if self._waiting else 0

    @property
    def is_behind(self) -> bool:
        """Whether a node may lack a change of this node, or Redis does."""
        return self._turn.sealed > self._turn.committed or self._last_change > self._least

    @property
    def _least(self) -> int:
        """The last change of this node that all nodes have applied, or a later change."""
        return max(min(self._applied.values(), default=self._last_change), self._applied_by_all)

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

    def all_applied(self, change: int) -> None:
        """All nodes have applied all changes up to this one."""
        self._applied_by_all = max(self._applied_by_all, change)
        self._advance()

    def when_applied(self, done: Callable[[], object], shards: int = 0, late: object = None) -> None:
        """Call `done` when everything recorded so far is committed, and all nodes have applied it.

        With one shard; for the other arguments see `Flush.when_applied`.
        """

        def committed() -> None:
            self.when_last_applied(done)

        if len(self._journal) or self._turn.sealed > self._turn.committed:
            self._turn.after_commit(committed)
        else:  # the changes of other nodes before this call must be applied here, too
            self._link.call(lambda reply: committed(), "PING")

    def when_last_applied(self, done: Callable[[], object]) -> None:
        """Call `done` when all nodes have applied the changes that this node has made."""
        self._waiting.append((self._last_change, done))
        self._advance()

    def _advance(self) -> None:
        if not self._waiting:
            return
        least = self._least
        while self._waiting and self._waiting[0][0] <= least:
            self._waiting.popleft()[1]()
