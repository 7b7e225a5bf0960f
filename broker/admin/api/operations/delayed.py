"""Delayed messages: list, cancel."""

from http import HTTPStatus
from typing import Any

from ...http.problems import missing
from ...http.tokens import OPERATOR
from ..operation import AFTER, LIMIT, TENANT, Operation, Request, listed
from ..schema import EXPECTED, boolean, integer, number, record, text

DELAYED = record(
    {
        "id": text("to cancel it; of a node alone it is valid until the node restarts"),
        "client_id": text("of the publisher; empty: the broker"),
        "topic": text("the topic name to which it will be published"),
        "qos": integer(),
        "retain": boolean(),
        "bytes": integer("of the payload"),
        "due_in": number("seconds until it is published"),
    }
)


async def delayed(request: Request) -> dict[str, Any]:
    """A page of the messages that wait."""
    prefix, without = (request.scope[name].encode() for name in ("prefix", "without"))
    limit = request.arguments["limit"]
    found = await request.node.broker.coordinator.delayed.waiting(prefix, without, request.arguments["after"], limit)
    items = [
        {
            "id": message.id,
            "client_id": message.publisher.decode("utf-8", "replace"),
            "topic": message.topic.decode(),
            "qos": message.qos,
            "retain": message.retain,
            "bytes": message.size,
            "due_in": max(0, message.wait) / 1000,
        }
        for message in found
    ]
    return {"items": items, "next": found[-1].place if len(found) == limit else None}


async def cancel(request: Request) -> None:
    """Drop a message that waits."""
    prefix = request.prefix.encode()
    if not await request.node.broker.coordinator.delayed.cancel(request.arguments["id"], prefix):
        raise missing("no message with this id waits")


OPERATIONS = (
    Operation(
        "GET",
        "/delayed",
        "delayed",
        "Messages to `$delayed/SECONDS/TOPIC` that wait, in the order in which they are due.",
        delayed,
        listed(DELAYED),
        arguments={
            "after": {**AFTER, "default": "", "pattern": "^([0-9]{1,18}-[0-9]{1,18})?$"},
            "limit": LIMIT,
            "tenant": TENANT,
        },
    ),
    Operation(
        "DELETE",
        "/delayed",
        "cancel_delayed",
        "Drop a message that waits: it is not published.",
        cancel,
        role=OPERATOR,
        arguments={
            "id": text(
                "`id` of the list",
                pattern="^([0-9a-f]{8}-[0-9]{1,18}|[0-9]{16})$",
                **{EXPECTED: "be an `id` of the list"},
            )
        },
        required=("id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
