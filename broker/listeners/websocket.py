"""The HTTP request that a WebSocket begins with: which are accepted, and what is answered.

The request is judged by `websockets`; frames are _speedups/net/websocket.pyx's. Rules:
- Only the configured path, only the subprotocols of MQTT, no extension: nothing is ever decompressed.
- A browser tells in Origin whose page connects. It doesn't ask that page's user, so a page of anybody could use a
  broker that only its visitor reaches. Unless origins are configured, only who sends none (no browser), or a page of
  this same host, is let in; in plain text only if the host is an address, since anybody's name may lead here.
"""

from ipaddress import ip_address

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from broker.config.schema import WebsocketConfig

SUBPROTOCOLS = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]


class Upgrade:
    """Answers the requests of a listener.

    Args:
        config: of the listener; may be replaced.
    """

    def __init__(self, config: WebsocketConfig) -> None:
        self.config = config

    def __call__(self, head: bytes, secure: bool) -> tuple[bytes, str]:
        """What is answered, and why that is a refusal, or "".

        Args:
            head: the request up to its empty line; empty if it is longer than allowed, or none.
            secure: it came over TLS.
        """
        protocol = ServerProtocol(subprotocols=SUBPROTOCOLS)
        if head:
            protocol.receive_data(head)
        request = next((event for event in protocol.events_received() if isinstance(event, Request)), None)
        response = self._judge(protocol, request, secure)
        if response.status_code != 101:
            del response.headers["Connection"]
            response.headers["Connection"] = "close"
        return response.serialize(), "" if response.status_code == 101 else _reason(response)

    def _judge(self, protocol: ServerProtocol, request: Request | None, secure: bool) -> Response:
        if request is None:
            return protocol.reject(400, "this is MQTT over WebSocket; that was no HTTP request, or too long a one\n")
        if {"Content-Length", "Transfer-Encoding"} & {name.title() for name in request.headers}:
            return protocol.reject(400, "a request with a body\n")
        if request.path.partition("?")[0] != self.config.path:
            return protocol.reject(404, "there is nothing here\n")
        protocol.origins = self._origins(request, secure)
        return protocol.accept(request)

    def _origins(self, request: Request, secure: bool) -> list[Origin | None] | None:
        """Those that are let in; None: all."""
        if "*" in self.config.origins:
            return None
        origins: list[Origin | None] = [None, *map(Origin, self.config.origins)]
        if not self.config.origins:
            hosts, found = request.headers.get_all("Host"), request.headers.get_all("Origin")
            is_own = len(hosts) == len(found) == 1 and found[0].partition("://")[2].lower() == hosts[0].lower()
            if is_own and (secure or _is_address(hosts[0])):
                origins.append(Origin(found[0]))
        return origins


def _is_address(host: str) -> bool:
    """Whether HOST[:PORT] names this place without asking anybody."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True


def _reason(response: Response) -> str:
    text = " ".join((response.body or b"").decode(errors="replace").split())
    return f"WebSocket: {response.status_code}, {text}"
