"""The state of a cluster with several shards, as one."""

from collections.abc import Iterator
from itertools import chain, count

from ..._speedups.cluster.sharded_journal import shard_of
from .redis_state import RedisState
from .state import State, StoredDelayed, StoredGroup, StoredMessage, StoredSession, StoredWill, Waiting


class ShardedState(State):
    """The state of all shards, by the clock of the first one.

    Args:
        shards: in their order.
    """

    def __init__(self, shards: list[RedisState]) -> None:
        self._shards = shards
        for shard in shards[1:]:
            shard.follow(shards[0])

    @property
    def clock(self) -> int:
        return self._shards[0].clock

    @property
    def is_empty(self) -> bool:
        return all(shard.is_empty for shard in self._shards)

    def declarations(self) -> dict[bytes, bytes]:
        return {name: text for shard in self._shards for name, text in shard.declarations().items()}

    def sessions(self) -> Iterator[StoredSession]:
        numbers = count(1)  # a shard numbers its own sessions
        for session in chain.from_iterable(shard.sessions() for shard in self._shards):
            session.number = next(numbers)
            yield session

    def groups(self) -> Iterator[StoredGroup]:
        handed_over = set().union(*(shard.handed_over() for shard in self._shards))
        on_their_way: dict[bytes, list[Waiting]] = {}
        for shard in self._shards:
            for name, messages in shard.on_their_way_back().items():
                on_their_way.setdefault(name, []).extend(messages)
        for name in dict.fromkeys(name for shard in self._shards for name in shard.group_names):
            group = self._shards[shard_of(name, len(self._shards))].group(name, handed_over)
            group.waiting = sorted([*group.waiting, *on_their_way.get(name, ())], key=lambda each: each.share.place)
            yield group

    def retained(self) -> Iterator[StoredMessage]:
        return chain.from_iterable(shard.retained() for shard in self._shards)

    def wills(self) -> Iterator[StoredWill]:
        return chain.from_iterable(shard.wills() for shard in self._shards)

    def delayed(self) -> Iterator[StoredDelayed]:
        return chain.from_iterable(shard.delayed() for shard in self._shards)

    def committed(self) -> dict[str, int]:
        return {name: number for shard in self._shards for name, number in shard.committed().items()}
