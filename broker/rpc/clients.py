"""Calls about clients and sessions: search, describe, kick; their wills that wait."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.session.session import Session
from ..coordination.coordinator import DelayedWills, StoredSessions
from ..core.calls import Arguments
from ..core.data_plane import DataPlane
from ..core.sessions import Record
from ..core.subscription_options import MAXIMUM_QOS, NO_LOCAL, RETAIN_AS_PUBLISHED
from .paging import first, in_scope

Match = Callable[[Session | Record], bool]

UNLIMITED = 0xFFFFFFFF  # Maximum Packet Size of a client that has none


async def find(data_plane: DataPlane, stored: StoredSessions, arguments: Arguments) -> dict[str, Any]:
    """Sessions in the order of their client ids: of connected clients, or all.

    Arguments: `connected` (only those), `by` and `search` (a part of client_id or username, the start of address),
    `after` (a client id), `limit`, and the scope of client ids, which are searched behind its prefix.
    """
    is_own, hidden = in_scope(arguments), len(arguments.get("prefix", "").encode())
    matches, connected = _match(arguments["by"], arguments["search"], hidden), arguments["connected"]
    found = await first(
        data_plane.sessions if connected else data_plane.sessions.all(),
        lambda session: is_own(session.client_id) and (session.owner is not None or not connected) and matches(session),
        lambda session: session.client_id,
        arguments["after"].encode(),
        arguments["limit"],
    )
    return {"items": [describe(session, data_plane, stored) for session in found.items], "total": found.total}


def _match(by: str, search: str, hidden: int) -> Match:
    wanted = search.encode()
    if not search:
        return lambda session: True
    if by == "username":
        return lambda session: search in (session.owner.identity.username or "" if session.owner is not None else "")
    if by == "address":
        return lambda session: session.owner is not None and session.owner.address.startswith(search)
    return lambda session: session.client_id.find(wanted, hidden) >= 0


def describe(session: Session | Record, data_plane: DataPlane, stored: StoredSessions) -> dict[str, Any]:
    """A session, in a list."""
    owner = session.owner
    expires_in = stored.expires_in(session.client_id)
    at_5 = owner is not None and session.level == 5
    largest = owner.maximum_packet_size if at_5 else UNLIMITED
    return {
        "client_id": session.client_id.decode(),
        "connected": owner is not None,
        "address": owner.address if owner is not None else "",
        "username": (owner.identity.username or "") if owner is not None else "",
        "protocol": {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}.get(session.level, "") if owner is not None else "",
        "level": session.level if owner is not None else 0,
        "receive_maximum": owner.window if at_5 else None,
        "maximum_packet_size": None if largest == UNLIMITED else largest,
        "authentication_method": owner.authentication.method if at_5 and owner.authentication is not None else None,
        "persistent": session.persistent,
        "session_expiry": session.expiry,
        "expires_in": expires_in,
        "subscriptions": session.subscriptions_held,
        "queued_messages": session.queue_length,
        "queued_bytes": session.queue_bytes,
        "stuck": data_plane.stuck_sessions.described(session) if isinstance(session, Session) else None,
    }


def one(data_plane: DataPlane, stored: StoredSessions, arguments: Arguments) -> dict[str, Any] | None:
    """The session of `client_id`, with its subscriptions."""
    session = data_plane.sessions.find(arguments["client_id"].encode())
    if session is None:
        return None
    return {
        **describe(session, data_plane, stored),
        "filters": list(filters(data_plane, session))[: arguments["limit"]],
    }


def filters(data_plane: DataPlane, session: Session | Record) -> Iterator[dict[str, Any]]:
    """The subscriptions of a session."""
    for name, options, identifier in sorted(data_plane.sessions.subscriptions_of(session)):
        yield {"filter": name.decode(), **described(options, identifier)}


def described(options: int, identifier: int) -> dict[str, Any]:
    """The options of a subscription, and its identifier; level 5."""
    return {
        "qos": options & MAXIMUM_QOS,
        "no_local": bool(options & NO_LOCAL),
        "retain_as_published": bool(options & RETAIN_AS_PUBLISHED),
        "identifier": identifier or None,
    }


async def subscriptions(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any]:
    """Subscriptions in the order of their filters, which contain `search`: of `client_id` if given, after
    `after` (filter and client id), `limit` of them; only of client ids in the scope."""
    wanted, client_id = arguments["search"].encode(), arguments["client_id"].encode()
    known = data_plane.sessions
    session = known.find(client_id)
    sessions: Iterable[Session | Record] = known.all() if not client_id else [session] if session is not None else []
    is_own = in_scope(arguments)
    rows = (
        (name, session.client_id, options, identifier)
        for session in sessions
        if is_own(session.client_id)
        for name, options, identifier in known.subscriptions_of(session)
    )
    after = tuple(part.encode() for part in arguments["after"])
    found = await first(rows, lambda row: wanted in row[0], lambda row: row[:2], after, arguments["limit"])
    items = [
        {"filter": name.decode(), "client_id": owner.decode(), **described(options, identifier)}
        for name, owner, options, identifier in found.items
    ]
    return {"items": items, "total": found.total}


def kick(data_plane: DataPlane, arguments: Arguments) -> bool:
    """End the connection of `client_id`; whether there was one.

    Other arguments: `reason_code` of DISCONNECT at level 5, and `reason`, both optional.
    """
    session = data_plane.sessions.get(arguments["client_id"].encode())
    if session is None or session.owner is None:
        return False
    kicked = close_reasons.KICKED_BY_OPERATOR
    code, reason = arguments.get("reason_code", kicked.code), arguments.get("reason", "")
    session.owner.close(CloseReason(code, f"{kicked}: {reason}" if reason else kicked))
    data_plane.end_turn()
    return True


async def wills(delayed: DelayedWills, arguments: Arguments) -> dict[str, Any]:
    """Delayed wills of ended connections by their client ids, those in the scope: after `after`, `limit`."""
    is_own = in_scope(arguments)
    found = await first(
        await delayed.waiting(),
        lambda row: is_own(row[0]),
        lambda row: row[0],
        arguments["after"].encode(),
        arguments["limit"],
    )
    items = [
        {
            "client_id": client_id.decode(),
            "topic": will.topic.decode(),
            "qos": will.qos,
            "retain": will.retain,
            "bytes": len(will.payload),
            "due_in": seconds,
        }
        for client_id, will, seconds in found.items
    ]
    return {"items": items, "total": found.total}


async def cancel_will(delayed: DelayedWills, arguments: Arguments) -> bool:
    """Discard the delayed will of `client_id`; whether there was one."""
    return await delayed.cancel(arguments["client_id"].encode())
