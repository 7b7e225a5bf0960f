"""The check whether a client may publish or read a topic, and by which rule."""

from http import HTTPStatus
from typing import Any

from ....._speedups.codec.topics import InvalidTopic, validate_topic_filter, validate_topic_name
from ....auth.credentials import MAX_NAME
from ....auth.right_check import Action
from ....auth.rules import MAX_LEVELS
from ....auth.stored_user import Away
from ....core.topic_filters import parts_of
from ....rpc.rights import shown
from ...http.problems import Problem, missing, unfit
from ..aggregate import call, failures, values
from ..operation import CLIENT_ID, TOPIC_FILTER, Operation, Request
from ..schema import boolean, integer, nullable, record, text

DEFAULT_LISTENER = "default"


async def check(request: Request) -> dict[str, Any]:
    """Whether a client may do something."""
    arguments = request.arguments
    action, topic = Action(arguments["action"]), _topic(arguments)
    username, client_id = arguments.get("username"), arguments.get("client_id", "")
    if client_id and username is None:
        answers = await call(request.node, "right", client_id=client_id, action=action.value, topic=topic)
        found = next((answer for answer in values(answers).values() if answer is not None), None)
        if found is None:
            missed = "; ".join(f"{node}: {why}" for node, why in failures(answers).items())
            raise missing(f"no client with this client identifier is connected{f' ({missed})' if missed else ''}")
        return {**found, "client_id": client_id}
    listener = arguments["listener"]
    try:
        decision = await request.node.access.decide_user(username, client_id, listener, action, topic)
    except Away:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the user can't be looked up for now", Retry_After="1") from None
    return {**shown(decision), "username": username, "listener": listener, "client_id": client_id}


def _topic(arguments: dict[str, Any]) -> str:
    """The topic name or the topic filter of the messages. Raises Problem."""
    topic: str = arguments["topic"]
    try:
        if arguments["action"] == Action.SUBSCRIBE:
            topic = parts_of(topic).messages
            validate_topic_filter(topic, max_levels=MAX_LEVELS)
        else:
            validate_topic_name(topic, max_levels=MAX_LEVELS)
    except (InvalidTopic, ValueError) as fault:
        raise unfit(f"topic: {fault}") from None
    return topic


OPERATIONS = (
    Operation(
        "GET",
        "/rules/check",
        "check_right",
        "Whether a client may publish or read a topic, and by which rule. `client_id` alone: a connected client, with "
        "the rules that it has; `username`: clients of a user; neither: anonymous clients. Hooks are not asked.",
        check,
        record(
            {
                "allowed": boolean(),
                "reason": text("of the decision"),
                "rule": text("that decides, as in an ACL file; empty: none does"),
                "source": nullable(
                    record(
                        {
                            "kind": text("`file`, `role`, `user`, or the authentication method that gave the rule"),
                            "name": text("path of the file, name of the role or the user"),
                            "line": integer("of the file; 0: it has no lines"),
                        },
                        description="where the rule stands",
                    )
                ),
                "username": nullable(text("null: anonymous")),
                "client_id": text(),
                "listener": text("name of the listener"),
            }
        ),
        arguments={
            "username": text("of a user", minLength=1, maxLength=MAX_NAME),
            "client_id": CLIENT_ID,
            "listener": text("name of a listener, for `username`", maxLength=200, default=DEFAULT_LISTENER),
            "action": text("`read`: get messages of a topic", enum=list(Action)),
            "topic": {**TOPIC_FILTER, "description": "a topic name; to subscribe, a topic filter"},
        },
        required=("action", "topic"),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)
