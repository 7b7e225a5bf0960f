"""How a client connects."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._speedups.protocol.client_session import ConnectOptions

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, kw_only=True)
class Options(ConnectOptions):
    """The fields of CONNECT, the broker's address, and the client's limits."""

    host: str = "127.0.0.1"
    port: int = 1883
    timeout: float = 10.0  # seconds for connecting, and for an answer to PINGREQ
    max_inflight: int = 20  # QoS 1 and 2 messages sent and not yet acknowledged
    tls: "ssl.SSLContext | None" = None  # None: in plain text
    unix: str = ""  # path of a Unix socket, instead of host and port
    websocket: str = ""  # path of MQTT over WebSocket, such as "/mqtt"; empty: without WebSocket

    @property
    def address(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"{'ws' if self.tls is None else 'wss'}://{place}{self.websocket}" if self.websocket else place
