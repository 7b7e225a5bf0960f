"""Clients and sessions: search, describe, kick, end."""

from http import HTTPStatus
from typing import Any

from broker.admin.api import aggregate
from broker.admin.api.aggregate import call, failures, values
from broker.admin.api.operation import AFTER, CLIENT_ID, FAILURES, LIMIT, MAX_LIMIT, Operation, Request, listed
from broker.admin.api.schema import Schema, array, boolean, integer, record, text
from broker.admin.http.problems import missing

SESSION: dict[str, Schema] = {
    "client_id": text(),
    "connected": boolean(),
    "address": text("HOST:PORT; empty = not connected"),
    "username": text("as verified; empty = anonymous, or not connected"),
    "protocol": text(),
    "persistent": boolean(),
    "subscriptions": integer(),
    "queued_messages": integer("that it has not acknowledged"),
    "queued_bytes": integer(),
    "node": text("id of the node with this item"),
}
FILTERS = array(record({"filter": text(), "qos": integer()}))
ARGUMENTS: dict[str, Schema] = {
    "search": text("text to search for", maxLength=256, default=""),
    "by": text(
        "field: a part of client_id or username, or the start of address",
        default="client_id",
        enum=["client_id", "username", "address"],
    ),
    "after": {**AFTER, "default": ""},
    "limit": LIMIT,
}
ONE: dict[str, Schema] = {"client_id": CLIENT_ID}


async def clients(request: Request) -> dict[str, Any]:
    """The connected clients."""
    return await _listed(request, connected=True)


async def sessions(request: Request) -> dict[str, Any]:
    """All sessions with subscriptions or a client."""
    return await _listed(request, connected=False)


async def _listed(request: Request, *, connected: bool) -> dict[str, Any]:
    answers = await call(request.node, "clients", connected=connected, **request.arguments)
    found = aggregate.page(answers, request.arguments["limit"], "client_id")
    found["next"] = found["next"] and found["next"]["client_id"]
    if connected or len(answers) == 1:  # else several nodes list the same sessions
        found["total"] = sum(answer["total"] for answer in values(answers).values())
    return found


async def client(request: Request) -> dict[str, Any]:
    """One client with its subscriptions; for a disconnected one, with the queue from its store."""
    answers = await call(request.node, "client", limit=MAX_LIMIT, **request.arguments)
    found = aggregate.best(
        ({**value, "node": name} for name, value in values(answers).items() if value is not None),
        lambda item: item["client_id"],
    )
    stored = await request.node.broker.coordinator.stored_session(request.arguments["client_id"].encode())
    if not found and stored is None:
        raise missing("there is no session with this client identifier")
    if not found:
        found = [{**dict.fromkeys(("address", "username", "protocol", "node"), ""), **request.arguments}]
        found[0] |= {"connected": False, "persistent": True, "subscriptions": 0, "filters": []}
    if stored is not None and not found[0]["connected"]:
        found[0] |= stored
    return {**found[0], "failures": failures(answers)}


async def kick(request: Request) -> None:
    """End a connection."""
    if not any(values(await call(request.node, "kick", **request.arguments)).values()):
        raise missing("no such client is connected")


async def end(request: Request) -> None:
    """End a session, and its connection."""
    if not await request.node.broker.coordinator.end_session(request.arguments["client_id"].encode()):
        raise missing("there is no session with this client identifier")


OPERATIONS = (
    Operation(
        "GET",
        "/clients",
        "clients",
        "Connected clients, in the order of their identifiers.",
        clients,
        listed(record(SESSION)),
        arguments=ARGUMENTS,
    ),
    Operation(
        "GET",
        "/client",
        "client",
        "One client: its session and subscriptions.",
        client,
        record({**SESSION, "filters": FILTERS, "failures": FAILURES}),
        arguments=ONE,
        required=("client_id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "DELETE",
        "/client/connection",
        "kick",
        "End a client's connection; it may connect again.",
        kick,
        role="admin",
        arguments=ONE,
        required=("client_id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "GET",
        "/sessions",
        "sessions",
        "Sessions, whether their clients are connected or not.",
        sessions,
        listed(record(SESSION)),
        arguments=ARGUMENTS,
    ),
    Operation(
        "DELETE",
        "/session",
        "end_session",
        "End a session: its connection, subscriptions and queue.",
        end,
        role="admin",
        arguments=ONE,
        required=("client_id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
