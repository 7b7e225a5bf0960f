"""DISCONNECT: the client goes in peace."""

from typing import TYPE_CHECKING

from _speedups.codec.packets import Disconnect
from _speedups.net.connection import Connection
from _speedups.session.session import Session

if TYPE_CHECKING:
    from broker.broker import Broker


def handle(broker: "Broker", connection: Connection, session: Session, packet: Disconnect) -> None:
    """No will, and the end of the connection [MQTT-3.14.4-2, 3]."""
    if connection.connect is not None:
        connection.connect = None
        broker.coordinator.discard_will(connection)
        # Its orderly end tells the client that no will is to come: true only when that is stored.
        connection.ignore()
        connection.unsettled = True
        broker.turn.after_commit(lambda: _close(connection))
    else:
        connection.close("disconnected by the client")


def _close(connection: Connection) -> None:
    connection.unsettled = False
    connection.close("disconnected by the client")
