import socket as sockets
from collections.abc import Callable

from .tls import TlsContext

class Listener:
    name: str
    tls: TlsContext | None
    max_connections: int
    max_per_address: int
    connects: float
    client_messages: float
    client_bytes: float
    total_messages: float
    total_bytes: float
    max_packet_size: int
    connections: int
    accepted: int
    refused: int
    bytes_received: int
    bytes_sent: int
    def __init__(self, name: str = "default", tls: TlsContext | None = None) -> None: ...
    def use(self, tls: TlsContext | None) -> None: ...
    def set_limits(
        self,
        *,
        max_connections: int = ...,
        max_per_address: int = 0,
        connects: float = 0,
        client_messages: float = 0,
        client_bytes: float = 0,
        total_messages: float = 0,
        total_bytes: float = 0,
        max_packet_size: int = ...,
    ) -> None: ...

class Endpoint:
    listener: Listener
    transport: str
    def __init__(
        self,
        listener: Listener,
        socket: sockets.socket | None = None,
        transport: str = "mqtt",
        trusts: Callable[[str], bool] | None = None,
        upgrade: Callable[[bytes, bool, str], tuple[bytes, str, tuple[int, bytes] | None]] | None = None,
    ) -> None: ...
