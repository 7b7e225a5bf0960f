"""Lease: how long this node may serve clients without confirming its membership.

While the process of a node stands still (SIGSTOP, a paused machine), other nodes may declare it dead and take over its
sessions. So when its lease has expired, a node serves no client and processes no push until Redis has confirmed that it
is still a member.

While Redis is away no node can declare another one dead, and each serves its clients without a lease. But Redis may be
back while the process stands still. So such a node, too, serves no client at first. If the link is not repaired soon,
it closes its persistent clients, and serves the others. And any node closes them some time after its link was lost, so
that they connect to nodes that have one.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from ..._speedups.net.reactor import Reactor
from ...broker import logs
from ..peers.node_link import NodeLink
from ..redis.link import Reply
from ..state import Membership, State
from .leases import OneLease

USED = 0.9  # of the lease: after that the node counts itself as expired, before others do
PACE = 2.5  # seconds after a heartbeat: before a turn that begins later the clock of the cluster is set
STILL = 0.65  # likewise while Redis is away: after it is back, the next attempt to reach it may begin 0.25 later
AWAY_LEASES = 3  # after which persistent clients are closed, if the machine of Redis is reachable

log = logs.get("flockmq.cluster")


class Lease:
    """The lease of a node.

    Args:
        seconds: its length.
        timeout: seconds that the confirmation may take, and then a new link.
        loop: of the node.
        reactor: of the node.
        link: of the node.
        membership: of the node.
        close_persistent: closes the connections of persistent sessions, for this reason.
    """

    def __init__(
        self,
        seconds: float,
        timeout: float,
        *,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor | OneLease,
        link: NodeLink,
        membership: Membership,
        close_persistent: Callable[[str], object],
    ) -> None:
        self.seconds = seconds
        self.valid_until = 0.0  # monotonic
        self._timeout = timeout
        self._loop = loop
        self._reactor = reactor
        self._link = link
        self._membership = membership
        self._close_persistent = close_persistent
        self._timer: asyncio.TimerHandle | None = None  # ends the link, or the wait for a new one; clients are unserved
        self._refusal = ""  # the error with which Redis replied to the last heartbeat
        self._still_at = 0.0  # monotonic: without a tick until then a node without a link has stood still
        self._lost_at = 0.0  # monotonic: when the link was lost

    def renew(self, sent_at: float) -> None:
        """Redis has replied to a heartbeat that was sent at this time."""
        self._refusal = ""
        self.valid_until = sent_at + self.seconds * USED
        self._serve_until(sent_at + PACE)

    def _serve_until(self, end: float) -> None:
        self._reactor.set_lease(min(end, self.valid_until) - time.monotonic())

    def is_confirmed_by(self, sent_at: float) -> bool:
        """Whether a heartbeat that was sent at this time, and had its reply, still confirms the membership."""
        return time.monotonic() < sent_at + self.seconds * USED

    def refused(self, error: str) -> None:
        """Redis has replied to a heartbeat with an error, so the lease was not renewed."""
        self._refusal = error

    def expire(self, now: float) -> bool:
        """A turn begins long after the last heartbeat, so nobody is served in it. Suspend if the lease is over.

        Args:
            now: monotonic.

        Returns:
            Whether the clock of the cluster must be set before the next turn.
        """
        if self._membership.state is State.SUSPENDED:
            return False
        if now < self.valid_until:
            self._serve_until(now + PACE)
        elif self._membership.state is State.MEMBER:
            self.suspend()
        else:
            self._link.hang_up("this node stood still while it joined or left")
        return True

    def suspend(self) -> None:
        """The lease has expired: the process stood still, or Redis refuses. Confirm the membership before serving."""
        self._membership.become_suspended()
        if self._refusal:
            log.error("lease expired: Redis refuses heartbeats; no client is served for now", reason=self._refusal)
        else:
            log.warning("lease expired: this node stood still; confirming its membership before it serves clients")
        self._reactor.stop()
        self._link.call_function_first(partial(self._decide, time.monotonic()), "confirm")
        self._timer = self._loop.call_later(self._timeout, self._link.hang_up)

    def resume(self) -> None:
        """Serve clients again, if they were not served: the membership is confirmed, or the link is back."""
        if self._timer is not None and self._membership.serves:
            self._timer.cancel()
            self._timer = None
            self._reactor.start()

    def link_lost(self) -> None:
        """Redis is away: continue the work that needs no other node, unless the node stood still just now."""
        self._lost_at = time.monotonic()
        self._loop.call_later(self.valid_until - self._lost_at, self._close_persistent_if_due)
        if self._membership.state is State.STRANDED:
            self._wait_for_link()
        else:
            self._go_on(self._lost_at)

    def tick_without_redis(self, now: float) -> None:
        """Redis is away, and a quarter of a second has passed.

        Args:
            now: monotonic.
        """
        self.look_for_pause(now)
        self._close_persistent_if_due()

    def look_for_pause(self, now: float) -> None:
        """Redis is away. Has the node stood still since the last call? Then others may have declared it dead.

        Args:
            now: monotonic.
        """
        if self._membership.state is not State.CUT_OFF:
            return
        if now <= self._still_at:
            self._go_on(now)
            return
        self._membership.become_stranded()
        log.warning("this node stood still while Redis was away; it serves no client until it has reached Redis")
        self._reactor.stop()
        self._wait_for_link()

    def _close_persistent_if_due(self) -> None:
        """Close the persistent clients if Redis has been away for some time: they are to connect to other nodes."""
        if not self._membership.has_lost_link:
            return
        away = self._lost_at + self.seconds * AWAY_LEASES
        shown = self._link.reached_at + self.seconds * USED  # Redis may have been there right after that
        deadline = min(away, max(shown, self.valid_until))
        if time.monotonic() >= deadline:
            self._close_persistent("this node has lost the others")

    def _go_on(self, now: float) -> None:
        self._still_at = now + self.seconds * STILL
        self._reactor.set_lease(self.seconds * STILL)

    def _wait_for_link(self) -> None:
        """Serve no client until the link is repaired, for a limited time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._timeout, self._give_up)

    def _give_up(self) -> None:
        """Redis stays away: other nodes may serve the persistent sessions, so this one must not."""
        if self._membership.state is State.STRANDED:
            self._close_persistent("this node can't confirm its membership")
            self._membership.give_up_waiting()
            self._go_on(time.monotonic())
            self.resume()

    def _decide(self, sent_at: float, reply: Reply) -> bool:
        """Whether to process the replies and pushes that arrived while the node stood still."""
        if not isinstance(reply, list):
            self._link.hang_up(str(reply))
        elif reply[0] == b"gone":
            self._membership.become_fenced("it stood still, and another node declared it dead")
        elif not self.is_confirmed_by(sent_at):
            self._link.hang_up("the confirmation of the membership came too late")
        else:
            self._membership.become_confirmed()
            self.renew(sent_at)
            self.resume()
            return True
        return False
