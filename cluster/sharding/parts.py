"""The parts of a coordinator over several shards: each passes a call on to the shard that has the name."""

from asyncio import gather
from collections.abc import Sequence
from typing import Any

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ...broker.config.declared_group import DeclaredGroup
from ...broker.coordination.admission import Admission
from ...broker.coordination.coordinator import (
    DelayedWills,
    Done,
    Groups,
    QueueLimits,
    SessionOwner,
    StoredSessions,
    Subscribing,
)
from ...broker.core.will import Will
from ..shard import Shard
from .shards import Shards


class ShardedOwner(SessionOwner):
    """Passes a connection on to the shard of its client.

    Args:
        shards: of the node.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        self._shards.of(packet.client_id.encode()).owner.claim(admission, connection, packet)

    def _with_claim(self, connection: Connection) -> Shard | None:
        return next((shard for shard in self._shards if shard.claims.get(connection) is not None), None)

    def number_of(self, connection: Connection) -> int:
        shard = self._with_claim(connection)
        return shard.owner.number_of(connection) if shard is not None else 0

    def ended(self, connection: Connection, session: Session | None) -> None:
        if (shard := self._with_claim(connection)) is not None:
            shard.owner.ended(connection, session)

    def discard_will(self, connection: Connection) -> None:
        if (shard := self._with_claim(connection)) is not None:
            shard.owner.discard_will(connection)


class ShardedSubscribing(Subscribing):
    """Passes subscriptions on to the shard of their session.

    Args:
        shards: of the node.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def weight_of(self, connection: Connection, session: Session) -> int:
        return self._shards.of(session.client_id).subscribing.weight_of(connection, session)

    def has(self, connection: Connection, session: Session, topic_filter: bytes) -> bool:
        return self._shards.of(session.client_id).subscribing.has(connection, session, topic_filter)

    def subscribe(
        self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], identifier: int, done: Done
    ) -> None:
        self._shards.of(session.client_id).subscribing.subscribe(connection, session, filters, identifier, done)

    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        self._shards.of(session.client_id).subscribing.unsubscribe(connection, session, filters, done)


class ShardedSessions(StoredSessions):
    """The sessions of all shards.

    Args:
        shards: of the node.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def end(self, client_id: bytes) -> bool:
        return await self._shards.of(client_id).sessions.end(client_id)

    def limit_queue(self, client_id: bytes, limits: QueueLimits | None) -> None:
        self._shards.of(client_id).sessions.limit_queue(client_id, limits)

    async def stored(self, client_ids: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        parts = self._shards.divide(client_ids)
        found = await gather(*(shard.sessions.stored(names) for shard, names in parts))
        return {name: fields for part in found for name, fields in part.items()}

    def expires_in(self, client_id: bytes) -> None:
        return None


class ShardedGroups(Groups):
    """The shared subscriptions of all shards.

    Args:
        shards: of the node.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def waiting(self, groups: list[bytes]) -> dict[bytes, tuple[int, int]]:
        parts = self._shards.divide(groups)
        found = await gather(*(shard.groups.waiting(names) for shard, names in parts))
        return {name: counts for part in found for name, counts in part.items()}

    async def purge(self, name: bytes) -> int:
        return await self._shards.of(name).groups.purge(name)

    async def declare(self, group: DeclaredGroup) -> None:
        await self._shards.of(group.name.encode()).groups.declare(group)

    async def remove(self, name: bytes) -> int | None:
        return await self._shards.of(name).groups.remove(name)


class ShardedWills(DelayedWills):
    """The delayed wills of all shards.

    Args:
        shards: of the node.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def waiting(self) -> list[tuple[bytes, Will, int]]:
        found = await gather(*(shard.wills.waiting() for shard in self._shards))
        return [each for part in found for each in part]

    async def cancel(self, client_id: bytes) -> bool:
        return await self._shards.of(client_id).wills.cancel(client_id)
