"""Subscriptions of clients."""

from typing import Any

from .. import aggregate
from ..aggregate import call
from ..operation import AFTER, LIMIT, MAX_NAME, TENANT, Operation, Request, listed
from ..schema import Schema, record, text
from .clients import SUBSCRIPTION

SEPARATOR = "\x00"  # between topic filter and client id in a cursor: neither contains it
ITEM = record({"filter": text(), "client_id": text(), **SUBSCRIPTION, "node": text("id of the node with this item")})
ARGUMENTS: dict[str, Schema] = {
    "search": text("a part of the topic filter", maxLength=256, default=""),
    "client_id": text("only subscriptions of this client", maxLength=MAX_NAME, default=""),
    "after": {**AFTER, "default": ""},
    "limit": LIMIT,
    "tenant": TENANT,
}


async def subscriptions(request: Request) -> dict[str, Any]:
    """A page of subscriptions."""
    topic_filter, _, client_id = request.arguments["after"].partition(SEPARATOR)
    arguments = {**request.arguments, "after": [topic_filter, client_id], **request.scope}
    answers = await call(request.node, "subscriptions", **arguments)
    found = aggregate.page(answers, request.arguments["limit"], "filter", "client_id")
    last = found["next"]
    found["next"] = last and last["filter"] + SEPARATOR + last["client_id"]
    return found


OPERATIONS = (
    Operation(
        "GET",
        "/subscriptions",
        "subscriptions",
        "Subscriptions, in the order of their topic filters.",
        subscriptions,
        listed(ITEM),
        arguments=ARGUMENTS,
    ),
)
