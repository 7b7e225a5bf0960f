"""The shards of a node: which has a name, and the rules between them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from ..._speedups.cluster.sharded_journal import shard_of, topic_shard
from ..among import Among
from ..shard import Shard


class Shards:
    """The shards of a node, in their order; perhaps only one.

    Args:
        shards: at least one.
        among: the rules between them.
    """

    def __init__(self, shards: Sequence[Shard], among: Among) -> None:
        self._shards = list(shards)
        self.among = among
        self.first = self._shards[0]

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def of(self, name: bytes) -> Shard:
        """The shard that has this client id, name of a group, or topic name."""
        return self._shards[shard_of(name, len(self._shards))]

    def of_topic(self, topic: bytes) -> Shard:
        """The shard that has the retained message of a topic name."""
        return self._shards[topic_shard(topic, len(self._shards))]

    def divide(self, names: Iterable[bytes]) -> list[tuple[Shard, list[bytes]]]:
        """The names by their shards, without shards that have none."""
        found: dict[Shard, list[bytes]] = {}
        for name in names:
            found.setdefault(self.of(name), []).append(name)
        return [*found.items()]

    async def join(self, former_id: bytes) -> None:
        """Become a member of all shards; raises as `Shard.join`."""
        if len(self._shards) == 1:
            await self.first.join(former_id)
            return
        joined = [asyncio.ensure_future(shard.join(former_id)) for shard in self._shards]
        beating = asyncio.ensure_future(self._beat())
        try:
            await asyncio.gather(*joined)
        finally:
            for task in (*joined, beating):
                task.cancel()

    async def _beat(self) -> None:
        """Send heartbeats in the shards that this node has joined, while it joins others."""
        while True:
            await asyncio.sleep(0.25)
            for shard in self._shards:
                shard.beat()
