"""The store of a node in a cluster with several shards: passes the blocks of a turn to the stores of its shards.

A block of what ends with publications is taken when the shards to which these have given have all that they gave until
then. A waiter of the turn names shards: it is released when they have all of its turn and of the turns before, except
what also waits for others. So a shard that is away holds up only what depends on it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from ..._speedups.cluster.sharded_journal import Ending, ShardedJournal, size_of
from ..._speedups.log.message_log import MessageLog
from ..._speedups.session.turn import Turn
from ...broker.storage.store import LogStore
from ..redis.store import RedisStore

SLOW_SECONDS = 0.05  # after which a shard that has not stored a block makes no turn larger


@dataclass(eq=False, slots=True)
class Lane:
    """Blocks that are stored in the order of their turns.

    Attributes:
        shards: that have to reply before one of them is stored, as bits.
        turns: the numbers of the turns of blocks that are not stored yet.
        endings: second blocks that are not taken yet, with the numbers of their turns.
    """

    shards: int
    turns: deque[int] = field(default_factory=deque)
    endings: deque[tuple[int, Ending]] = field(default_factory=deque)

    @property
    def stored_up_to(self) -> float:
        """The last turn whose blocks are stored, and all before."""
        return self.turns[0] - 1 if self.turns else inf


@dataclass(eq=False, slots=True)
class UnderWay:
    """A block that is passed to its store."""

    lane: Lane
    sizes: list[tuple[int, int]]  # shards for which it counts, and bytes
    ending: Ending | None
    passed_at: float  # monotonic


class ShardedStore(LogStore):
    """Stores the turns of a node. The log of messages is in the first shard.

    Args:
        stores: of the shards.
        journal: of the node.
    """

    durable = True

    def __init__(self, stores: list[RedisStore], journal: ShardedJournal) -> None:
        self._stores = stores
        self._first = stores[0]
        self._journal = journal
        self._turns = 0  # that the store has got
        self._stored_turns = 0  # of which all shards have all, and of the turns before
        self._given = [Lane(1 << shard) for shard in range(len(stores))]
        self._ending: dict[tuple[int, int], Lane] = {}  # by shard and the shards that it depends on
        self._under_way: list[deque[UnderWay]] = [deque() for _ in stores]
        self._most_blocks = 0
        self._turn: Turn | None = None
        self._confirm: Callable[[int], None] = lambda blocks: None

    def attach(self, turn: Turn, most_blocks: int) -> None:
        """Connect the turn of the node.

        Args:
            turn: its waiters are released.
            most_blocks: of a shard that are under way while a turn ends with a block for each shard.
        """
        self._turn = turn
        self._most_blocks = most_blocks
        turn.follow_shards(self.stored_up_to, self._is_busy)

    def open(self) -> Iterator[bytes]:
        return iter(())

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm
        for shard, store in enumerate(self._stores):
            store.start(partial(self._stored, shard), call)

    def commit(self, block: Any) -> None:
        self._turns += 1
        for ending in block.ending:
            key = ending.shard, ending.depends
            lane = self._ending.get(key)
            if lane is None:
                lane = self._ending[key] = Lane(ending.depends | 1 << ending.shard)
            lane.turns.append(self._turns)
            lane.endings.append((self._turns, ending))
        for shard, _ in block.given:
            self._given[shard].turns.append(self._turns)
        for shard, given in block.given:
            self._pass_on(shard, given, self._given[shard], [(shard, size_of(given))])
        assert self._turn is not None
        for settling, where, number in block.numbers:
            self._turn.after_commit(partial(self._journal.forget, where, number), 1 << settling)
        self._advance()

    def _pass_on(
        self, shard: int, block: Any, lane: Lane, sizes: list[tuple[int, int]], ending: Ending | None = None
    ) -> None:
        self._under_way[shard].append(UnderWay(lane, sizes, ending, time.monotonic()))
        self._stores[shard].commit(block)

    def _stored(self, shard: int, blocks: int) -> None:
        """A shard has stored its next blocks."""
        assert self._turn is not None
        for _ in range(blocks):
            stored = self._under_way[shard].popleft()
            stored.lane.turns.popleft()
            for where, size in stored.sizes:
                self._turn.stored(where, size)
            if stored.ending is not None:
                for where, number in stored.ending.numbers:
                    self._journal.forget(where, number)
        self._advance()

    def _advance(self) -> None:
        """End the publications that are given, in the order of the turns, and release what waits for that."""
        # A connection's later publications depend on the same shards as the earlier ones, or on more.
        for shard, depends in sorted(self._ending, key=lambda key: key[1].bit_count()):
            lane = self._ending.get((shard, depends))
            if lane is None:
                continue
            given = min((each.stored_up_to for each in self._given if each.shards & depends), default=inf)
            while lane.endings and lane.endings[0][0] <= given:
                _, ending = lane.endings.popleft()
                self._pass_on(shard, ending.take(), lane, ending.sizes, ending)
            if not lane.turns:
                self._ending.pop((shard, depends), None)
        if (stored := self.stored_up_to(-1)) > self._stored_turns:
            self._confirm(stored - self._stored_turns)
            self._stored_turns = stored
        assert self._turn is not None
        self._turn.release_stored()

    def stored_up_to(self, shards: int) -> int:
        """The number of the last turn that is stored, with all before, as far as it needs no shards but these.

        Args:
            shards: as bits.
        """
        stored = inf
        for lane in (*self._given, *self._ending.values()):
            if not lane.shards & ~shards:
                stored = min(stored, lane.stored_up_to)
        return int(min(self._turns, stored))

    def _is_busy(self) -> bool:
        """Whether a shard that replies has enough to do: the records of the turn may wait for it."""
        since = time.monotonic() - SLOW_SECONDS
        return any(
            len(blocks) >= self._most_blocks and blocks[0].passed_at > since for blocks in self._under_way if blocks
        )

    @property
    def position(self) -> int:
        return self._first.position

    @property
    def size(self) -> int:
        return sum(store.size for store in self._stores)

    def forget_before(self, position: int) -> None:
        """Redis drops finished blocks itself."""

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def describe(self) -> str:
        return "Redis keeps the state"

    # ---- the log of messages ----

    def follow(self, log: MessageLog) -> None:
        self._first.follow(log)

    def bound_log(self, max_bytes: int, max_seconds: float, max_waiting: int) -> None:
        self._first.bound_log(max_bytes, max_seconds, max_waiting)

    @property
    def log_size(self) -> int:
        return self._first.log_size

    @property
    def log_waiting(self) -> int:
        return self._first.log_waiting

    def log(self, entry_id: bytes, block: bytes) -> None:
        self._first.log(entry_id, block)
