"""Delayed wills of ended connections: list, cancel."""

from http import HTTPStatus
from typing import Any

from ...http.problems import missing
from ...http.tokens import OPERATOR
from .. import aggregate
from ..aggregate import call, values
from ..operation import AFTER, CLIENT_ID, LIMIT, TENANT, Operation, Request, listed
from ..schema import boolean, integer, record, text

WILL = record(
    {
        "client_id": text(),
        "topic": text(),
        "qos": integer(),
        "retain": boolean(),
        "bytes": integer("of the payload"),
        "due_in": integer("seconds until it is published, unless its client connects before"),
        "node": text("id of the node that lists it; in a cluster any node may publish it"),
    }
)


async def wills(request: Request) -> dict[str, Any]:
    """A page of the wills that wait."""
    answers = await call(request.node, "wills", **request.scope, **request.arguments)
    found = aggregate.page(answers, request.arguments["limit"], "client_id")
    found["next"] = found["next"] and found["next"]["client_id"]
    found["total"] = sum(answer["total"] for answer in values(answers).values())
    return found


async def cancel(request: Request) -> None:
    """Discard a will."""
    if not any(values(await call(request.node, "cancel_will", **request.arguments)).values()):
        raise missing("no will of this client waits")


OPERATIONS = (
    Operation(
        "GET",
        "/wills",
        "wills",
        "Delayed wills of ended connections, in the order of the client identifiers.",
        wills,
        listed(WILL),
        arguments={"after": {**AFTER, "default": ""}, "limit": LIMIT, "tenant": TENANT},
    ),
    Operation(
        "DELETE",
        "/will",
        "cancel_will",
        "Discard the delayed will of a client: it is not published.",
        cancel,
        role=OPERATOR,
        arguments={"client_id": CLIENT_ID},
        required=("client_id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
