"""What a node tells of clients and their sessions, and how it lets them go."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from _speedups.session.session import Session
from broker.core.calls import Arguments
from broker.rpc.paging import first

if TYPE_CHECKING:
    from broker.broker import Broker

KICKED = "kicked by the operator"
Match = Callable[[Session], bool]


async def find(broker: "Broker", arguments: Arguments) -> dict[str, Any]:
    """Sessions in the order of their client ids: of connected clients, or all.

    Arguments: `connected` (only those), `by` and `search` (a part of client_id or username, the begin of address),
    `after` (a client id), `limit`.
    """
    matches, connected = _match(arguments["by"], arguments["search"]), arguments["connected"]
    found = await first(
        broker.sessions,
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
        "protocol": {3: "MQTT 3.1", 4: "MQTT 3.1.1"}.get(session.level, "") if owner is not None else "",
        "persistent": session.persistent,
        "subscriptions": session.subscriptions_held,
        "queued_messages": session.queue_length,
        "queued_bytes": session.queue_bytes,
    }


def one(broker: "Broker", arguments: Arguments) -> dict[str, Any] | None:
    """The session of `client_id`, with its subscriptions."""
    session = broker.sessions.get(arguments["client_id"].encode())
    if session is None:
        return None
    return {**describe(session), "filters": list(filters(broker, session))[: arguments["limit"]]}


def filters(broker: "Broker", session: Session) -> Iterator[dict[str, Any]]:
    """What a session has subscribed to."""
    for name, options in sorted(broker.router.filters.subscriptions_of(session)):
        yield {"filter": name.decode(), "qos": options & 3}


async def subscriptions(broker: "Broker", arguments: Arguments) -> dict[str, Any]:
    """Subscriptions in the order of their filters: those that hold `search`, of `client_id` if given, after
    `after` (filter and client id), `limit` of them."""
    wanted, client_id = arguments["search"].encode(), arguments["client_id"].encode()
    session = broker.sessions.get(client_id)
    sessions = list(broker.sessions) if not client_id else [session] if session is not None else []
    rows = (
        (name, session.client_id, options & 3)
        for session in sessions
        for name, options in broker.router.filters.subscriptions_of(session)
    )
    after = tuple(part.encode() for part in arguments["after"])
    found = await first(rows, lambda row: wanted in row[0], lambda row: row[:2], after, arguments["limit"])
    items = [{"filter": name.decode(), "client_id": who.decode(), "qos": qos} for name, who, qos in found.items]
    return {"items": items, "total": found.total}


def kick(broker: "Broker", arguments: Arguments) -> bool:
    """End the connection of `client_id`; whether there was one."""
    session = broker.sessions.get(arguments["client_id"].encode())
    if session is None or session.owner is None:
        return False
    session.owner.close(KICKED)
    broker.settle()
    return True
