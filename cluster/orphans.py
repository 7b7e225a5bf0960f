"""Orphans: the numbers of publications that dead nodes have given to a shard, until no node may repeat these.

A shard keeps a number until the node that gave the publication has it stored in all shards. If that node is dead,
another one may repeat the publication, as long as its record is there: in the shard of its client.
"""

from collections.abc import Sequence
from functools import partial

from .._speedups.base.msgpack import pack
from .._speedups.cluster.sharded_journal import shard_of
from .peers.node_link import NodeLink
from .redis.link import Reply, ignore

LOOK_SECONDS = 5.0
AT_ONCE = 200
AWAITED = b"q"  # the first byte of the number of a message that awaited PUBREL; of a will, the shard follows the first


class Orphans:
    """Removes the orphans of one shard.

    Args:
        link: of the shard.
        links: of all shards.
    """

    def __init__(self, link: NodeLink, links: Sequence[NodeLink]) -> None:
        self._link = link
        self._links = links
        self._look_at = 0.0

    def tick(self, now: float) -> None:
        """Look for orphans, if it is time."""
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._link.function(self._found, "orphans", AT_ONCE)

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
        return shard_of(number[9:], len(self._links)) if number[:1] == AWAITED else number[1]

    def _judge(self, numbers: list[bytes], reply: Reply) -> None:
        if isinstance(reply, list) and self._link.connected:
            over = [number for number, needed in zip(numbers, reply, strict=True) if not needed]
            if over:
                self._link.function(ignore, "forget", pack(over))
