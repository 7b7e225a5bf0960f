"""How a client connects."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True)
class Will:
    """The message that the broker publishes if the connection dies."""

    topic_name: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True)
class Options:
    """How to connect."""

    host: str = "127.0.0.1"
    port: int = 1883
    client_id: str = ""
    level: int = 4  # 3 = MQTT 3.1, 4 = MQTT 3.1.1
    clean_start: bool = True
    keep_alive: int = 60  # seconds; 0 = none
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    timeout: float = 10.0  # seconds for connecting, and for an answer to PINGREQ
    max_inflight: int = 20  # QoS 1 and 2 messages sent and not yet acknowledged
    tls: "ssl.SSLContext | None" = None  # None: in plain text
    unix: str = ""  # path of a Unix socket, instead of host and port

    @property
    def address(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
