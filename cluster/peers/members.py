"""The other nodes: their heartbeats, the messages that each needs, and the progress of its messages to this node.

A node is alive while its heartbeat count grows. Each node measures that with its own clock, and only while it receives
replies from Redis itself. So no two clocks are compared, and no node is declared dead in an outage of Redis.
"""

import time
from collections.abc import Iterator

from _speedups.cluster.peer import Peer
from _speedups.session.turn import COUNTERS
from broker.core.data_plane import DataPlane
from cluster.peers import wire
from cluster.peers.node_link import NodeLink

MAX_UNCONFIRMED = 16 * 1024 * 1024  # bytes of QoS 0 on their way to a node
CREDIT_STEP = 1024 * 1024  # bytes after which a node confirms its position
HOLD_SECONDS = 2.0  # after which sending to a silent node is tried again
DROPPED_SLOW = COUNTERS.index("dropped_slow")


class Member:
    """Another node of the cluster, as this node sees it."""

    def __init__(self, node: bytes, peer: Peer) -> None:
        self.node = node
        self.peer = peer
        self.seen = 0  # the last entry of its log that was delivered here
        self.sent = 0  # bytes of QoS 0 sent to it ...
        self.confirmed = 0  # ... of which it has confirmed so many
        self.credited = 0  # the position in its QoS 0 that this node has confirmed
        self.process = b""  # the name of its process, for nodes on the same machine
        self.held_at = 0.0  # since when nothing is sent; 0 = sending

    def add_sent(self, size: int) -> None:
        """More bytes of QoS 0 are on their way to it. Above MAX_UNCONFIRMED, sending pauses."""
        self.sent += size
        if self.sent - self.confirmed > MAX_UNCONFIRMED and not self.held_at:
            self.held_at = time.monotonic()
            self.peer.hold(True)

    def confirm(self, position: int) -> None:
        """Everything up to this position has arrived, or counts as arrived: resume sending."""
        self.confirmed = max(self.confirmed, position)
        if self.held_at and self.sent - self.confirmed <= MAX_UNCONFIRMED:
            self.held_at = 0.0
            self.peer.hold(False)


class Members:
    """The other nodes that are alive.

    Args:
        plane: of this node.
        link: of this node.
    """

    def __init__(self, plane: DataPlane, link: NodeLink) -> None:
        self._plane = plane
        self._link = link
        self._members: dict[bytes, Member] = {}
        self._departed: dict[bytes, Member] = {}  # left while this node had no link
        self._heartbeats: dict[bytes, tuple[bytes, float]] = {}  # last count, and when it was first seen

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, node: bytes) -> Member | None:
        """The member with this id."""
        return self._members.get(node)

    def add(self, node: bytes, seen: int = 0) -> Member:
        """A node has joined; entries of its log up to `seen` don't matter here."""
        member = self._members.get(node)
        if member is None:

            def send(packets: bytes) -> None:
                found = self._members.get(node)
                if found is not None:  # else it has just left
                    self._send(found, packets)

            member = self._members[node] = Member(node, Peer(self._plane.turn, 0, node, send))
        member.seen = max(member.seen, seen)
        return member

    def remove(self, node: bytes) -> None:
        """A node has left, and its clients with it."""
        member = self._members.pop(node, None)
        self._heartbeats.pop(node, None)
        if member is not None:
            self._plane.router.filters.unsubscribe_all(member.peer)
            if not self._link.connected:
                self._departed[node] = member

    # ---- batches of messages ----

    def _send(self, member: Member, packets: bytes) -> None:
        """Send QoS 0 messages to a node; without a link they are lost."""
        if not self._link.connected:
            self._plane.turn.count(DROPPED_SLOW)
            return
        header = wire.batch_header(wire.QOS_0, self._link.node_id, member.sent + len(packets))
        self._link.publish(self._link.keys.to(member.node), header + packets)
        member.add_sent(len(packets))

    def receive(self, batch: wire.Batch) -> None:
        """Deliver a batch of another node's messages, unless this node has it already."""
        member = self._members.get(batch.node) or self._departed.get(batch.node)
        if member is not None and batch.logged:
            if batch.number <= member.seen:
                return
            member.seen = batch.number
        elif member is not None and batch.number - member.credited >= CREDIT_STEP:
            member.credited = batch.number
            self._link.publish(self._link.keys.to(batch.node), wire.credit(self._link.node_id, batch.number))
        self._plane.router.deliver(batch.packets)

    def receive_credit(self, node: bytes, position: int) -> None:
        """A node has confirmed its position in this node's QoS 0."""
        member = self._members.get(node)
        if member is not None:
            member.confirm(position)

    def resume_held(self, now: float) -> None:
        """Try nodes again that have confirmed nothing for HOLD_SECONDS."""
        for member in self:
            if member.held_at and now - member.held_at > HOLD_SECONDS:
                member.confirm(member.sent)

    @property
    def departed(self) -> list[Member]:
        """Nodes that left while this one had no link: it still has to read the end of their logs."""
        return list(self._departed.values())

    def forget_departed(self) -> None:
        """The logs of departed nodes are read, and all held batches are processed."""
        self._departed.clear()

    # ---- heartbeats ----

    def forget_heartbeats(self) -> None:
        """Redis was away: silence meanwhile means nothing."""
        self._heartbeats.clear()

    def check_heartbeats(self, counts: dict[bytes, bytes], lease: float) -> list[tuple[bytes, bytes]]:
        """Compare the heartbeat counts in Redis with those before.

        Returns the nodes whose count has not grown for a lease: (node, its count).
        """
        now = time.monotonic()
        dead = []
        for node, count in counts.items():
            last, since = self._heartbeats.get(node, (b"", now))
            if last != count:
                self._heartbeats[node] = (count, now)
            elif now - since > lease:
                dead.append((node, count))
        for node in self._heartbeats.keys() - counts.keys():
            del self._heartbeats[node]
        return dead
