"""The other nodes: who is alive, what each has clients for, and how far each has been heard.

A node is alive while its count of heartbeats grows, as seen by the clock of whoever looks, and only while that one has
heard from Redis itself: no clock is compared with another, and an outage of Redis kills nobody.
"""

import time
from collections.abc import Callable, Iterator

from _speedups.cluster.peer import Peer
from broker.core.data_plane import DataPlane

CREDIT = 16 * 1024 * 1024  # bytes of QoS 0 that may be on their way to a node
CREDIT_STEP = 1024 * 1024  # bytes after which a node says how far it is
HOLD_SECONDS = 2.0  # after which a node that said nothing is tried again


class Member:
    """A node, as another one sees it."""

    def __init__(self, node: bytes, peer: Peer) -> None:
        self.node = node
        self.peer = peer
        self.seen = 0  # the last entry of its log that was delivered here
        self.sent = 0  # bytes of QoS 0 sent there ...
        self.taken = 0  # ... of which it has taken so many
        self.credited = 0  # how far we said we are with what it sends
        self.process = b""  # where it runs, for those on the same machine
        self.held_at = 0.0  # since when we send nothing; 0 = we send

    def was_sent(self, size: int) -> None:
        """So many bytes of QoS 0 more are on their way to it: nothing more for now, if that is much."""
        self.sent += size
        if self.sent - self.taken > CREDIT and not self.held_at:
            self.held_at = time.monotonic()
            self.peer.hold(True)

    def has_taken(self, position: int) -> None:
        """It has taken what was sent up to there, or shall be tried again."""
        self.taken = max(self.taken, position)
        if self.held_at and self.sent - self.taken <= CREDIT:
            self.held_at = 0.0
            self.peer.hold(False)


class Members:
    """The nodes that take part.

    Args:
        data_plane: of this node.
        send: called with a member and a batch of QoS 0 messages for it.
    """

    def __init__(self, data_plane: DataPlane, send: Callable[[Member, bytes], object]) -> None:
        self._data_plane = data_plane
        self._send = send
        self._members: dict[bytes, Member] = {}
        self._beats: dict[bytes, tuple[bytes, float]] = {}  # what was last heard, and when it was news

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, node: bytes) -> Member | None:
        """The member with this id."""
        return self._members.get(node)

    def add(self, node: bytes, seen: int = 0) -> Member:
        """A node takes part; `seen` is the last entry of its log that doesn't matter here."""
        member = self._members.get(node)
        if member is None:

            def send(batch: bytes) -> None:
                found = self._members.get(node)
                if found is not None:  # else it has just gone
                    self._send(found, batch)

            member = self._members[node] = Member(node, Peer(self._data_plane.turn, 0, node, send))
        member.seen = max(member.seen, seen)
        return member

    def remove(self, node: bytes) -> None:
        """A node is gone, and its clients with it."""
        member = self._members.pop(node, None)
        self._beats.pop(node, None)
        if member is not None:
            self._data_plane.router.filters.unsubscribe_all(member.peer)

    # ---- heartbeats ----

    def forget_beats(self) -> None:
        """Redis was away: nobody could be heard."""
        self._beats.clear()

    def heard(self, beats: dict[bytes, bytes], lease: float) -> list[tuple[bytes, bytes]]:
        """What Redis says of heartbeats. Returns those to be declared dead: (node, its last count)."""
        now = time.monotonic()
        dead = []
        for node, count in beats.items():
            last, since = self._beats.get(node, (b"", now))
            if last != count:
                self._beats[node] = (count, now)
            elif now - since > lease:
                dead.append((node, count))
        for node in self._beats.keys() - beats.keys():
            del self._beats[node]
        return dead
