"""Orphans: traces of dead nodes, until nothing that these have begun can be repeated.

A shard keeps the number of a publication until the node that gave it has the publication stored in all shards. If that
node is dead, another one may repeat the publication, as long as its record is there: in the shard of its client. And a
dead node may have put messages of a shared subscription into queues of other shards, without the end of its
assignments: these are in doubt until all other shards have been asked.
"""

from collections.abc import Sequence
from functools import partial

from .._speedups.base.msgpack import pack
from .._speedups.cluster.hand_over import open_number
from .._speedups.cluster.sharded_journal import shard_of
from .peers.node_link import NodeLink
from .redis.link import Reply, ignore

LOOK_SECONDS = 5.0
AT_ONCE = 200
AWAITED = b"q"  # the first byte of the number of a message that awaits PUBREL
OFFER = b"g"  # of a message of a group for a session; of a will, the shard follows the first byte


class Orphans:
    """Looks for what dead nodes have left in one shard.

    Args:
        link: of the shard.
        links: of all shards.
    """

    def __init__(self, link: NodeLink, links: Sequence[NodeLink]) -> None:
        self._link = link
        self._links = links
        self._look_at = 0.0

    def look_soon(self) -> None:
        """A node has died."""
        self._look_at = 0.0

    def tick(self, now: float) -> None:
        """Look, if it is time."""
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._link.function(self._found, "orphans", AT_ONCE)
            self._link.function(self._doubted, "in_doubt")

    # ---- numbers ----

    def _found(self, reply: Reply) -> None:
        if not isinstance(reply, list):
            return
        by_shard: dict[int, list[bytes]] = {}
        for number in reply:
            by_shard.setdefault(self._settling(number), []).append(number)
        for shard, numbers in by_shard.items():
            if self._links[shard].connected:
                self._links[shard].function(partial(self._judge, numbers), "needed", pack(numbers))

    def _settling(self, number: bytes) -> int:
        """The shard with the record of a publication."""
        if number[:1] == AWAITED:
            return shard_of(number[9:], len(self._links))
        if number[:1] == OFFER:
            return shard_of(open_number(number)[0], len(self._links))
        return number[1]

    def _judge(self, numbers: list[bytes], reply: Reply) -> None:
        if isinstance(reply, list) and self._link.connected:
            over = [number for number, needed in zip(numbers, reply, strict=True) if not needed]
            if over:
                self._link.function(ignore, "forget", pack(over))

    # ---- assignments ----

    def _doubted(self, reply: Reply) -> None:
        if not isinstance(reply, list) or not all(link.connected for link in self._links):
            return
        for node in reply:
            Doubt(node, self._link, [link for link in self._links if link is not self._link])


class Doubt:
    """Asks which assignments of a dead node have ended, and ends them; the others go back.

    Args:
        node: that is dead.
        link: of the shard of the assignments.
        others: links of the other shards.
    """

    def __init__(self, node: bytes, link: NodeLink, others: Sequence[NodeLink]) -> None:
        self._node = node
        self._link = link
        self._left = len(others)
        self._offered: list[list[object]] = []
        for other in others:
            other.function(self._answered, "offered_by", node)

    def _answered(self, reply: Reply) -> None:
        if isinstance(reply, list) and reply[0] == b"ok":  # else the next look asks again
            self._offered += reply[1]
            self._left -= 1
            if not self._left and self._link.connected:
                self._link.function(ignore, "end_doubt", self._node, pack(self._offered))
