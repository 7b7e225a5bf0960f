"""The will of a CONNECT: the topic that the rewrite rules give it, and whether the client could publish it."""

from ..._speedups.codec.packets import Connect
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.topics import has_control_characters, is_broker_only, validate_topic_name
from ..._speedups.net.connection import Connection
from ..._speedups.protocol.publishing import STATE_TOPIC
from ..._speedups.routing.delayed import split_delayed
from ..auth.authenticator import Identity
from ..config.schema_rule import MARK
from ..core import tenants
from ..core.data_plane import DataPlane
from ..hooks.schemas import MARKED, Schemas
from .refusal import Refusal


class WillCheck:
    """Judges wills before their clients get a session; topics are as the clients know them.

    Args:
        data_plane: of the node.
        schemas: of payloads.
    """

    def __init__(self, data_plane: DataPlane, schemas: Schemas) -> None:
        self._data_plane = data_plane
        self._schemas = schemas

    def rewrite(self, connection: Connection, packet: Connect, username: str | None) -> None:
        """Give the will the topic name of the rewrite rules; one that is not valid stays as it is, and is refused."""
        rewriter, topic = self._data_plane.rewriter, packet.will_topic
        if rewriter is None or topic is None:
            return
        try:
            validate_topic_name(topic, packet.protocol_level, self._data_plane.config.limits.max_topic_levels)
        except ValueError:
            return
        packet.will_topic = rewriter.topic_name(connection, username, packet.client_id, topic)

    def refusal(self, connection: Connection, packet: Connect, identity: Identity) -> Refusal | None:
        """The refusal of a client that could not publish its will; None: it could, or it has none.

        A will that does not fit the schema of its topic is marked, if the schema says so.
        """
        mqtt, limits, topic = self._data_plane.config.mqtt, self._data_plane.config.limits, packet.will_topic
        if topic is None:
            return None
        try:
            validate_topic_name(topic, packet.protocol_level, limits.max_topic_levels)
            delay, name = split_delayed(topic.encode())
        except ValueError as error:
            return Refusal(ReasonCode.TOPIC_NAME_INVALID, f"its will: {error}")
        if not mqtt.control_characters and has_control_characters(topic):
            return Refusal(
                ReasonCode.TOPIC_NAME_INVALID, "its will: the topic has control characters or non-characters"
            )
        if delay and not limits.max_delayed_messages:
            return Refusal(ReasonCode.TOPIC_NAME_INVALID, "its will: delayed messages are switched off")
        if not _may_publish(topic, name, packet.client_id, identity):
            return Refusal(ReasonCode.NOT_AUTHORIZED, "it may not publish its will")
        if mqtt.validate_payload and not _is_text(packet):
            return Refusal(ReasonCode.PAYLOAD_FORMAT_INVALID, "its will is not UTF-8, as its format indicator says")
        if packet.will_qos > mqtt.maximum_qos:  # [5: MQTT-3.2.2-12]
            return Refusal(ReasonCode.QOS_NOT_SUPPORTED, "the QoS of its will is above mqtt.maximum_qos")
        if packet.will_retain and not mqtt.retain_available:  # [5: MQTT-3.2.2-13]
            return Refusal(ReasonCode.RETAIN_NOT_SUPPORTED, "its will is retained, and mqtt.retain_available is false")
        mismatch = self._schemas.judge(
            connection.address, packet.client_id, topic.encode(), packet.will_payload, retain=packet.will_retain
        )
        if mismatch is None:
            return None
        if mismatch.rule.on_mismatch != MARK:  # its client need not have the right to publish where it would be routed
            return Refusal(ReasonCode.PAYLOAD_FORMAT_INVALID, f"its will does not fit the schema: {mismatch.reason}")
        pairs = [*packet.will_properties.get("user_property", ()), MARKED]
        packet.will_properties = {**packet.will_properties, "user_property": pairs}
        return None


def _may_publish(topic: str, name: bytes, client_id: str, identity: Identity) -> bool:
    """Whether a client may publish to a topic; `name` is the same without a delay."""
    if topic.encode() == STATE_TOPIC % client_id.encode():
        return True
    if is_broker_only(name):
        return False
    return identity.rights is None or identity.rights.may_publish(tenants.prefix_of(identity.tenant).encode() + name)


def _is_text(packet: Connect) -> bool:
    """Whether the will is UTF-8, if the client says so."""
    if not packet.will_properties.get("payload_format_indicator"):
        return True
    try:
        packet.will_payload.decode()
    except UnicodeDecodeError:
        return False
    return True
