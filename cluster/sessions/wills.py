"""Wills in a cluster: Redis keeps the will of each claim until a commit settles it (G6)."""

import struct
from collections.abc import Awaitable
from functools import partial

from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.cluster.message_codec import decode_message, encode_message
from ..._speedups.cluster.sharded_journal import ShardedJournal
from ..._speedups.session.counters import DELAYED_PUBLISHED
from ...broker.auth.stored_user import Away
from ...broker.core import will
from ...broker.core.data_plane import DataPlane
from ...broker.core.transactions import is_chunk
from ..peers.node_link import NodeLink
from ..redis.link import Reply
from .claim import Claims

HEAD = struct.Struct("<IIHH")  # progress, delay in seconds, bytes of the client id and of the author; both follow
LONGEST = 65_535
WAY_BACK = b"\0"  # with this begins the author of a message that goes back to its group: returns.lua
SHARD_BITS = 56  # epochs are below 2^53


def encode_will(client_id: bytes, found: will.Will) -> bytes:
    """A will as Redis keeps it. An author that does not fit is cut off, so that the will is refused later."""
    author = found.author[:LONGEST]
    head = HEAD.pack(0, found.delay, len(client_id), len(author))
    message = encode_message(found.topic, found.payload, found.qos, found.retain, found.properties)
    return head + client_id + author + message


def decode_will(stored: bytes) -> tuple[bytes, will.Will]:
    """The client id and the will in a value of Redis."""
    client_id, found, _ = open_will(stored)
    return client_id, found


def open_will(stored: bytes) -> tuple[bytes, will.Will, int]:
    """The client id and the will in a value of Redis, and the progress of its publication; 0: it did not begin."""
    progress, delay, client_size, author_size = HEAD.unpack_from(stored)
    client_id, author, message = (
        stored[HEAD.size :][:client_size],
        stored[HEAD.size + client_size :][:author_size],
        stored[HEAD.size + client_size + author_size :],
    )
    topic, payload, qos, retain, properties, _ = decode_message(message)
    return client_id, will.Will(topic, payload, qos, retain, properties, delay, author), progress


def way_back_of(stored: bytes) -> tuple[bytes, int, bytes] | None:
    """The group, the place and the message with its heads, if a message in the form of a will is on its way back."""
    _, _, client_size, author_size = HEAD.unpack_from(stored)
    author = stored[HEAD.size + client_size :][:author_size]
    if not author.startswith(WAY_BACK):
        return None
    place = author[1:9]
    return author[9:], int.from_bytes(place, "little"), stored[HEAD.size + client_size + author_size :]


class Wills:
    """The wills that this node settles: published, or discarded.

    Args:
        plane: of this node.
        link: of this node.
        journal: of this node.
        claims: of this node.
    """

    def __init__(self, plane: DataPlane, link: NodeLink, journal: ClusterJournal, claims: Claims) -> None:
        self._plane = plane
        self._link = link
        self._journal = journal
        self._claims = claims
        self._key = link.keys.wills(link.node_id)
        self.missed = 0  # replies that `publish_missed` waits for
        self._settling: set[int] = set()  # epochs of wills whose authors are looked up, or that Redis still has

    def number_of(self, epoch: int) -> int:
        """The number by which the router knows the will with this epoch."""
        return self._journal.shard << SHARD_BITS | epoch

    def settle(self, epoch: int) -> None:
        """Record, in the block of this turn, that the will of a claim is published or discarded."""
        self._settling.add(epoch)
        self._journal.will_settled(epoch)
        shards = self._plane.turn.journal.touched | 1 << self._journal.shard
        self._plane.turn.after_commit(partial(self._settling.discard, epoch), shards)

    def publish(self, epoch: int, stored: bytes) -> None:
        """Publish the will of a client without a connection; Redis has handed it to this node.

        It may be a message that goes back to a shared subscription of another shard.
        """
        if (way_back := way_back_of(stored)) is not None:
            self._send_back(epoch, *way_back)
            return
        client_id, found, progress = open_will(stored)
        if progress:  # some have it
            will.publish(self._plane.router, client_id, found, self.number_of(epoch), progress)
        elif found.author and (answer := self._plane.will_rights.look_up_author(found.author)) is not None:
            self._settling.add(epoch)
            self._plane.run(self._publish_after(answer, epoch, client_id, found))
            return
        else:
            will.publish_later(self._plane.router, self._plane.will_rights, client_id, found, self.number_of(epoch))
        self._end(epoch)

    def _send_back(self, epoch: int, group: bytes, place: int, message: bytes) -> None:
        journal = self._plane.turn.journal
        assert isinstance(journal, ShardedJournal)
        journal.send_back(self._journal.shard, epoch, group, place, message)
        self._end(epoch)

    async def _publish_after(self, answer: Awaitable[object], epoch: int, client_id: bytes, found: will.Will) -> None:
        try:
            await answer
        except Away:
            self._settling.discard(epoch)  # `publish_missed` follows when the node has joined, or its link is back
            return
        will.publish_later(self._plane.router, self._plane.will_rights, client_id, found, self.number_of(epoch))
        self._end(epoch)
        self._plane.end_turn()

    def _end(self, epoch: int) -> None:
        self.settle(epoch)
        if self._journal.full:
            self._plane.turn.seal()

    def publish_delayed(self, number: int, stored: bytes) -> None:
        """Publish a delayed message or a chunk of a transaction. Redis has handed it to this node as it does a will."""
        client_id, found, progress = open_will(stored)
        will.publish_message(self._plane.router, client_id, found, self.number_of(number), progress)
        self._plane.turn.count(DELAYED_PUBLISHED, not is_chunk(found.topic))
        self.settle(number)

    def publish_missed(self) -> None:
        """Publish the wills that Redis has handed to this node, and that it could not publish until now."""
        self.missed += 1
        self._link.call(self._listed, "HKEYS", self._key)

    def _listed(self, reply: Reply) -> None:
        self.missed -= 1
        if isinstance(reply, list):
            for epoch in sorted(map(int, reply)):  # delayed messages keep their order
                if self._is_missed(epoch):
                    self.missed += 1
                    self._link.call(partial(self._read, epoch), "HGET", self._key, epoch)

    def _read(self, epoch: int, reply: Reply) -> None:
        self.missed -= 1
        if isinstance(reply, bytes) and self._is_missed(epoch):
            self.publish(epoch, reply)

    def _is_missed(self, epoch: int) -> bool:
        claims = self._claims
        return claims.with_epoch(epoch) is None and epoch not in claims.releasing and epoch not in self._settling
