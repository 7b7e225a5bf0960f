"""Shared subscriptions: the groups, their members, and the messages that wait."""

from http import HTTPStatus
from typing import Any

from broker.admin.api import aggregate
from broker.admin.api.aggregate import call, values
from broker.admin.api.operation import AFTER, LIMIT, MAX_NAME, Operation, Request, listed
from broker.admin.api.schema import array, boolean, integer, nullable, record, text
from broker.admin.http.problems import missing

GROUP = text("`$share/NAME/FILTER`", minLength=1, maxLength=MAX_NAME)
FIELDS = {
    "group": text("`$share/NAME/FILTER`"),
    "name": text("the share name"),
    "filter": text("the topic filter"),
    "qos": integer("the highest that a member was granted"),
    "members": integer("sessions that have subscribed"),
    "connected": integer("those with a connection"),
    "waiting": integer("messages that no member has"),
    "waiting_bytes": integer(),
    "unacknowledged": integer("messages that members have and have not acknowledged"),
    "given": integer("messages of QoS 1 and 2 so far; those that came back count again"),
    "returned": integer("messages that came back"),
    "node": text("id of the node that lists it"),
}
MEMBER = record(
    {
        "client_id": text(),
        "connected": boolean(),
        "persistent": boolean("whether its session outlives its connection"),
        "qos": integer("granted"),
        "identifier": nullable(integer("the subscription identifier")),
        "unacknowledged": integer(),
    }
)
OLDEST = record({"place": integer("in the order of arrival"), "topic": text(), "bytes": integer("of the payload")})


async def groups(request: Request) -> dict[str, Any]:
    """A page of groups."""
    answers = await call(request.node, "groups", **request.arguments)
    found = aggregate.page(answers, request.arguments["limit"], "group")
    found["next"] = found["next"] and found["next"]["group"]
    found["total"] = sum(answer["total"] for answer in values(answers).values())
    return found


async def group(request: Request) -> dict[str, Any]:
    """One group."""
    answers = values(await call(request.node, "group", **request.arguments))
    for node, found in answers.items():
        if found is not None:
            return {**found, "node": node}
    raise missing("there is no such shared subscription")


async def purge(request: Request) -> dict[str, Any]:
    """Drop the messages that wait."""
    answers = values(await call(request.node, "purge_group", **request.arguments)).values()
    found = [dropped for dropped in answers if dropped is not None]
    if not found:
        raise missing("there is no such shared subscription")
    return {"dropped": sum(found)}


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
        },
    ),
    Operation(
        "GET",
        "/group",
        "group",
        "A shared subscription, with its members and its oldest messages.",
        group,
        record({**FIELDS, "of": array(MEMBER), "oldest": array(OLDEST)}),
        arguments={"group": GROUP, "limit": LIMIT},
        required=("group",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "DELETE",
        "/group/messages",
        "purge_group",
        "Drop the messages that wait in a shared subscription; those that members have stay.",
        purge,
        record({"dropped": integer("messages")}),
        role="admin",
        arguments={"group": GROUP},
        required=("group",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
