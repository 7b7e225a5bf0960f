"""The HTTP request that a WebSocket begins with: its checks and its response.

The request is judged by `websockets`; frames are _speedups/net/websocket.pyx's. Rules:
- Only the configured path, only the subprotocols of MQTT, no extension: nothing is ever decompressed.
- A browser names the origin of the page that connects. Without a check, any page could use a broker that only its
  visitor reaches. Unless origins are configured, a request needs no Origin (it is not from a browser), or the Origin of
  this same host. In plain text the host must be an address, since any DNS name may lead here.
"""

import socket
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_address

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from ..config.schema import WebsocketConfig
from .forwarded import client_of

LISTS = ("Connection", "Upgrade", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions")
MAX_LIST = 1000  # bytes of the values of such a header: a browser sends 100, and each word costs the loop time
SUBPROTOCOLS = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]


class Upgrade:
    """Responds to the requests of a listener.

    Args:
        config: of the listener.
        trusts: whether HOST:PORT is a reverse proxy's, whose forwarding headers name the client; None: there is none.
    """

    def __init__(self, config: WebsocketConfig, trusts: Callable[[str], bool] | None = None) -> None:
        self._trusts = trusts
        self.configure(config)

    def configure(self, config: WebsocketConfig) -> None:
        """Apply a configuration."""
        self._config = config

    def __call__(self, head: bytes, secure: bool, peer: str) -> tuple[bytes, str, tuple[int, bytes] | None]:
        """The response; the reason of a refusal, or ""; family and address of the client, if a proxy has named it.

        Args:
            head: the request up to its empty line; empty if it is longer than allowed, or none.
            secure: received over TLS.
            peer: address and port of the connection.
        """
        protocol = ServerProtocol(subprotocols=SUBPROTOCOLS)
        if head:
            protocol.receive_data(head)
        request = next((event for event in protocol.events_received() if isinstance(event, Request)), None)
        response = self._check(protocol, request, secure)
        if response.status_code != 101:
            del response.headers["Connection"]
            response.headers["Connection"] = "close"
        client = None if request is None or self._trusts is None else self._client_of(request, peer, self._trusts)
        return response.serialize(), "" if response.status_code == 101 else _reason(response, request), client

    @staticmethod
    def _client_of(request: Request, peer: str, trusts: Callable[[str], bool]) -> tuple[int, bytes] | None:
        own = peer.rpartition(":")[0].strip("[]")
        headers = request.headers
        client = client_of(headers.get_all("Forwarded"), headers.get_all("X-Forwarded-For"), own, trusts)
        if client == own:
            return None
        address = ip_address(client)
        return (socket.AF_INET if address.version == 4 else socket.AF_INET6), address.packed

    def _check(self, protocol: ServerProtocol, request: Request | None, secure: bool) -> Response:
        if request is None:
            return protocol.reject(400, "this is MQTT over WebSocket; that was no HTTP request, or too long a one\n")
        if {"Content-Length", "Transfer-Encoding"} & {name.title() for name in request.headers}:
            return protocol.reject(400, "a request with a body\n")
        if any(sum(map(len, request.headers.get_all(name))) > MAX_LIST for name in LISTS):
            return protocol.reject(400, f"a header of more than {MAX_LIST} bytes\n")
        if request.path.partition("?")[0] != self._config.path:
            return protocol.reject(404, "there is nothing here\n")
        protocol.origins = self._origins(request, secure)
        return protocol.accept(request)

    def _origins(self, request: Request, secure: bool) -> list[Origin | None] | None:
        """The accepted origins; None: all."""
        if "*" in self._config.origins:
            return None
        origins: list[Origin | None] = [None, *map(Origin, self._config.origins)]
        if not self._config.origins:
            hosts, found = request.headers.get_all("Host"), request.headers.get_all("Origin")
            is_own = len(hosts) == len(found) == 1 and found[0].partition("://")[2].lower() == hosts[0].lower()
            if is_own and (secure or _is_address(hosts[0])):
                origins.append(Origin(found[0]))
        return origins


def _is_address(host: str) -> bool:
    """Whether HOST[:PORT] is an address or localhost, which needs no DNS."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True


def _reason(response: Response, request: Request | None) -> str:
    if request is not None and response.status_code == HTTPStatus.FORBIDDEN:
        return f"WebSocket: no page of this origin may connect: {request.headers.get('Origin', '')}"
    text = " ".join((response.body or b"").decode(errors="replace").split())
    return f"WebSocket: {response.status_code}, {text}"
