"""The transactions of a node alone: their chunks wait among the delayed messages, in memory and in the journal."""

import time
from collections.abc import Mapping, Sequence

from ..._speedups.session.journal import Journal
from ..core.data_plane import DataPlane
from ..core.transactions import Outcome, StagedPart, Transaction, split_topic
from .coordinator import Transactions

CHECK_SECONDS = 10.0  # between looks for parts that have expired
PARTS = 10_000  # of a name that may wait: a commit looks at all of them
REMEMBERED = 1000  # names of a user whose last transaction is known


class _Part:
    """The chunks of a part: their numbers among the delayed messages."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.chunks: list[int] = []
        self.size = 0
        self.began = time.monotonic()


class LocalTransactions(Transactions):
    """The transactions of a node alone.

    Args:
        data_plane: of the node.
        journal: of the node.
    """

    def __init__(self, data_plane: DataPlane, journal: Journal) -> None:
        self._data_plane = data_plane
        self._journal = journal
        self._delayed = data_plane.router.delayed
        self._parts: dict[str, dict[tuple[int, str], _Part]] = {}  # by the key of a name; by number and part
        # Numbers of the last transactions, by user and name; the name that was committed last is at the end.
        self._last: dict[str, dict[str, int]] = {}
        self._check_at = 0.0

    def start(self, committed: Mapping[str, int]) -> None:
        """Take the state of the store: the chunks among the delayed messages, and the last number of each key."""
        for key, number in committed.items():
            user, _, name = key.rpartition("/")
            self._last.setdefault(user, {})[name] = number
        for number, topic, size in self._delayed.staged():
            transaction, name, _ = split_topic(topic)
            self._add(transaction, name, number, size)

    def record_all(self) -> None:
        """Write the last numbers again, for a compaction."""
        for user, names in self._last.items():
            for name, number in names.items():
                self._journal.record_committed(f"{user}/{name}".encode(), number)

    def tick(self) -> None:
        """Drop parts that have waited for too long, if it is time to look."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        lifetime = self._data_plane.config.limits.transaction_timeout
        for key, parts in [*self._parts.items()]:
            self._drop(key, [place for place, part in parts.items() if part.began + lifetime <= now])

    async def stage(self, transaction: Transaction, part: str, chunk: int, rows: bytes, publisher: bytes) -> Outcome:
        if self._is_committed(transaction):
            return Outcome.COMMITTED
        parts = self._parts.get(transaction.key, {})
        held = parts.get((transaction.number, part))
        count = 0 if held is None else len(held.chunks)
        if chunk > count:
            return Outcome.MISSING
        if held is None and len(parts) >= PARTS:
            return Outcome.FULL
        if chunk == count:
            number = self._delayed.stage(transaction.topic(part, chunk), rows, publisher)
            if number is None:
                return Outcome.FULL
            self._add(transaction, part, number, len(rows))
        await self._data_plane.stored()
        return Outcome.DONE

    async def commit(self, transaction: Transaction, parts: Mapping[str, int]) -> Outcome:
        key, number = transaction.key, transaction.number
        if self._is_committed(transaction):
            await self._data_plane.stored()
            return Outcome.COMMITTED
        known = self._parts.get(key, {})
        chunks: set[int] = set()
        for name, count in parts.items():
            part = known.get((number, name))
            if part is None or len(part.chunks) != count:
                return Outcome.MISSING
            chunks.update(part.chunks)
        if not chunks <= {number for number, _, _ in self._delayed.staged()}:  # an operator has cancelled some
            return Outcome.MISSING
        for name in parts:
            del known[number, name]
        self._drop(key, [place for place in known if place[0] <= number])  # parts of attempts that failed
        user, _, own = key.rpartition("/")
        names = self._last.setdefault(user, {})
        names.pop(own, None)
        names[own] = number
        if len(names) > REMEMBERED:
            del names[next(iter(names))]
        self._journal.record_committed(key.encode(), number)
        self._delayed.release(chunks)
        await self._data_plane.stored()
        return Outcome.DONE

    async def parts(self, limit: int) -> Sequence[StagedPart]:
        lifetime = self._data_plane.config.limits.transaction_timeout
        now = time.monotonic()
        found = [
            StagedPart(part.transaction, name, len(part.chunks), part.size, round(1000 * (part.began + lifetime - now)))
            for parts in self._parts.values()
            for (_, name), part in parts.items()
        ]
        return sorted(found, key=lambda part: part.expires_in)[:limit]

    def _is_committed(self, transaction: Transaction) -> bool:
        user, _, name = transaction.key.rpartition("/")
        return transaction.number <= self._last.get(user, {}).get(name, -1)

    def _add(self, transaction: Transaction, name: str, number: int, size: int) -> None:
        parts = self._parts.setdefault(transaction.key, {})
        part = parts.setdefault((transaction.number, name), _Part(transaction))
        part.chunks.append(number)
        part.size += size
        part.began = time.monotonic()

    def _drop(self, key: str, places: Sequence[tuple[int, str]]) -> None:
        parts = self._parts.get(key, {})
        if places:
            self._delayed.drop({number for place in places for number in parts.pop(place).chunks})
        if not parts:
            self._parts.pop(key, None)
