"""DISCONNECT: an orderly end of the connection."""

from ..._speedups.codec.packets import Disconnect
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.session.session import Session
from ..coordination.coordinator import SessionOwner
from ..core.data_plane import DataPlane
from ..core.session_expiry import limited


class DisconnectHandler:
    """Ends connections at the request of their clients.

    Args:
        data_plane: of the node.
        owner: discards wills.
    """

    def __init__(self, data_plane: DataPlane, owner: SessionOwner) -> None:
        self._data_plane = data_plane
        self._owner = owner

    def handle(self, connection: Connection, session: Session, packet: Disconnect) -> None:
        """Close the connection, without the will unless the client asks for it [MQTT-3.14.4-2, 3]."""
        interval = packet.properties.get("session_expiry_interval")
        if interval is not None:
            if session.expiry == 0 and interval:
                connection.reject(close_reasons.EXPIRY_AFTER_ZERO)
                return
            session.expiry = limited(interval, self._data_plane.config.mqtt)
        if connection.connect is not None and packet.reason_code == 0:
            connection.connect = None
            self._owner.discard_will(connection)
            # An orderly end promises the client that its will is discarded: true only when that is stored.
            connection.ignore()
            connection.reset_on_close = True
            self._data_plane.after_step(lambda: _close(connection))
        else:
            connection.close(close_reasons.DISCONNECTED)


def _close(connection: Connection) -> None:
    connection.reset_on_close = False
    connection.close(close_reasons.DISCONNECTED)
