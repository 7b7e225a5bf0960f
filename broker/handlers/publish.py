"""PUBLISH with hooks: calls the hooks, and pauses the connection while they run; then the schema of the topic counts.

Without hooks only messages get here that do not fit a schema.
"""

from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, NamedTuple

from ..._speedups.codec.packets import Puback
from ..._speedups.codec.properties import decode_block, encode_block
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.topics import is_broker_only, validate_topic_name
from ..._speedups.net.connection import Connection
from ..._speedups.protocol.pending_publish import PendingPublish
from ..._speedups.routing.delayed import split_delayed
from ..._speedups.session.turn import AckReason
from .. import logs
from ..core import tenants
from ..core.data_plane import DataPlane
from ..hooks.api import Client, Message
from ..hooks.chain import HookChain, Refused, client_of
from ..hooks.schemas import Schemas

log = logs.get("flockmq.hooks")


class Question(NamedTuple):
    """A PUBLISH that hooks decide over."""

    received: PendingPublish
    delay: bytes  # the beginning `$delayed/SECONDS/` of its topic, which hooks do not see; or empty
    message: Message  # as the hooks see it


class PublishHandler:
    """Lets hooks decide over messages from clients.

    Args:
        data_plane: of the node.
        hooks: called for each message.
        schemas: of payloads.
    """

    def __init__(self, data_plane: DataPlane, hooks: HookChain, schemas: Schemas) -> None:
        self._data_plane = data_plane
        self._hooks = hooks
        self._schemas = schemas

    def handle(self, connection: Connection, received: PendingPublish) -> None:
        """Call the hooks for a message that its client may publish, then publish what they return."""
        if not self._hooks.has("authorize", "publish"):
            self._publish_by_schema(connection, received)
            return
        client = client_of(connection)
        delay, topic = split_delayed(received.topic)
        message = message_of(topic, received.payload, received.qos, received.retain, received.properties)
        question = Question(received, delay, message)
        found = ask(self._hooks, client, message)
        if isawaitable(found):
            connection.pause()
            self._data_plane.run(self._wait(connection, client, question, found))
        else:
            self._publish(connection, client, question, found)

    async def _wait(self, connection: Connection, client: Client, question: Question, found: Awaitable[Any]) -> None:
        filtered = await found
        if not connection.closed:
            self._publish(connection, client, question, filtered)
            connection.proceed()
            self._data_plane.end_turn()

    def _publish(self, connection: Connection, client: Client, question: Question, found: object) -> None:
        if isinstance(found, Refused):
            if found.refusal is not None:
                log.debug(
                    "message refused", client_id=client.client_id, topic=question.message.topic, reason=found.reason
                )
            connection.drop_publish(question.received, found.code_of(Puback.packet_type), AckReason.REFUSED_BY_HOOK)
            return
        assert isinstance(found, Message)
        try:
            check(found, question.message, question.delay, self._data_plane.config.limits.max_topic_levels)
            properties = block_of(found, question.message, question.received.properties)
        except ValueError as fault:
            log.error("a hook made a message that can't be published", client_id=client.client_id, fault=fault)
            connection.drop_publish(question.received, ReasonCode.UNSPECIFIED_ERROR, AckReason.MADE_INVALID_BY_HOOK)
            return
        # The QoS is a matter between client and broker: the acknowledgement fits the packet that was received.
        message = question.received._replace(
            topic=question.delay + found.topic.encode(),
            payload=bytes(found.payload),
            retain=found.retain,
            properties=properties,
        )
        self._publish_by_schema(connection, message)

    def _publish_by_schema(self, connection: Connection, message: PendingPublish) -> None:
        """Publish a message as the schema of its topic has it, or refuse it."""
        session = connection.session
        client_id = session.client_id.decode() if session is not None else ""
        mismatch = self._schemas.judge(
            connection.address, client_id, message.topic, message.payload, retain=message.retain
        )
        if mismatch is not None:
            levels = self._data_plane.config.limits.max_topic_levels
            published = mismatch.applied(message.topic, message.properties, levels)
            if published is None:
                connection.drop_publish(message, ReasonCode.PAYLOAD_FORMAT_INVALID, AckReason.NOT_AS_SCHEMA)
                return
            message = message._replace(topic=published[0], properties=published[1])
        connection.publish_as(message)


def message_of(topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes) -> Message:
    """A message as hooks see it; `properties`: a property block without its length."""
    return Message(topic.decode(), payload, qos, retain, decode_block(properties) if properties else {})


def ask(hooks: HookChain, client: Client, message: Message) -> Message | Refused | Awaitable[Message | Refused]:
    """Let the hooks decide whether the client may publish the message, and change it."""
    return hooks.filter(
        message,
        ("authorize", lambda message: (client, "publish", message.topic)),
        ("publish", lambda message: (client, message)),
    )


def check(found: Message, asked: Message, delay: bytes, levels: int) -> None:
    """Whether a message of hooks can be published in place of the one that they were asked about.

    Args:
        delay: the beginning `$delayed/SECONDS/` of the topic name, which hooks do not see; or empty.
        levels: that a topic name may have.

    Raises:
        ValueError: it can't.
    """
    if not isinstance(found.topic, str) or not isinstance(found.payload, bytes | bytearray | memoryview):
        raise ValueError("its topic is not str, or its payload not bytes")
    if found.topic != asked.topic:
        prefix, _ = tenants.split(asked.topic.encode())
        its_delay, name = split_delayed(found.topic.encode())
        own = name.removeprefix(prefix.encode())
        if not name.startswith(prefix.encode()) or own.startswith(tenants.ROOT.encode()):
            raise ValueError("its topic is not one of the tenant of its client")
        if is_broker_only(own):
            raise ValueError("only the broker publishes to its topic")
        if its_delay and delay:
            raise ValueError("it is delayed already")
        validate_topic_name(own, 4, levels)
    if not {"topic_alias", "message_expiry_interval"}.isdisjoint(found.properties.keys() - asked.properties.keys()):
        raise ValueError("a hook can't set the topic alias or the expiry of a message")


def block_of(found: Message, asked: Message, properties: bytes) -> bytes:
    """The property block of a message of hooks; `properties`: of the message that they were asked about."""
    return properties if found.properties == asked.properties else encode_block(dict(found.properties))
