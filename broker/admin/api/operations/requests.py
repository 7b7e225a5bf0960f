"""Requests to single clients: a message without a subscription, with an acknowledgement or a response."""

import base64
from http import HTTPStatus
from typing import Any

from ....._speedups.codec.topics import InvalidTopic, validate_topic_name
from ....core.requests import ACKNOWLEDGED, GONE, REFUSED, RESPONDED, SENT, TIMEOUT, WAITS
from ....core.tenants import split
from ...http.problems import Problem, missing, unfit
from ...http.tokens import OPERATOR
from .. import aggregate, properties
from ..operation import CLIENT_ID, TOPIC, Operation, Request
from ..schema import integer, nullable, number, record, text
from .messages import ENCODING, payload_of, shown

MAX_SECONDS = 60
MARGIN = 1.0  # seconds that a node may take beside the wait
STATUSES = {
    REFUSED: HTTPStatus.CONFLICT,
    GONE: HTTPStatus.BAD_GATEWAY,
    TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
}
RESPONSE = record(
    {"topic": text(), "payload": text(), "encoding": ENCODING, "qos": integer(), "properties": properties.SCHEMA}
)


async def send(request: Request) -> dict[str, Any]:
    """Send a message to one client, and wait for the step that the request names."""
    body, limits = request.body, request.node.config.limits
    client_id = request.arguments["client_id"]
    prefix = split(client_id.encode())[0]
    given = {"topic": body["topic"].removeprefix(prefix), "response_topic": body.get("response_topic", "")}
    wait, qos = body.get("wait", "sent"), body.get("qos", 1)
    if wait == "response" and not given["response_topic"]:
        raise unfit("response_topic: the topic name to which the client publishes its response is missing")
    if wait == "ack" and not qos:
        raise unfit("qos: the client acknowledges messages of QoS 1 and 2 only")
    for name, topic in given.items():
        try:
            validate_topic_name(topic or "-", 4, limits.max_topic_levels)
        except InvalidTopic as fault:
            raise unfit(f"{name}: {fault}") from None
    payload, block = payload_of(body), properties.block_of(body.get("properties", {}))
    if len(payload) + len(given["topic"].encode()) + len(block) > limits.max_packet_size:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the message is larger than limits.max_packet_size")
    seconds = body.get("timeout", 10)
    answers = await request.node.broker.coordinator.nodes.call_all(
        "send",
        {
            **given,
            "client_id": client_id,
            "payload": base64.b64encode(payload).decode(),
            "properties": base64.b64encode(block).decode(),
            "qos": qos,
            "wait": wait,
            "seconds": seconds,
        },
        seconds + MARGIN,
    )
    found = next(((node, value) for node, value in aggregate.values(answers).items() if value is not None), None)
    if found is None:
        failed = aggregate.failures(answers)
        if failed:
            reasons = "; ".join(f"{node}: {why}" for node, why in failed.items())
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"a node that may have the client did not answer: {reasons}")
        raise missing("no such client is connected")
    node, outcome = found
    if outcome["outcome"] in STATUSES:
        raise Problem(STATUSES[outcome["outcome"]], outcome["detail"])
    return {"outcome": outcome["outcome"], "node": node, "response": _response(outcome.get("response"))}


def _response(found: dict[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "topic": found["topic"],
        **shown(base64.b64decode(found["payload"])),
        "qos": found["qos"],
        "properties": properties.shown(base64.b64decode(found["properties"])),
    }


OPERATIONS = (
    Operation(
        "POST",
        "/client/message",
        "send",
        "Send a message to one client, without a subscription, and wait for its acknowledgement or a response.",
        send,
        record(
            {
                "outcome": text(enum=[SENT, ACKNOWLEDGED, RESPONDED]),
                "node": text("id of the node with the client"),
                "response": nullable(RESPONSE),
            }
        ),
        role=OPERATOR,
        changes=False,
        arguments={"client_id": CLIENT_ID},
        required=("client_id",),
        body=record(
            {"topic": TOPIC},
            {
                "payload": text(),
                "encoding": ENCODING,
                "qos": integer("[1]", minimum=0, maximum=2),
                "properties": properties.SCHEMA,
                "wait": text("the end of the wait [sent]", enum=list(WAITS)),
                "response_topic": TOPIC,
                "timeout": number("seconds to wait [10]", minimum=0.1, maximum=MAX_SECONDS),
            },
        ),
        problems=(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.BAD_GATEWAY,
            HTTPStatus.GATEWAY_TIMEOUT,
        ),
        seconds=MAX_SECONDS + 2 * MARGIN,
    ),
)
