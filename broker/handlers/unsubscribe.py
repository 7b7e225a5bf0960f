"""UNSUBSCRIBE: filters go, UNSUBACK always comes."""

from typing import TYPE_CHECKING

from _speedups.codec.encode import encode
from _speedups.codec.packets import Unsuback, Unsubscribe
from _speedups.net.reactor import Connection
from _speedups.session.session import Session

if TYPE_CHECKING:
    from broker.broker import Broker


def handle(broker: "Broker", connection: Connection, session: Session, packet: Unsubscribe) -> None:
    """Unsubscribe from what there is, and answer [MQTT-3.10.4-5]."""
    answer = encode(Unsuback(packet_id=packet.packet_id), connection.protocol_level)
    filters = [topic_filter.encode() for topic_filter in packet.topic_filters]
    broker.coordinator.unsubscribe(connection, session, filters, lambda: connection.send(answer))
