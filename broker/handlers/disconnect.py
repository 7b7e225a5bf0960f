"""DISCONNECT: the client goes in peace."""

from typing import TYPE_CHECKING

from _speedups.packets import Disconnect
from _speedups.reactor import Connection
from _speedups.session import Session
from broker.session import will

if TYPE_CHECKING:
    from broker.broker import Broker


def handle(broker: "Broker", connection: Connection, session: Session, packet: Disconnect) -> None:
    """No will, and the end of the connection [MQTT-3.14.4-2, 3]."""
    will.discard(connection, broker.turn.journal)
    connection.close("disconnected by the client")
