"""DISCONNECT: an orderly end of the connection, without the will."""

from _speedups.net.connection import Connection
from _speedups.session.turn import Turn
from broker.coordination.coordinator import Coordinator


class DisconnectHandler:
    """Ends connections at the request of their clients.

    Args:
        turn: of the node.
        coordinator: discards wills.
    """

    def __init__(self, turn: Turn, coordinator: Coordinator) -> None:
        self._turn = turn
        self._coordinator = coordinator

    def handle(self, connection: Connection) -> None:
        """Discard the will and close the connection [MQTT-3.14.4-2, 3]."""
        if connection.connect is not None:
            connection.connect = None
            self._coordinator.discard_will(connection)
            # An orderly end promises the client that its will is discarded: true only when that is stored.
            connection.ignore()
            connection.unsettled = True
            self._turn.after_commit(lambda: _close(connection))
        else:
            connection.close("disconnected by the client")


def _close(connection: Connection) -> None:
    connection.unsettled = False
    connection.close("disconnected by the client")
