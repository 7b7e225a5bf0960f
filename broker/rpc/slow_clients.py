"""Calls about clients that are too slow: the deepest queues, the oldest unacknowledged messages, the most losses.

The data path has nothing to do with it: queue lengths are there, ages are of `StuckSessions`, losses of `LostMessages`.
All are looked at in slices, so packets are served in between.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from ..._speedups.session.session import Session
from ..broker import Broker
from ..config.link import is_of_link
from ..core.calls import Arguments
from .paging import SLICE, in_scope

ORDERS = ("queue", "age", "drops")  # by which the slowest are chosen

Ranked = tuple[float, bytes]  # a figure, and a client id


async def find(broker: Broker, arguments: Arguments) -> list[dict[str, Any]]:
    """The slowest clients of this node, the slowest first; links are none of them.

    Arguments: `by` (one of ORDERS), `limit`, and the scope of client ids.
    """
    is_own = in_scope(arguments)
    rows: Iterable[Ranked]
    if arguments["by"] == "age":
        rows = broker.data_plane.stuck_sessions.ages()
    elif arguments["by"] == "drops":
        rows = ((lost.total, client_id) for client_id, lost in broker.lost_messages.items())
    else:
        rows = ((session.queue_length, session.client_id) for session in broker.data_plane.sessions)
    found = await _highest(rows, lambda name: is_own(name) and not is_of_link(name), arguments["limit"])
    return [_described(broker, client_id) for _, client_id in found]


async def _highest(rows: Iterable[Ranked], fits: Callable[[bytes], bool], limit: int) -> list[Ranked]:
    """Of the rows that fit and have a figure above 0, the ones with the highest figures."""
    found: list[Ranked] = []
    source = iter(rows)
    while part := list(islice(source, SLICE)):
        floor = found[-1][0] if len(found) == limit else 0
        better = [row for row in part if row[0] > floor and fits(row[1])]
        if better:
            found = heapq.nlargest(limit, found + better)
        await asyncio.sleep(0)
    return found


def _described(broker: Broker, client_id: bytes) -> dict[str, Any]:
    session, lost = broker.data_plane.sessions.get(client_id), broker.lost_messages.of(client_id)
    owner = session.owner if session is not None else None
    return {
        "client_id": client_id.decode(),
        "connected": owner is not None,
        "username": (owner.identity.username or "") if owner is not None else "",
        "address": owner.address if owner is not None else "",
        "queued_messages": session.queue_length if session is not None else 0,
        "queued_bytes": session.queue_bytes if session is not None else 0,
        "oldest_seconds": _age(broker, session) if session is not None else None,
        "dropped_messages": lost.total if lost is not None else 0,
        "dropped_queue_full": lost.queue_full if lost is not None else 0,
        "dropped_output_full": lost.output_full if lost is not None else 0,
        "dropped_ago": round(time.monotonic() - lost.last, 1) if lost is not None else None,
    }


def _age(broker: Broker, session: Session) -> int | None:
    return broker.data_plane.stuck_sessions.age_of(session.client_id)
