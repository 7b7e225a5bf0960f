"""UNSUBSCRIBE: filters go, UNSUBACK always comes."""

from typing import TYPE_CHECKING

from _speedups.packets import Unsuback, Unsubscribe, encode
from _speedups.reactor import Connection
from _speedups.session import Session

if TYPE_CHECKING:
    from broker.broker import Broker


def handle(broker: "Broker", connection: Connection, session: Session, packet: Unsubscribe) -> None:
    """Unsubscribe from what there is, and answer [MQTT-3.10.4-5]."""
    for topic_filter in packet.topic_filters:
        broker.router.filters.unsubscribe(session, topic_filter.encode())
    answer = encode(Unsuback(packet_id=packet.packet_id), connection.protocol_level)
    broker.when_stored(connection, session, lambda: connection.send(answer))
