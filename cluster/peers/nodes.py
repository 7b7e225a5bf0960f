"""The nodes of a cluster, as the broker's parts see them."""

from asyncio import gather
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from math import inf

from ...broker.coordination.coordinator import LogReader, Nodes, RedisUse, ShardState
from ...broker.core.calls import SECONDS, Arguments, RpcReply
from ..redis.link import LinkError, away_is_not_now, info_fields, is_forbidden
from ..redis.log_readers import log_reader
from ..redis.store import RedisStore
from ..state import Membership
from .members import Members
from .node_link import NodeLink
from .rpc import Rpc


class ClusterNodes(Nodes):
    """This node and the others.

    Args:
        links: of this node, of all shards.
        stores: likewise.
        membership: of this node in the first shard.
        members: the other nodes.
        rpc: of this node.
    """

    is_alone = False

    def __init__(
        self,
        links: Sequence[NodeLink],
        stores: Sequence[RedisStore],
        membership: Membership,
        members: Members,
        rpc: Rpc,
    ) -> None:
        self._links = links
        self._stores = stores
        self._link = links[0]
        self._membership = membership
        self._members = members
        self._rpc = rpc

    @property
    def node_id(self) -> str:
        return self._link.node_id.decode()

    @property
    def count(self) -> int:
        return 1 if self._membership.joins else len(self._members) + 1

    @property
    def connected(self) -> bool:
        return all(link.connected for link in self._links)

    @property
    def shards(self) -> list[ShardState]:
        if len(self._links) == 1:
            return []
        return [
            ShardState(link.connected, store.waiting, store.latency)
            for link, store in zip(self._links, self._stores, strict=True)
        ]

    def is_responsible(self, name: str) -> bool:
        """Whether this node has the highest weight for the name of all live ones."""
        nodes = [self._link.node_id, *(member.node for member in self._members)]
        return self._link.connected and max(nodes, key=partial(_weight, name)) == self._link.node_id

    async def call_all(self, method: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, RpcReply]:
        return await self._rpc.call_all(method, arguments, seconds)

    async def redis_use(self) -> RedisUse:
        with away_is_not_now():
            used = await gather(*(_use_of(link) for link in self._links))
        # The fullest one: when it has no memory left, its clients wait.
        fullest = max(used, key=lambda each: (each.memory or 0) / (each.max_memory or inf))
        return fullest._replace(sessions=sum(each.sessions for each in used))

    async def log_readers(self) -> list[LogReader]:
        with away_is_not_now():
            logs, readers = await self._link.ask_function("log_readers")
        known = [(node.decode(), written, held) for node, written, held in logs]
        return sorted(log_reader(name.decode(errors="replace"), record, known) for name, record in readers)


async def _use_of(link: NodeLink) -> RedisUse:
    """How full the Redis of one shard is."""
    sessions = int(await link.ask("SCARD", link.keys.sessions))
    try:
        found = info_fields(await link.ask("INFO", "memory"))
    except LinkError as error:
        if not is_forbidden(str(error)):
            raise
        found = {}
    memory, most = (int(found[name]) if name in found else None for name in ("used_memory", "maxmemory"))
    return RedisUse(sessions, memory, most or None)


def _weight(name: str, node: bytes) -> bytes:
    """The weight of a node for a name: spreads names over nodes, and moves few of them when nodes change."""
    return blake2b(name.encode() + node, digest_size=8).digest()
