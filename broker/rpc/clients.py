"""Calls about clients and sessions: search, describe, kick."""

from collections.abc import Callable, Iterator
from typing import Any

from _speedups.protocol import close_reasons
from _speedups.session.session import Session
from broker.core.calls import Arguments
from broker.core.data_plane import DataPlane
from broker.rpc.paging import first

Match = Callable[[Session], bool]


async def find(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any]:
    """Sessions in the order of their client ids: of connected clients, or all.

    Arguments: `connected` (only those), `by` and `search` (a part of client_id or username, the start of address),
    `after` (a client id), `limit`.
    """
    matches, connected = _match(arguments["by"], arguments["search"]), arguments["connected"]
    found = await first(
        data_plane.sessions,
        lambda session: (session.owner is not None or not connected) and matches(session),
        lambda session: session.client_id,
        arguments["after"].encode(),
        arguments["limit"],
    )
    return {"items": [describe(session) for session in found.items], "total": found.total}


def _match(by: str, search: str) -> Match:
    wanted = search.encode()
    if not search:
        return lambda session: True
    if by == "username":
        return lambda session: search in (session.owner.identity.username or "" if session.owner is not None else "")
    if by == "address":
        return lambda session: session.owner is not None and session.owner.address.startswith(search)
    return lambda session: wanted in session.client_id


def describe(session: Session) -> dict[str, Any]:
    """A session, in a list."""
    owner = session.owner
    return {
        "client_id": session.client_id.decode(),
        "connected": owner is not None,
        "address": owner.address if owner is not None else "",
        "username": (owner.identity.username or "") if owner is not None else "",
        "protocol": {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}.get(session.level, "") if owner is not None else "",
        "persistent": session.persistent,
        "subscriptions": session.subscriptions_held,
        "queued_messages": session.queue_length,
        "queued_bytes": session.queue_bytes,
    }


def one(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any] | None:
    """The session of `client_id`, with its subscriptions."""
    session = data_plane.sessions.get(arguments["client_id"].encode())
    if session is None:
        return None
    return {**describe(session), "filters": list(filters(data_plane, session))[: arguments["limit"]]}


def filters(data_plane: DataPlane, session: Session) -> Iterator[dict[str, Any]]:
    """The subscriptions of a session."""
    for name, options in sorted(data_plane.router.filters.subscriptions_of(session)):
        yield {"filter": name.decode(), "qos": options & 3}


async def subscriptions(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any]:
    """Subscriptions in the order of their filters: those that contain `search`, of `client_id` if given, after
    `after` (filter and client id), `limit` of them."""
    wanted, client_id = arguments["search"].encode(), arguments["client_id"].encode()
    session = data_plane.sessions.get(client_id)
    sessions = list(data_plane.sessions) if not client_id else [session] if session is not None else []
    rows = (
        (name, session.client_id, options & 3)
        for session in sessions
        for name, options in data_plane.router.filters.subscriptions_of(session)
    )
    after = tuple(part.encode() for part in arguments["after"])
    found = await first(rows, lambda row: wanted in row[0], lambda row: row[:2], after, arguments["limit"])
    items = [{"filter": name.decode(), "client_id": owner.decode(), "qos": qos} for name, owner, qos in found.items]
    return {"items": items, "total": found.total}


def kick(data_plane: DataPlane, arguments: Arguments) -> bool:
    """End the connection of `client_id`; whether there was one."""
    session = data_plane.sessions.get(arguments["client_id"].encode())
    if session is None or session.owner is None:
        return False
    session.owner.close(close_reasons.KICKED_BY_OPERATOR)
    data_plane.end_turn()
    return True
