"""Deliberate faults that mix up clusters, which one cluster alone can't notice: runs of several find them."""

from typing import Any

from flockmq.cluster.membership.data_loss import DataLoss
from flockmq.cluster.redis.clients import RedisAddress
from flockmq.cluster.redis.keys import Keys
from tests.simulation.mutation import Mutation


def fear_all_losses(find: Any) -> Any:
    """Of DataLoss: a node finds each loss that any node of the process has found."""
    losses: list[str] = []

    async def found(self: DataLoss, seq: int, change: int, calls: int) -> str:
        if own := await find(self, seq, change, calls):
            losses.append(own)
        return own or "".join(losses[:1])

    return found


def first_server(endpoint: Any) -> Any:
    """Of RedisAddress: each node connects to the same Redis."""

    async def found(self: RedisAddress, *_: float) -> Any:
        return "redis0", self.hosts[0][1]

    return found


def one_channel(init: Any) -> Any:
    """Of Keys: the channel of all nodes has no prefix."""

    def made(self: Keys, prefix: str, in_slot: bool = False) -> None:
        init(self, prefix, in_slot)
        self.all = b"mq:all"

    return made


MIXED_CLUSTERS = (
    Mutation(
        "loss at another Redis",
        "G8",
        "a node rejoins when another Redis has lost data",
        methods=((DataLoss, "find", fear_all_losses),),
        needs_several=True,
    ),
    Mutation(
        "another Redis",
        "G1",
        "the nodes of all clusters connect to one Redis",
        methods=((RedisAddress, "endpoint", first_server),),
        needs_several=True,
    ),
    Mutation(
        "key without a prefix",
        "G5",
        "the epochs of all clusters are counted by one key",
        lua=(("redis.call('INCRBY', prefix .. 'epoch', #list)", "redis.call('INCRBY', 'mq:epoch', #list)"),),
        needs_several=True,
    ),
    Mutation(
        "channel without a prefix",
        "G1",
        "notifications of a function go to the node's channel in another cluster",
        lua=(
            (
                "  publish(prefix .. 'to:' .. node, cmsgpack.pack({...}))",
                "  publish('mq:to:' .. node, cmsgpack.pack({...}))",
            ),
        ),
        needs_several=True,
    ),
    Mutation(
        "one channel for all",
        "G4",
        "the nodes of all clusters at a Redis get the changes of each",
        methods=((Keys, "__init__", one_channel),),
        needs_several=True,
    ),
    Mutation(
        "processes counted for one",
        "G8",
        "a process of Redis is counted for the first cluster that calls a function, and for no other",
        lua=(("  if is_back or not starts.of[prefix] then\n", "  if is_back or not next(starts.of) then\n"),),
        needs_several=True,
    ),
)
