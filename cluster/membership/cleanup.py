"""Cleanup: the node's share of the work on state that dead nodes and absent clients have left in Redis."""

from collections.abc import Callable

from cluster.peers.node_link import NodeLink
from cluster.redis.link import Reply, ignore

CLEANUP_SECONDS = 5.0
AT_ONCE = 1000  # sessions per call


class Cleanup:
    """Marks sessions of dead nodes as offline, trims the logs of nodes that have left, ends expired sessions.

    Args:
        link: of this node.
        session_expiry: returns the seconds after which an absent client's session ends; 0 = never.
    """

    def __init__(self, link: NodeLink, session_expiry: Callable[[], float]) -> None:
        self._link = link
        self._session_expiry = session_expiry
        self._due = self._expiry_due = 0.0

    def start_soon(self) -> None:
        """A node was declared dead: clean up at the next tick."""
        self._due = 0.0

    def tick(self, now: float) -> None:
        """Call the functions that are due."""
        if now >= self._due:
            self._due = now + CLEANUP_SECONDS
            self._link.function(self._tidied, "tidy", AT_ONCE, as_node=False)
            self._link.function(ignore, "tidy_logs", as_node=False)
        expiry = self._session_expiry()
        if expiry and now >= self._expiry_due:
            self._expiry_due = now + min(CLEANUP_SECONDS, expiry / 2)
            self._link.function(ignore, "expire", int(expiry), AT_ONCE)

    def _tidied(self, reply: Reply) -> None:
        if isinstance(reply, int) and reply:  # there may be more
            self._due = 0.0
