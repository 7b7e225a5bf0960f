import socket
from collections.abc import Iterator
from typing import Any

from _speedups.net.connection import Connection
from _speedups.net.listener import Endpoint, Listener
from _speedups.net.loop import Loop
from _speedups.routing.router import Router

class Acceptor(Loop):
    max_connections: int
    max_pending: int
    certificate_expires: int
    listeners: dict[str, Listener]
    def __init__(self, router: Router, handler: Any) -> None: ...
    def __iter__(self) -> Iterator[Connection]: ...
    def listen(self, endpoint: Endpoint) -> None: ...
    def adopt(self, connected: socket.socket, endpoint: Endpoint, address: str = "") -> Connection | None: ...
    def stop_listening(self) -> None: ...
