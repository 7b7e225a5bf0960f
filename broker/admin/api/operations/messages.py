"""Publishing without an MQTT client."""

import asyncio
import base64
import binascii
from http import HTTPStatus
from typing import Any

from ....._speedups.codec.topics import InvalidTopic, is_broker_only, validate_topic_name
from ....._speedups.routing.delayed import split_delayed
from ....broker import Broker
from ....core.tenants import is_whole, split
from ...http.problems import Problem, unfit
from ...http.tokens import OPERATOR
from .. import properties
from ..operation import TOPIC, Operation, Request
from ..schema import boolean, integer, record, text

NO_CLIENT = b""  # as publisher: the log of messages leaves out messages without a publisher
ENCODING = text("of the payload", enum=["text", "base64"])


async def publish(request: Request) -> dict[str, Any]:
    """Publish; the response follows when the message is stored."""
    body, broker = request.body, request.node.broker
    topic = body["topic"]
    try:
        validate_topic_name(topic, 4, broker.config.limits.max_topic_levels)
    except InvalidTopic as fault:
        raise unfit(f"topic: {fault}") from None
    delay = delay_of(topic, broker)
    payload = payload_of(body)
    block = properties.block_of(body.get("properties", {}))
    if len(payload) + len(topic.encode()) + len(block) > broker.config.limits.max_packet_size:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the message is larger than limits.max_packet_size")
    stored = asyncio.Event()
    receivers = broker.data_plane.router.publish(
        topic.encode(), payload, body.get("qos", 0), body.get("retain", False), NO_CLIENT, block
    )
    if delay and not receivers:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many delayed messages wait")
    broker.data_plane.after_step(stored.set)
    broker.data_plane.end_turn()
    await stored.wait()
    return {"receivers": receivers}


def delay_of(topic: str, broker: Broker) -> bytes:
    """The beginning `$delayed/SECONDS/` of a topic name; empty if the message is not to be delayed."""
    try:
        delay, name = split_delayed(topic.encode())
    except ValueError as fault:
        raise unfit(f"topic: {fault}") from None
    if delay and not broker.config.limits.max_delayed_messages:
        raise unfit("topic: delayed messages are switched off")
    if not is_whole(name.decode()):
        raise unfit("topic: $tenant/NAME/ and no topic of its clients")
    if is_broker_only(split(name)[1].encode()):
        raise unfit("topic: only the broker publishes there")
    return delay


def payload_of(body: dict[str, Any]) -> bytes:
    """The bytes of a payload as text or base64."""
    text_form: str = body.get("payload", "")
    if body.get("encoding", "text") == "text":
        return text_form.encode()
    try:
        return base64.b64decode(text_form, validate=True)
    except (ValueError, binascii.Error) as fault:
        raise unfit(f"payload is no base64: {fault}") from None


def shown(payload: bytes) -> dict[str, str]:
    """A payload for JSON: as text when it is UTF-8 without other control characters than line ends."""
    try:
        found = payload.decode()
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}
    return {"payload": found, "encoding": "text"}


OPERATIONS = (
    Operation(
        "POST",
        "/messages",
        "publish",
        "Publish a message.",
        publish,
        record({"receivers": integer("receiving sessions and other nodes")}),
        role=OPERATOR,
        changes=False,
        body=record(
            {"topic": TOPIC},
            {
                "payload": text(),
                "encoding": ENCODING,
                "qos": integer(minimum=0, maximum=2),
                "retain": boolean(),
                "properties": properties.SCHEMA,
            },
        ),
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY,),
    ),
)
