"""Other servers for clients of level 5: where a node that stops, or has moved, sends them [5: 4.11].

Only servers that the operator has named: a client that gets 0x9C may never come back.
"""

from _speedups.codec.reason_codes import ReasonCode
from _speedups.protocol.close_reasons import NODE_STOPS, CloseReason
from broker.core.data_plane import DataPlane


class Redirect:
    """Decides whether new clients are sent to another server.

    Args:
        data_plane: has the configuration.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether the node is about to stop."""
        return self._draining

    def drain(self) -> None:
        """The node is about to stop."""
        self._draining = True

    def reason(self) -> CloseReason | None:
        """The reason for which CONNECT is refused, with the other servers; None: it is not."""
        mqtt = self._data_plane.config.mqtt
        if mqtt.moved_to:
            return CloseReason(ReasonCode.SERVER_MOVED, "the server has moved", mqtt.moved_to)
        return NODE_STOPS.leading_to(mqtt.server_reference) if self._draining and mqtt.server_reference else None
