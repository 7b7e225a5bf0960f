"""PUBLISH with hooks: what they make of a message, and that the connection waits for them. Without, none comes here."""

from collections.abc import Awaitable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from _speedups.codec.topics import validate_topic_name
from _speedups.net.connection import Connection
from broker import logs
from broker.hooks.api import Client, Message

if TYPE_CHECKING:
    from broker.broker import Broker

log = logs.get("flockmq.hooks")


def handle(
    broker: "Broker",
    connection: Connection,
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    packet_id: int,
    dup: bool,
) -> None:
    """Let the hooks judge a message that its client may publish, then publish what they leave of it."""
    client = broker.client_of(connection)
    message = Message(topic.decode(), payload, qos, bool(retain))
    found = broker.hooks.decide(
        message,
        ("authorize", lambda message: (client, "publish", message.topic)),
        ("publish", lambda message: (client, message)),
    )
    if isawaitable(found):
        connection.pause()
        broker.run(_wait(broker, connection, client, message, found, packet_id, dup))
    else:
        _settle(broker, connection, client, message, found, packet_id, dup)


async def _wait(
    broker: "Broker",
    connection: Connection,
    client: Client,
    message: Message,
    found: Awaitable[Any],
    packet_id: int,
    dup: bool,
) -> None:
    judged = await found
    if not connection.closed:
        _settle(broker, connection, client, message, judged, packet_id, dup)
        connection.proceed()
        broker.settle()


def _settle(
    broker: "Broker", connection: Connection, client: Client, asked: Message, found: object, packet_id: int, dup: bool
) -> None:
    if not isinstance(found, Message):
        connection.publish_for_nobody(asked.topic.encode(), asked.payload, asked.qos, packet_id, "a hook refuses it")
        return
    try:
        _check(found, asked, broker.config.limits.max_topic_levels)
    except ValueError as fault:
        log.error("a hook made a message that can't be published", client_id=client.client_id, fault=fault)
        connection.publish_for_nobody(
            asked.topic.encode(), asked.payload, asked.qos, packet_id, "a hook made it invalid"
        )
        return
    # The QoS is a matter between client and broker: what is acknowledged is what was asked for.
    connection.publish_as(found.topic.encode(), bytes(found.payload), asked.qos, found.retain, packet_id, dup)


def _check(found: Message, asked: Message, levels: int) -> None:
    """Raises ValueError: the message can't be published."""
    if not isinstance(found.topic, str) or not isinstance(found.payload, bytes | bytearray | memoryview):
        raise ValueError("its topic is not str, or its payload not bytes")
    if found.topic != asked.topic:
        validate_topic_name(found.topic, 4, levels)
