"""Lease: how long this node may serve clients without confirming its membership.

While the process of a node stands still (SIGSTOP, a paused machine), other nodes may declare it dead and take over its
sessions. So when its lease has expired, a node serves no client and processes no push until Redis has confirmed that it
is still a member.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from _speedups.net.reactor import Reactor
from broker import logs
from cluster.peers.node_link import NodeLink
from cluster.redis.link import Reply

USED = 0.9  # of the lease: after that the node counts itself as expired, before others do

log = logs.get("flockmq.cluster")


class Lease:
    """The lease of a node.

    Args:
        seconds: its length.
        timeout: seconds that the confirmation may take.
        loop: of the node.
        reactor: of the node.
        link: of the node.
        on_fenced: called with the reason when the node is no longer a member.
    """

    def __init__(
        self,
        seconds: float,
        timeout: float,
        *,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor,
        link: NodeLink,
        on_fenced: Callable[[str], object],
    ) -> None:
        self.seconds = seconds
        self.valid_until = 0.0  # monotonic
        self.suspended = False  # no client is served until the membership is confirmed
        self._timeout = timeout
        self._loop = loop
        self._reactor = reactor
        self._link = link
        self._on_fenced = on_fenced
        self._timer: asyncio.TimerHandle | None = None  # ends the link if the confirmation takes too long

    def renew(self, sent_at: float) -> None:
        """Redis has replied to a heartbeat that was sent at this time."""
        self.valid_until = sent_at + self.seconds * USED
        self._reactor.set_lease(self.valid_until - time.monotonic())

    def suspend(self) -> None:
        """The lease has expired: the process stood still. Confirm the membership before serving clients."""
        if self.suspended:
            return
        self.suspended = True
        log.warning("lease expired: this node stood still; confirming its membership before it serves clients")
        self._reactor.stop()
        self._link.call_function_first(partial(self._decide, time.monotonic()), "beat")
        self._timer = self._loop.call_later(self._timeout, self._link.hang_up)

    def resume(self) -> None:
        """Serve clients again: the membership is confirmed, or Redis is away."""
        if self.suspended:
            self.suspended = False
            if self._timer is not None:
                self._timer.cancel()
            self._reactor.start()

    def link_lost(self) -> None:
        """Redis is away: continue the work that needs no other node."""
        self._reactor.set_lease(0)
        self.resume()

    def _decide(self, sent_at: float, reply: Reply) -> bool:
        """Whether to process the replies and pushes that arrived while the node stood still."""
        if isinstance(reply, list) and reply[0] != b"gone":
            self.renew(sent_at)
            self.resume()
            return True
        if isinstance(reply, list):
            self._on_fenced("it stood still, and another node declared it dead")
        else:
            self._link.hang_up()
        return False
