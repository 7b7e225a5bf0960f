"""Heartbeats: this node confirms its membership, and declares nodes dead whose heartbeats have ceased."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from ..._speedups.base.msgpack import pack
from ...broker import logs
from ..peers.liveness import is_gone
from ..peers.node_link import NodeLink
from ..redis.link import GONE, LOST_DATA, LinkLost, Reply, ReplyError
from ..replication.replica import Replica
from ..state import Membership, State
from .clock import ClusterClock
from .dead_nodes import DeadNodes
from .lease import Lease

HEARTBEATS_PER_LEASE = 4
MAX_SECONDS = 1.5  # between heartbeats: the clock of the cluster goes on for 3 s by itself (CLUSTER.md, The clock)

log = logs.get("flockmq.cluster")


class Heartbeat:
    """The heartbeats of this node, and its judgement on the heartbeats of others.

    Args:
        link: of this node.
        membership: of this node.
        lease: of this node.
        replica: the replicated state of this node.
        dead_nodes: of this node.
        clock: of the cluster, as this node has it.
        describe: returns the description of this node.
    """

    def __init__(
        self,
        link: NodeLink,
        membership: Membership,
        *,
        lease: Lease,
        replica: Replica,
        dead_nodes: DeadNodes,
        clock: ClusterClock,
        describe: Callable[[], Mapping[str, str | int]],
    ) -> None:
        self._link = link
        self._membership = membership
        self._lease = lease
        self._members = replica.members
        self._changes = replica.changes
        self._dead_nodes = dead_nodes
        self._clock = clock
        self._describe = describe
        self._interval = min(lease.seconds / HEARTBEATS_PER_LEASE, MAX_SECONDS)
        self._due = 0.0

    def description(self) -> bytes:
        """The description of this node, as an argument of a function."""
        return pack([str(field) for pair in self._describe().items() for field in pair])

    def _beat(self) -> tuple[float, int, bytes]:
        """The time up to which a heartbeat counts, and its arguments."""
        elapsed, until = self._clock.elapsed()
        return until, elapsed, self.description()

    def begin(self) -> None:
        """The node is up to date: its lease begins."""
        self._lease.renew(time.monotonic())

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is due."""
        if now >= self._due:
            self._due = now + self._interval
            until, *arguments = self._beat()
            self._link.function(partial(self._replied, now, until), "beat", *arguments)

    async def send_if_due(self) -> None:
        """As `tick`, and wait for the reply; for long reads.

        While the link is repaired, the heartbeat only shows that the node lives. An ordinary one would end the time in
        which Redis refuses claims of connections that are older than others.
        """
        if time.monotonic() <= self._due:
            return
        if self._membership.has_lost_link:
            self._due = time.monotonic() + self._interval
            reply = await self._link.ask_function("confirm")
            if reply[0] == b"gone":
                self._membership.become_fenced(GONE)
        else:
            await self.send()

    async def send(self) -> None:
        """Send a heartbeat, and wait for the reply."""
        sent_at = time.monotonic()
        self._due = sent_at + self._interval
        until, *arguments = self._beat()
        # Changes that follow the reply are newer than the number in it: processed first, they would seem lost to Redis.
        await self._link.ask_function_first(partial(self._replied, sent_at, until), "beat", *arguments)

    def _replied(self, sent_at: float, until: float, reply: Reply) -> None:
        if isinstance(reply, ReplyError):
            self._lease.refused(str(reply))
            return
        if isinstance(reply, LinkLost) or self._membership.is_over:
            return
        if reply[0] == b"gone":
            self._membership.become_fenced(GONE)
            return
        _, change, clock, due, heartbeats = reply
        if change < self._changes.last:
            self._membership.become_fenced(LOST_DATA)
            return
        if self._membership.state is State.JOINING:  # during a long read: it shows only that the node lives
            return
        self._lease.renew(sent_at)
        self._clock.count(until)
        self._clock.set(clock)
        if due:
            self._dead_nodes.take_due()
        counts = dict(zip(heartbeats[::2], heartbeats[1::2], strict=True))
        del counts[self._link.node_id]
        for node, count in self._members.check_heartbeats(counts, self._lease.seconds):
            log.warning("node is silent: declaring it dead", node=node.decode())
            self._dead_nodes.bury(node, count)
        for member in self._members:
            if is_gone(member.process) and member.node in counts:
                log.warning("node's process on this machine has died: declaring it dead", node=member.node.decode())
                self._dead_nodes.bury(member.node, counts[member.node])
