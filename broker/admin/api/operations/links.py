"""Links to other brokers."""

from http import HTTPStatus
from typing import Any

from ....config.link import CLIENT_ID_PREFIX, NAME
from ....links.link import ENDS
from ...http.problems import missing
from ...http.tokens import OPERATOR
from ..aggregate import call, failures, values
from ..operation import FAILURES, Operation, Request
from ..schema import array, integer, nullable, record, text

DIRECTION = record(
    {
        "messages": integer("that went on, those sent again included"),
        "bytes": integer("of their packets"),
        "refused": integer("messages of QoS 1 and 2 that their receiver refused with a reason code"),
        "ended": record(
            {
                "unmatched": integer("no rule is for their topic"),
                "invalid": integer("their topic name is invalid there"),
                "too_large": integer("for the receiver"),
                "looped": integer("they have been there before"),
                "echoed": integer("messages of this broker that the other one has sent back"),
            },
            description="messages that ended at the link, by the reason",
        ),
    }
)
LINK = record(
    {
        "name": text("of the table `[links.NAME]`"),
        "node": text("the node that runs it"),
        "state": text("the state of the connection", enum=["connecting", "connected", "waiting"]),
        "since": {"type": "number", "description": "of the state, seconds since 1970"},
        "reason": text("why it is not connected"),
        "address": text("of the other broker, as it was tried last"),
        "waiting": integer("messages for the other broker that it has not acknowledged"),
        "refused_filters": array(text(), "topic filters that the other broker does not grant"),
        "wanted": nullable(
            record(
                {
                    "here": integer("topic filters that the other broker is asked for"),
                    "there": integer("topic filters that the other broker asks for"),
                },
                description="with `wanted_only`, while connected; null: all that the rules name is carried",
            )
        ),
        "out": DIRECTION,
        "in": DIRECTION,
    }
)
assert set(ENDS) == set(DIRECTION["properties"]["ended"]["properties"])


async def links(request: Request) -> dict[str, Any]:
    """All links, in the order of their names."""
    answers = await call(request.node, "links")
    items = [{**item, "node": node} for node, found in values(answers).items() for item in found]
    return {"items": sorted(items, key=lambda item: item["name"]), "failures": failures(answers)}


async def end_session(request: Request) -> None:
    """Drop the messages that wait for a link, and its subscriptions."""
    client_id = f"{CLIENT_ID_PREFIX}{request.arguments['name']}".encode()
    if not await request.node.broker.coordinator.sessions.end(client_id):
        raise missing("there is no such link, and no session of an earlier one")


OPERATIONS = (
    Operation(
        "GET",
        "/links",
        "links",
        "Links to other brokers. In a cluster one node runs each.",
        links,
        record({"items": array(LINK)}, {"failures": FAILURES}),
    ),
    Operation(
        "DELETE",
        "/link/session",
        "end_link_session",
        "End the session of a link at this broker: the messages that wait for it are dropped. A link that is still "
        "configured begins a new one.",
        end_session,
        role=OPERATOR,
        arguments={"name": text("of the link", pattern=f"^{NAME.pattern}$")},
        required=("name",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
