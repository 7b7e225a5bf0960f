"""The store of a node in a cluster with several shards: passes the blocks of a turn to the stores of its shards.

All that a turn gives is stored before the blocks of what ends with its publications are taken. A turn counts as stored
when all of its blocks are, in the order of the turns.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..._speedups.cluster.sharded_journal import ShardedBlock, ShardedJournal
from ..._speedups.log.message_log import MessageLog
from ...broker.storage.store import LogStore
from ..redis.store import RedisStore


@dataclass(eq=False, slots=True)
class Turn:
    """A turn that is not stored yet."""

    block: ShardedBlock
    given: int  # blocks under way
    ending: int = 0  # likewise
    ends: bool = field(default=False)  # the blocks of what ends are under way, or stored

    @property
    def is_stored(self) -> bool:
        """Whether all shards have it."""
        return self.ends and not self.given and not self.ending


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
        self._turns: deque[Turn] = deque()
        self._under_way: list[deque[tuple[Turn, bool]]] = [deque() for _ in stores]  # with whether the block ends
        self._confirm: Callable[[int], None] = lambda blocks: None

    def open(self) -> Iterator[bytes]:
        return iter(())

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm
        for shard, store in enumerate(self._stores):
            store.start(partial(self._stored, shard), call)

    def commit(self, block: Any) -> None:
        turn = Turn(block, len(block.given))
        self._turns.append(turn)
        for shard, given in block.given:
            self._under_way[shard].append((turn, False))
            self._stores[shard].commit(given)
        self._advance()

    def _stored(self, shard: int, blocks: int) -> None:
        """A shard has stored its next blocks."""
        for _ in range(blocks):
            turn, ends = self._under_way[shard].popleft()
            if ends:
                turn.ending -= 1
            else:
                turn.given -= 1
        self._advance()

    def _advance(self) -> None:
        """End the publications of the turns that are given, in their order, and confirm the turns that are stored."""
        for turn in self._turns:
            if turn.given:
                break
            if not turn.ends:
                turn.ends = True
                turn.ending = len(turn.block.ending)
                for shard, journal in turn.block.ending:
                    self._under_way[shard].append((turn, True))
                    self._stores[shard].commit(journal.take())
        stored = 0
        while self._turns and self._turns[0].is_stored:
            for shard, number in self._turns.popleft().block.numbers:
                self._journal.forget(shard, number)
            stored += 1
        if stored:
            self._confirm(stored)

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
