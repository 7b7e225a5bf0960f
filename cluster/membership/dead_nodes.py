"""Asks Redis to bury dead nodes, and to end sessions and delayed wills that are due: this node's share."""

from collections.abc import Callable
from functools import partial

from ..peers.node_link import NodeLink
from ..redis.link import Reply, ignore
from ..replication.snapshot import pairs
from ..sessions.wills import Wills

CLEANUP_SECONDS = 5.0
AT_ONCE = 1000  # sessions per call
DUE_AT_ONCE = 100


class DeadNodes:
    """Declares nodes dead, marks their sessions as offline, trims logs of nodes that have left, ends expired sessions.

    Args:
        link: of this node.
        wills: of this node.
        session_expiry: returns the seconds after which an absent client's session ends; 0 = never.
        died: called with a node that is dead, before anything else that follows from it.
        several: whether there are several shards.
    """

    def __init__(
        self,
        link: NodeLink,
        wills: Wills,
        session_expiry: Callable[[], float],
        died: Callable[[bytes], object] = lambda node: None,
        *,
        several: bool = False,
    ) -> None:
        self._link = link
        self._wills = wills
        self._session_expiry = session_expiry
        self._died = died
        self._several = several
        self._due = self._expiry_due = 0.0

    def bury(self, node: bytes, count: bytes) -> None:
        """Declare a node dead, and clean up at the next tick.

        `count`: of its heartbeats, which must be the same still; empty: it is dead in another shard.
        """
        self._link.function(partial(self._buried, node, is_new=bool(count)), "bury", node, count, int(self._several))

    def _buried(self, node: bytes, reply: Reply, *, is_new: bool) -> None:
        if isinstance(reply, list) and reply[0] == b"ok":
            if is_new:
                self._died(node)
            for epoch, stored in pairs(reply[1]):
                self._wills.publish(epoch, stored)
            self._due = 0.0

    def tick(self, now: float) -> None:
        """Call the functions that are due."""
        if now >= self._due:
            self._due = now + CLEANUP_SECONDS
            self._link.function(self._tidied, "tidy", AT_ONCE)
            self._link.function(ignore, "tidy_logs")
        expiry = self._session_expiry()
        if expiry and now >= self._expiry_due:
            self._expiry_due = now + min(CLEANUP_SECONDS, expiry / 2)
            self._link.function(ignore, "expire", int(expiry), AT_ONCE)

    def take_due(self) -> None:
        """Sessions or delayed wills are due: end the sessions, and publish the wills that Redis hands to this node."""
        self._link.function(self._due_taken, "due", DUE_AT_ONCE)

    def _due_taken(self, reply: Reply) -> None:
        if isinstance(reply, list):
            for epoch, stored in pairs(reply[1]):
                self._wills.publish(epoch, stored)

    def _tidied(self, reply: Reply) -> None:
        if isinstance(reply, int) and reply:  # there may be more
            self._due = 0.0
