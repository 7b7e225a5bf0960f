"""UNSUBSCRIBE: removes subscriptions; UNSUBACK always follows."""

from _speedups.codec.encode import encode
from _speedups.codec.packets import Unsuback, Unsubscribe
from _speedups.net.connection import Connection
from _speedups.session.session import Session
from broker.coordination.coordinator import Coordinator


class UnsubscribeHandler:
    """Unsubscribes sessions.

    Args:
        coordinator: removes subscriptions.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def handle(self, connection: Connection, session: Session, packet: Unsubscribe) -> None:
        """Remove the subscriptions that exist, and acknowledge [MQTT-3.10.4-5]."""
        unsuback = encode(Unsuback(packet_id=packet.packet_id), connection.protocol_level)
        filters = [topic_filter.encode() for topic_filter in packet.topic_filters]
        self._coordinator.unsubscribe(connection, session, filters, lambda: connection.send(unsuback))
