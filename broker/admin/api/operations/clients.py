"""Clients and sessions: search, describe, kick, end."""

from http import HTTPStatus
from typing import Any

from ....._speedups.codec.tables import PACKET_TYPES, REASON_CODES
from ...http.problems import missing, unfit
from ...http.tokens import OPERATOR
from .. import aggregate
from ..aggregate import call, failures, values
from ..operation import AFTER, CLIENT_ID, FAILURES, LIMIT, MAX_LIMIT, TENANT, Operation, Request, listed
from ..schema import Schema, array, boolean, integer, nullable, record, text

FAILURE = 0x80  # the first reason code of refusals

SESSION: dict[str, Schema] = {
    "client_id": text(),
    "connected": boolean(),
    "address": text("HOST:PORT; empty = not connected"),
    "username": text("as verified; empty = anonymous, or not connected"),
    "protocol": text(),
    "level": integer("of the protocol: 3, 4 or 5; 0 = not connected"),
    "receive_maximum": nullable(integer("unacknowledged messages that it takes; null: not MQTT 5.0")),
    "maximum_packet_size": nullable(integer("bytes; null: no limit")),
    "authentication_method": nullable(text("by which it has authenticated; null: not MQTT 5.0, or none named")),
    "persistent": boolean(),
    "session_expiry": nullable(
        integer("seconds that the session outlives its connection, 4294967295 = for ever; null: mqtt.session_expiry")
    ),
    "expires_in": nullable(integer("seconds until the session expires; null: never, or it is connected")),
    "subscriptions": integer(),
    "queued_messages": integer("that it has not acknowledged"),
    "queued_bytes": integer(),
    "stuck": nullable(
        record(
            {
                "packet_id": integer("of the message"),
                "topic": text("of the message; empty if PUBREC has come and PUBCOMP has not"),
                "seconds": integer("since the node has seen that others wait for it"),
                "waiting": integer("messages that wait"),
            },
            description="the message that it does not acknowledge while others wait; null: it did within "
            "limits.stuck_after",
        )
    ),
    "node": text("id of the node with the session; empty: it is not connected to a node of the cluster"),
}
SUBSCRIPTION: dict[str, Schema] = {
    "qos": integer(),
    "no_local": boolean("without messages of the client itself"),
    "retain_as_published": boolean("live messages keep their retain flag"),
    "identifier": nullable(integer("of the subscription")),
}
FILTERS = array(record({"filter": text(), **SUBSCRIPTION}))
# Codes that a DISCONNECT of the broker may carry.
DISCONNECT = next(row.packet_type for row in PACKET_TYPES if row.name == "DISCONNECT")
KICK_CODES = [row.code for row in REASON_CODES if row.packets >> DISCONNECT & 1 and row.code >= FAILURE]
ARGUMENTS: dict[str, Schema] = {
    "search": text("text to search for", maxLength=256, default=""),
    "by": text(
        "field: a part of client_id or username, or the start of address",
        default="client_id",
        enum=["client_id", "username", "address"],
    ),
    "after": {**AFTER, "default": ""},
    "limit": LIMIT,
    "tenant": TENANT,
}
# Null for a session that only its store has.
NOT_STORED = (
    "receive_maximum",
    "maximum_packet_size",
    "authentication_method",
    "stuck",
)
ONE: dict[str, Schema] = {"client_id": CLIENT_ID}


async def clients(request: Request) -> dict[str, Any]:
    """The connected clients."""
    return await _listed(request, connected=True)


async def sessions(request: Request) -> dict[str, Any]:
    """All sessions with subscriptions or a client."""
    return await _listed(request, connected=False)


async def _listed(request: Request, *, connected: bool) -> dict[str, Any]:
    answers = await call(request.node, "clients", connected=connected, **request.scope, **request.arguments)
    found = aggregate.page(answers, request.arguments["limit"], "client_id")
    found["next"] = found["next"] and found["next"]["client_id"]
    if not connected:
        await _add_stored(request, found["items"])
    if connected or len(answers) == 1:  # else several nodes list the same sessions
        found["total"] = sum(answer["total"] for answer in values(answers).values())
    return found


async def _add_stored(request: Request, items: list[dict[str, Any]]) -> None:
    """Complete the sessions that are stored elsewhere and have no connection."""
    away = {item["client_id"].encode(): item for item in items if not item["connected"]}
    for client_id, stored in (await request.node.broker.coordinator.sessions.stored(list(away))).items():
        away[client_id] |= stored | {"node": ""}


async def client(request: Request) -> dict[str, Any]:
    """One client with its subscriptions; for a disconnected one, with the queue from its store."""
    answers = await call(request.node, "client", limit=MAX_LIMIT, **request.arguments)
    found = aggregate.best(
        ({**value, "node": name} for name, value in values(answers).items() if value is not None),
        lambda item: item["client_id"],
    )
    client_id = request.arguments["client_id"].encode()
    stored = await request.node.broker.coordinator.sessions.stored([client_id])
    if not found and not stored:
        raise missing("there is no session with this client identifier")
    if not found:
        found = [{**dict.fromkeys(("address", "username", "protocol", "node"), ""), **request.arguments}]
        found[0] |= {"connected": False, "level": 0, "persistent": True, "subscriptions": 0, "filters": []}
        found[0] |= dict.fromkeys(NOT_STORED)
    if stored and not found[0]["connected"]:
        found[0] |= stored[client_id] | {"node": ""}
    return {**found[0], "failures": failures(answers)}


async def kick(request: Request) -> None:
    """End a connection."""
    if request.arguments.get("reason_code", KICK_CODES[0]) not in KICK_CODES:
        raise unfit(f"reason_code: not one of DISCONNECT, which are {', '.join(map(str, KICK_CODES))}")
    if not any(values(await call(request.node, "kick", **request.arguments)).values()):
        raise missing("no such client is connected")


async def end(request: Request) -> None:
    """End a session, and its connection."""
    if not await request.node.broker.coordinator.sessions.end(request.arguments["client_id"].encode()):
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
        role=OPERATOR,
        arguments={
            **ONE,
            "reason_code": integer("of DISCONNECT, MQTT 5.0 [152]", minimum=FAILURE, maximum=KICK_CODES[-1]),
            "reason": text("for its reason string and the log", maxLength=256, pattern=r"^[^\x00-\x1f\x7f]*$"),
        },
        required=("client_id",),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
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
        role=OPERATOR,
        arguments=ONE,
        required=("client_id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
