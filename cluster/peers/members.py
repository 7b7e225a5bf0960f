"""The other nodes: which have been silent for too long, and how far messages to and from each have come.

A node is alive while its heartbeat count grows. Each node measures that with its own clock, and only while it receives
replies from Redis itself. So no two clocks are compared, and no node is declared dead in an outage of Redis.
"""

import time
from collections.abc import Callable, Iterator

from ..._speedups.cluster.batches import Batches, Progress
from ..._speedups.cluster.peer import Peer
from ..._speedups.session.turn import Turn
from ...broker.core.data_plane import DataPlane
from . import wire
from .node_link import NodeLink

MAX_UNCONFIRMED = 16 * 1024 * 1024  # bytes of QoS 0 on their way to a node
HOLD_SECONDS = 2.0  # after which sending to a silent node is tried again


class Member(Progress):
    """Another node of the cluster, as this node sees it.

    Args:
        node: its id.
        turn: of this node.
        link: of this node.
    """

    def __init__(self, node: bytes, turn: Turn, link: NodeLink) -> None:
        self.node = node
        self.peer = Peer(turn, 0, node, self._send)
        self._link = link
        self._channel = link.keys.to(node)
        self._header = wire.batch_header(wire.QOS_0, link.node_id, 0)[: -wire.NUMBER.size]
        self.sent = 0  # bytes of QoS 0 sent to it ...
        self.confirmed = 0  # ... of which it has confirmed so many
        self.process = b""  # the name of its process, for nodes on the same machine
        self.held_at = 0.0  # since when nothing is sent; 0 = sending

    def _send(self, packets: bytes) -> bool:
        """Send QoS 0 messages. Above MAX_UNCONFIRMED bytes under way, sending pauses.

        Returns:
            False: there is no link, and the messages are lost.
        """
        if not self._link.connected:
            return False
        self.sent += len(packets)
        self._link.publish(self._channel, self._header + wire.NUMBER.pack(self.sent) + packets)
        if self.sent - self.confirmed > MAX_UNCONFIRMED and not self.held_at:
            self.held_at = time.monotonic()
            self.peer.hold(True)
        return True

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
        has_routes: whether the shard of this link has the routes of the node with this id.
    """

    def __init__(
        self, plane: DataPlane, link: NodeLink, has_routes: Callable[[bytes], bool] = lambda node: True
    ) -> None:
        self._plane = plane
        self._has_routes = has_routes
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
            member = self._members[node] = Member(node, self._plane.turn, self._link)
            if self._has_routes(node):
                self._plane.router.foreign.receivers.add_node(member.peer)
        member.seen = max(member.seen, seen)
        return member

    def remove(self, node: bytes) -> None:
        """A node has left, and its clients with it."""
        member = self._members.pop(node, None)
        self._heartbeats.pop(node, None)
        if member is not None:
            if self._has_routes(node):
                self._plane.router.foreign.node_left(member.peer)
            if not self._link.connected:
                self._departed[node] = member

    def is_first(self) -> bool:
        """Whether this node has the smallest id of the live ones."""
        return self._link.node_id <= min(self._members, default=b"\xff")

    # ---- batches of messages ----

    def batches(self, other: Callable[[bytes], object]) -> Batches:
        """Return what receives the messages to this node; `other` gets all messages but batches."""
        return Batches(self._plane.router, self._members, self._departed, self._confirm, other)

    def _confirm(self, node: bytes, position: int) -> None:
        self._link.publish(self._link.keys.to(node), wire.credit(self._link.node_id, position))

    def receive_credit(self, node: bytes, position: int) -> None:
        """A node has confirmed its position in this node's QoS 0."""
        member = self._members.get(node)
        if member is not None:
            member.confirm(position)

    def confirm_all(self) -> None:
        """The link was lost, and confirmations with it: all that was sent counts as arrived."""
        for member in self:
            member.confirm(member.sent)

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
        """Redis was away: silence in that time means nothing."""
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
