"""Retained messages: browse by level, read, clear. Every node has all of them but other nodes' $SYS."""

import asyncio
from http import HTTPStatus
from itertools import islice
from typing import Any

from ....._speedups.base.tick import TICKS_PER_SECOND
from ....._speedups.codec.topics import InvalidTopic, validate_topic_filter
from ....core.data_plane import DataPlane
from ...http.problems import missing, unfit
from ...http.tokens import OPERATOR
from .. import properties
from ..operation import AFTER, LIMIT, MAX_NAME, TOPIC_FILTER, Operation, Request
from ..schema import array, boolean, integer, nullable, record, text
from .messages import ENCODING, shown

MAX_COUNT = 1000  # nodes of the tree that are counted below a level
SLICE = 200  # messages cleared in one go
NAME = text("a topic name", minLength=1, maxLength=MAX_NAME, pattern=r"^[^+#\x00]+$")
MAX_BYTES = 1 << 20  # of the topic names and payloads that are listed
MESSAGE = record(
    {
        "topic": text(),
        "qos": integer(),
        "bytes": integer("of the payload"),
        "payload": text(),
        "encoding": ENCODING,
        "properties": properties.SCHEMA,
        "expires_in": nullable(integer("seconds until it expires; null: never")),
    }
)
LEVEL = record(
    {
        "level": text("one level of the topic name"),
        "topic": text("the topic name so far"),
        "bytes": nullable(integer("of its own message's payload; null: there is none")),
        "below": integer("messages further below, as far as counted"),
        "below_is_least": boolean("there may be more"),
    }
)


async def browse(request: Request) -> dict[str, Any]:
    """The topics one level below a topic name."""
    parent, after = (request.arguments.get(name) for name in ("parent", "after"))
    root = request.prefix.removesuffix("/") or None  # of a token of a tenant
    parent = parent or root
    limit = request.arguments["limit"]
    encoded = [None if value is None else value.encode() for value in (parent, after)]
    tree = request.node.broker.data_plane.router.retained
    try:
        found = tree.children(encoded[0], encoded[1], limit, MAX_COUNT)
    except KeyError:
        if root is not None and parent == root and after is None:
            return {"items": [], "next": None}
        raise missing("this topic does not exist any more: start again") from None
    items = [
        {
            "level": level.decode(),
            "topic": level.decode() if parent is None else f"{parent}/{level.decode()}",
            "bytes": size if size >= 0 else None,
            "below": below,
            "below_is_least": below >= MAX_COUNT,
        }
        for level, size, below in found
        if b"\x00" not in level  # internal to the broker
    ]
    return {"items": items, "next": found[-1][0].decode() if len(found) == limit else None}


async def one(request: Request) -> dict[str, Any]:
    """A message."""
    data_plane = request.node.broker.data_plane
    for found in data_plane.router.retained.described(request.arguments["topic"].encode()):
        return _described(data_plane, *found)
    raise missing("this topic has no retained message")


async def several(request: Request) -> dict[str, Any]:
    """The first messages that match a filter."""
    topic_filter = request.arguments["filter"]
    _valid(request, topic_filter)
    data_plane = request.node.broker.data_plane
    size = 0
    items: list[dict[str, Any]] = []
    for found in data_plane.router.retained.described(topic_filter.encode()):
        topic, payload, _, block, _ = found
        if len(items) == request.arguments["limit"] or size + len(payload) + len(block) > MAX_BYTES:
            return {"items": items, "more": True}
        if b"\x00" not in topic:
            items.append(_described(data_plane, *found))
            size += len(topic) + len(payload) + len(block)
    return {"items": items, "more": False}


def _described(
    data_plane: DataPlane, topic: bytes, payload: bytes, qos: int, block: bytes, expires: int
) -> dict[str, Any]:
    """A message for JSON."""
    left = max(0, expires - data_plane.turn.clock) // TICKS_PER_SECOND if expires else None
    given = properties.shown(block)
    about = {"topic": topic.decode(), "qos": qos, "bytes": len(payload), "properties": given, "expires_in": left}
    return {**about, **shown(payload)}


def _valid(request: Request, topic_filter: str) -> None:
    try:
        validate_topic_filter(topic_filter, 4, request.node.config.limits.max_topic_levels)
    except InvalidTopic as fault:
        raise unfit(f"filter: {fault}") from None


async def clear(request: Request) -> dict[str, Any]:
    """Clear the messages that match a filter."""
    data_plane, topic_filter = request.node.broker.data_plane, request.arguments["filter"]
    _valid(request, topic_filter)
    if topic_filter.partition("/")[0] == "$SYS":
        raise unfit("topics below $SYS can't be cleared")
    return {"cleared": await _clear(data_plane, topic_filter.encode())}


async def _clear(data_plane: DataPlane, topic_filter: bytes) -> int:
    cleared = 0
    found = data_plane.router.retained.matching(topic_filter)
    while part := list(islice(found, SLICE)):
        for topic, _, _ in part:
            data_plane.router.publish(topic, b"", 0, True)
        cleared += len(part)
        stored = asyncio.Event()
        data_plane.after_step(stored.set)
        data_plane.end_turn()
        await stored.wait()
    return cleared


OPERATIONS = (
    Operation(
        "GET",
        "/retained",
        "browse_retained",
        "Retained messages, a level of their topic names at a time.",
        browse,
        record({"items": array(LEVEL), "next": nullable(AFTER)}),
        arguments={
            "parent": text("a topic name; without: the first levels", maxLength=MAX_NAME),
            "after": AFTER,
            "limit": LIMIT,
        },
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "GET",
        "/retained/message",
        "retained",
        "The retained message of a topic name.",
        one,
        MESSAGE,
        arguments={"topic": NAME},
        required=("topic",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "GET",
        "/retained/messages",
        "retained_messages",
        "The first retained messages that match a topic filter.",
        several,
        record({"items": array(MESSAGE), "more": boolean("whether there are more")}),
        arguments={"filter": TOPIC_FILTER, "limit": LIMIT},
        required=("filter",),
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY,),
    ),
    Operation(
        "DELETE",
        "/retained",
        "clear_retained",
        "Clear the retained messages that match a topic filter.",
        clear,
        record({"cleared": integer("messages")}),
        role=OPERATOR,
        arguments={"filter": TOPIC_FILTER},
        required=("filter",),
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY,),
    ),
)
