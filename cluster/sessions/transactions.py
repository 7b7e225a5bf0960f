"""The transactions of a cluster: their chunks wait in Redis, among the delayed messages."""

from collections.abc import Mapping, Sequence

from ..._speedups.base.msgpack import pack
from ..._speedups.cluster.message_codec import encode_message
from ...broker.config.tenants import limits_of
from ...broker.coordination.coordinator import Transactions
from ...broker.core import tenants
from ...broker.core.data_plane import DataPlane
from ...broker.core.transactions import Outcome, StagedPart, Transaction
from ..peers.node_link import NodeLink
from ..redis.link import away_is_not_now

EXPIRY_SECONDS = 10.0  # between looks of a node for parts that have expired
OUTCOMES = {
    b"ok": Outcome.DONE,
    b"again": Outcome.DONE,
    b"committed": Outcome.COMMITTED,
    b"gap": Outcome.MISSING,
    b"missing": Outcome.MISSING,
    b"full": Outcome.FULL,
}


class RedisTransactions(Transactions):
    """The transactions of a cluster.

    Args:
        plane: of this node.
        link: of this node.
    """

    def __init__(self, plane: DataPlane, link: NodeLink) -> None:
        self._plane = plane
        self._link = link
        self._expire_at = 0.0

    def tick(self, now: float) -> None:
        """Drop parts that have waited for too long, if it is time to look."""
        if now >= self._expire_at and self._link.connected:
            self._expire_at = now + EXPIRY_SECONDS
            self._link.function(lambda reply: None, "expire_staged")

    async def stage(self, transaction: Transaction, part: str, chunk: int, rows: bytes, publisher: bytes) -> Outcome:
        config = self._plane.config
        of_tenant = limits_of(config.tenants, tenants.name_of(transaction.prefix)) if transaction.prefix else {}
        with away_is_not_now():
            (outcome,) = await self._link.ask_function(
                "stage",
                transaction.key,
                transaction.number,
                part,
                chunk,
                publisher,
                encode_message(transaction.topic(part, chunk), rows, 1, False, b""),
                round(config.limits.transaction_timeout * 1000),
                config.limits.max_delayed_messages,
                config.limits.max_delayed_bytes,
                of_tenant.get("max_delayed_messages", 0),
            )
            await self._link.copied(config.cluster.replicas)
        return OUTCOMES[outcome]

    async def commit(self, transaction: Transaction, parts: Mapping[str, int]) -> Outcome:
        listed = [each for pair in parts.items() for each in pair]
        with away_is_not_now():
            (outcome,) = await self._link.ask_function(
                "commit_transaction", transaction.key, transaction.number, pack(listed)
            )
            await self._link.copied(self._plane.config.cluster.replicas)
        return OUTCOMES[outcome]

    async def parts(self, limit: int) -> Sequence[StagedPart]:
        with away_is_not_now():
            rows = await self._link.ask_function("staged_parts", limit)
        return [_part(*row) for row in rows]


def _part(name: bytes, chunks: int, size: int, expires_in: int) -> StagedPart:
    """A row of `flockmq_staged_parts`."""
    key, number, part = name.decode().rsplit("/", 2)
    return StagedPart(Transaction.of_key(key, int(number)), part, chunks, size, expires_in)
