"""Shared subscriptions: the groups, their subscribers, and the messages that wait."""

import json
from collections import defaultdict
from http import HTTPStatus
from operator import itemgetter
from typing import Any

from ....._speedups.codec.topics import split_shared
from ....config.declared_group import OPTIONS, declared, paused
from ....config.kinds import Boolean, Choice, Duration, Integer, Kind, Size
from ...http.problems import Problem, missing, unfit
from ...http.tokens import OPERATOR
from ..aggregate import call, failures, values
from ..operation import AFTER, FAILURES, LIMIT, MAX_NAME, TENANT, Operation, Request, listed
from ..schema import Schema, array, boolean, integer, nullable, number, record, text

GROUP = text("`$share/NAME/FILTER`", minLength=1, maxLength=MAX_NAME)
NO_GROUP = "there is no such shared subscription; its name is of the form $share/NAME/FILTER"


def schema_of(kind: Kind, description: str) -> Schema:
    """The schema of a setting of this kind."""
    if isinstance(kind, (Integer, Size)):
        return integer(description, minimum=kind.low, maximum=kind.high)
    if isinstance(kind, Duration):
        return number(description, minimum=kind.low, maximum=kind.high)
    if isinstance(kind, Choice):
        return text(description, enum=list(kind.words))
    return boolean(description) if isinstance(kind, Boolean) else text(description)


MAX_TENANT_GROUPS = 1000  # that tokens of one tenant may declare
BOUNDED = ("window", "max_queued_messages", "max_queued_bytes")  # of tenants: at most as in `[shared]`
SETTINGS = {name: schema_of(*option) for name, option in OPTIONS.items()}
FIELDS = {
    "group": text("`$share/NAME/FILTER`"),
    "name": text("the share name"),
    "filter": text("the topic filter"),
    "qos": integer("the highest that a subscriber was granted"),
    "subscribers": integer("sessions that have subscribed"),
    "connected": integer("those with a connection"),
    "waiting": integer("messages that no subscriber has"),
    "waiting_bytes": integer(),
    "unacknowledged": integer("messages that subscribers have and have not acknowledged"),
    "given": integer("messages of QoS 1 and 2 so far; those that came back count again"),
    "returned": integer("messages that came back"),
    "declared": boolean("whether it exists without subscribers"),
    "settings": record(SETTINGS, description="those that hold: its own if it is declared, else those of `[shared]`"),
    "own": array(text(), "the names of the settings that its declaration has; the others follow `[shared]`"),
}
SUBSCRIBER = record(
    {
        "client_id": text(),
        "node": nullable(text("that has its connection")),
        "connected": boolean(),
        "persistent": boolean("whether its session outlives its connection"),
        "qos": integer("granted"),
        "identifier": nullable(integer("the subscription identifier")),
        "unacknowledged": integer(),
    }
)
OLDEST = record({"place": integer("in the order of arrival"), "topic": text(), "bytes": integer("of the payload")})


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One group out of the nodes' parts. All have its persistent subscribers, and its number of messages in Redis."""
    found = dict(parts[0])
    for name in ("connected", "unacknowledged", "given", "returned"):
        found[name] = sum(part[name] for part in parts)
    for name in ("qos", "waiting", "waiting_bytes"):
        found[name] = max(part[name] for part in parts)
    found["subscribers"] = max(part["persistent"] for part in parts) + sum(part["clean"] for part in parts)
    del found["persistent"], found["clean"]
    return found


async def groups(request: Request) -> dict[str, Any]:
    """A page of groups."""
    answers = await call(request.node, "groups", **request.scope, **request.arguments)
    limit, parts = request.arguments["limit"], defaultdict(list)
    for answer in values(answers).values():
        for item in answer["items"]:
            parts[item["group"]].append(item)
    names = sorted(parts)
    more = len(names) > limit or any(len(answer["items"]) == limit for answer in values(answers).values())
    items = [merged(parts[name]) for name in names[:limit]]
    total = max((answer["total"] for answer in values(answers).values()), default=0)
    next_page = items[-1]["group"] if more and items else None
    return {"items": items, "next": next_page, "total": max(total, len(items)), "failures": failures(answers)}


async def group(request: Request) -> dict[str, Any]:
    """One group."""
    answers = await call(request.node, "group", **request.arguments)
    by_node = {node: found for node, found in values(answers).items() if found is not None}
    parts = list(by_node.values())
    failed = failures(answers)
    if not parts and failed:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(f"{node}: {why}" for node, why in failed.items()))
    if not parts:
        raise missing(NO_GROUP)
    subscribers: dict[str, dict[str, Any]] = {}
    for node, part in by_node.items():
        for subscriber in part.pop("sessions"):
            if subscriber["connected"] or subscriber["client_id"] not in subscribers:
                found = {**subscriber, "node": node if subscriber["connected"] else None}
                subscribers[subscriber["client_id"]] = found
    oldest = sorted((message for part in parts for message in part.pop("oldest")), key=itemgetter("place"))
    return {
        **merged(parts),
        "sessions": [subscribers[name] for name in sorted(subscribers)],
        "oldest": oldest,
        "failures": failed,
    }


async def purge(request: Request) -> dict[str, Any]:
    """Drop the messages that wait."""
    broker = request.node.broker
    name = request.arguments["group"].encode()
    if name not in broker.data_plane.router.filters.groups:
        raise missing(NO_GROUP)
    return {"dropped": await broker.coordinator.groups.purge(name)}


async def declare(request: Request) -> None:
    """Declare a group, or replace the settings of one."""
    if request.holder.tenant:
        _judge(request)
    try:
        group = declared(request.arguments["group"], request.body)
    except ValueError as fault:
        raise unfit(f"expected {fault}") from None
    request.change.before, request.change.after = _declaration(request), request.body
    try:
        await request.node.broker.coordinator.groups.declare(group)
    except ValueError as fault:
        raise unfit(str(fault)) from None


def _judge(request: Request) -> None:
    """Raises Problem: a token of a tenant may not declare so many groups, or one that may hold more than others."""
    shared = request.node.config.shared
    for name in BOUNDED:
        most = getattr(shared, name)
        if request.body.get(name, 0) > most:
            raise unfit(f"{name}: at most {most}, as `shared.{name}` says")
    known = request.node.broker.data_plane.router.filters.groups
    own = [
        name
        for name, group in known.items()
        if group.settings.declared and split_shared(name.decode())[1].startswith(request.prefix)
    ]
    if request.arguments["group"].encode() not in own and len(own) >= MAX_TENANT_GROUPS:
        raise Problem(HTTPStatus.CONFLICT, f"there are {MAX_TENANT_GROUPS} declared groups, the maximum")


def _declaration(request: Request) -> Any:
    """The settings that the declaration of a group has now; None: it is not declared."""
    found = request.node.broker.data_plane.router.filters.groups.get(request.arguments["group"].encode())
    return json.loads(found.settings.declaration) if found is not None and found.settings.declared else None


async def pause(request: Request) -> None:
    """Let the subscribers of a declared group get no new messages, or let them get some again."""
    broker, name = request.node.broker, request.arguments["group"]
    group = broker.data_plane.router.filters.groups.get(name.encode())
    if group is None or not group.settings.declared:
        raise missing("there is no such declared group")
    await broker.coordinator.groups.declare(paused(name, group.settings.declaration, request.body["paused"]))


async def remove(request: Request) -> dict[str, Any]:
    """Declare a group no more."""
    request.change.before = _declaration(request)
    dropped = await request.node.broker.coordinator.groups.remove(request.arguments["group"].encode())
    if dropped is None:
        raise missing("there is no such declared group")
    return {"dropped": dropped}


OPERATIONS = (
    Operation(
        "GET",
        "/groups",
        "groups",
        "Shared subscriptions, in the order of their names.",
        groups,
        listed(record(FIELDS)),
        arguments={
            "search": text("a part of `$share/NAME/FILTER`", maxLength=256, default=""),
            "after": {**AFTER, "default": ""},
            "limit": LIMIT,
            "tenant": TENANT,
        },
    ),
    Operation(
        "GET",
        "/group",
        "group",
        "A shared subscription, with its subscribers and its oldest messages.",
        group,
        record(
            {
                **FIELDS,
                "sessions": array(SUBSCRIBER),
                "oldest": array(OLDEST, "of those that wait at nodes; a cluster keeps most in Redis"),
                "failures": FAILURES,
            }
        ),
        arguments={"group": GROUP, "limit": LIMIT},
        required=("group",),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "PUT",
        "/group",
        "declare_group",
        "Declare a shared subscription: it exists without subscribers, with the settings of the body, and those of "
        "`[shared]` for the rest. Replaces the settings of one that is declared.",
        declare,
        role=OPERATOR,
        arguments={"group": GROUP},
        required=("group",),
        body=record({}, SETTINGS),
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY,),
    ),
    Operation(
        "PUT",
        "/group/paused",
        "pause_group",
        "Let the subscribers of a declared shared subscription get no new messages, so that they finish theirs; "
        "or let them get messages again.",
        pause,
        role=OPERATOR,
        arguments={"group": GROUP},
        required=("group",),
        body=record({"paused": boolean()}),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "DELETE",
        "/group",
        "remove_group",
        "Declare a shared subscription no more: without subscribers it ends, and the messages that wait are dropped.",
        remove,
        record({"dropped": integer("messages")}),
        role=OPERATOR,
        arguments={"group": GROUP},
        required=("group",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "DELETE",
        "/group/messages",
        "purge_group",
        "Drop the messages that wait in a shared subscription; those that subscribers have stay.",
        purge,
        record({"dropped": integer("messages")}),
        role=OPERATOR,
        arguments={"group": GROUP},
        required=("group",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
