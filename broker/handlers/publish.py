"""PUBLISH with hooks: calls the hooks, and pauses the connection while they run. Without hooks, nothing gets here."""

from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from _speedups.codec.topics import validate_topic_name
from _speedups.net.connection import Connection
from broker import logs
from broker.core.data_plane import DataPlane
from broker.hooks.api import Client, Message
from broker.hooks.chain import HookChain, client_of

log = logs.get("flockmq.hooks")


class PublishHandler:
    """Lets hooks decide over messages from clients.

    Args:
        data_plane: of the node.
        hooks: called for each message.
    """

    def __init__(self, data_plane: DataPlane, hooks: HookChain) -> None:
        self._data_plane = data_plane
        self._hooks = hooks

    def handle(
        self, connection: Connection, topic: bytes, payload: bytes, qos: int, retain: bool, packet_id: int, dup: bool
    ) -> None:
        """Call the hooks for a message that its client may publish, then publish what they return."""
        client = client_of(connection)
        message = Message(topic.decode(), payload, qos, bool(retain))
        found = self._hooks.filter(
            message,
            ("authorize", lambda message: (client, "publish", message.topic)),
            ("publish", lambda message: (client, message)),
        )
        if isawaitable(found):
            connection.pause()
            self._data_plane.run(self._wait(connection, client, message, found, packet_id, dup))
        else:
            self._publish(connection, client, message, found, packet_id, dup)

    async def _wait(
        self,
        connection: Connection,
        client: Client,
        message: Message,
        found: Awaitable[Any],
        packet_id: int,
        dup: bool,
    ) -> None:
        filtered = await found
        if not connection.closed:
            self._publish(connection, client, message, filtered, packet_id, dup)
            connection.proceed()
            self._data_plane.end_turn()

    def _publish(
        self, connection: Connection, client: Client, message: Message, found: object, packet_id: int, dup: bool
    ) -> None:
        if not isinstance(found, Message):
            _drop(connection, message, packet_id, "a hook refuses it")
            return
        try:
            _check(found, message, self._data_plane.config.limits.max_topic_levels)
        except ValueError as fault:
            log.error("a hook made a message that can't be published", client_id=client.client_id, fault=fault)
            _drop(connection, message, packet_id, "a hook made it invalid")
            return
        # The QoS is a matter between client and broker: the acknowledgement fits the packet that was received.
        connection.publish_as(found.topic.encode(), bytes(found.payload), message.qos, found.retain, packet_id, dup)


def _drop(connection: Connection, message: Message, packet_id: int, reason: str) -> None:
    connection.publish_for_nobody(message.topic.encode(), message.payload, message.qos, packet_id, reason)


def _check(found: Message, received: Message, levels: int) -> None:
    """Raises ValueError: the message can't be published."""
    if not isinstance(found.topic, str) or not isinstance(found.payload, bytes | bytearray | memoryview):
        raise ValueError("its topic is not str, or its payload not bytes")
    if found.topic != received.topic:
        validate_topic_name(found.topic, 4, levels)
