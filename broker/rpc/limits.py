"""How full the limits of this node are."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from ..._speedups.session.session import Session
from ..broker import Broker
from ..config.link import is_of_link
from ..coordination.coordinator import RedisUse
from ..core.calls import Arguments
from ..errors import NotNow
from ..limits import LIMITS, GroupUse, Limit, Measured, Use, fullest
from .node_view import NodeView
from .paging import SLICE

T = TypeVar("T")

OF_SESSIONS = {row.name: row.measure for row in LIMITS if row.measure is not None}
OF_GROUPS = [row for row in LIMITS if row.scope == "group"]
OF_TENANTS = [row for row in LIMITS if row.scope == "tenant"]
STORED = {"limits.max_queued_messages": "queued_messages", "limits.max_queued_bytes": "queued_bytes"}


async def find(view: NodeView, arguments: Arguments) -> list[dict[str, Any]]:
    """The limits in the order of the table: name, limit, use, and the name of the fullest one."""
    measured = await measure(view)
    return [describe(row, row.read(measured)) for row in LIMITS]


def describe(row: Limit, use: Use) -> dict[str, Any]:
    """A limit, for the API."""
    full = None if row.is_trimmed or use.full is None else round(use.full, 4)
    return {"name": row.name, "limit": use.limit, "used": use.used, "full": full, "whose": use.whose}


async def measure(view: NodeView) -> Measured:
    """All that the rows read. Sessions, groups and tenants are looked at in slices; packets are served in between."""
    broker = view.broker
    return Measured(
        broker=broker,
        sessions=await fullest_sessions(broker),
        fullest=await _groups(broker) | await _tenants(broker),
        links=view.links.described(),
        open_files=len(await asyncio.to_thread(os.listdir, "/proc/self/fd")),
        redis=await _redis(broker),
    )


async def _redis(broker: Broker) -> RedisUse | None:
    with suppress(NotNow):
        return await broker.coordinator.nodes.redis_use()
    return None


async def _slices(items: Iterable[T]) -> AsyncIterator[list[T]]:
    source: Iterator[T] = iter(items)
    while part := list(islice(source, SLICE)):
        yield part
        await asyncio.sleep(0)


async def fullest_sessions(broker: Broker) -> dict[str, tuple[Session, int]]:
    """The fullest session for each limit of sessions, and its figure."""
    found: dict[str, tuple[Session, int]] = {}
    async for part in _slices(broker.data_plane.sessions):
        clients = [session for session in part if not is_of_link(session.client_id)]
        for name, figure in OF_SESSIONS.items() if clients else ():
            session = max(clients, key=figure)
            if name not in found or figure(session) > found[name][1]:
                found[name] = session, figure(session)
    for name, field in STORED.items():  # in a cluster the rest of the queue is in Redis
        if name in found and found[name][1]:
            session, number = found[name]
            with suppress(NotNow):
                stored = (await broker.coordinator.sessions.stored([session.client_id])).get(session.client_id, {})
                found[name] = session, stored.get(field, number)
    return found


async def _groups(broker: Broker) -> dict[str, Use]:
    """The fullest group for each limit of groups."""
    found: dict[str, Use] = {}
    async for part in _slices(list(broker.data_plane.router.filters.groups.values())):
        stored: dict[bytes, tuple[int, int]] = {}
        with suppress(NotNow):
            stored = await broker.coordinator.groups.waiting([group.name for group in part])
        uses = []
        for group in part:
            messages, size = stored.get(group.name, (0, 0))
            settings = group.settings
            here = group.waiting + messages, group.waiting_size + size
            uses.append(GroupUse(group.name, *here, settings.max_messages, settings.max_bytes))
        _fold(OF_GROUPS, uses, found)
    return found


async def _tenants(broker: Broker) -> dict[str, Use]:
    """The fullest tenant for each limit of tenants."""
    found: dict[str, Use] = {}
    async for part in _slices(list(broker.data_plane.turn.tenants)):
        _fold(OF_TENANTS, part, found)
    return found


def _fold(rows: list[Limit], items: list[Any], found: dict[str, Use]) -> None:
    """Let `found` have the fullest of these items and of those before, by the names of the limits."""
    for row in rows:
        assert row.use_of is not None
        fullest_here = fullest(map(row.use_of, items))
        found[row.name] = fullest([found[row.name], fullest_here]) if row.name in found else fullest_here
