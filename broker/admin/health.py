"""GET /healthz and /readyz over HTTP, for load balancers and orchestrators; nothing else.

One request a connection, answered from memory and closed: 200 or 503 and one line of text. Whoever connects costs
little: requests are small and prompt or refused, and there are at most `CONNECTIONS_MAX` at a time.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import cast

from broker import logs
from broker.config_values import split_address
from broker.errors import ListenError

REQUEST_MAX = 8192  # bytes of request line and headers
REQUEST_SECONDS = 5.0  # that a connection may last
CONNECTIONS_MAX = 64
HINTS = {
    errno.EADDRINUSE: "another program has the port: stop it, or choose another with --http",
    errno.EACCES: "ports below 1024 need a privilege",
}

# Whether all is well, and one line that says why or what is missing.
Check = Callable[[], tuple[bool, str]]

log = logs.get("flockmq.health")


class HealthServer:
    """Answers on the addresses given to `start`.

    Args:
        healthy: whether the process works; if not, it should be started again.
        ready: whether clients should be sent here.
    """

    def __init__(self, healthy: Check, ready: Check) -> None:
        self.checks = {b"/healthz": healthy, b"/readyz": ready}
        self.connections: set[_Connection] = set()
        self.addresses: list[str] = []  # where it listens; ports are real ones
        self._servers: list[asyncio.Server] = []

    async def start(self, addresses: Iterable[str], *, shared: bool = False) -> None:
        """Listen on HOST:PORT each; `shared` as configuration key `listen_shared`.

        Raises:
            ListenError: an address can't be listened on; then none is.
        """
        loop = asyncio.get_running_loop()
        for address in addresses:
            host, port = split_address(address)
            try:
                server = await loop.create_server(lambda: _Connection(self), host, port, reuse_port=shared or None)
            except OSError as error:
                await self.close()
                hint = HINTS.get(error.errno or 0, "check the address")
                raise ListenError(f"can't listen on {address}: {error.strerror or error}", hint) from error
            self._servers.append(server)
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                self.addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    async def close(self) -> None:
        """Stop listening and drop the connections. Harmless when not started."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.addresses.clear()
        for connection in list(self.connections):
            connection.drop()

    def answer(self, request: bytes) -> bytes:
        """The response to a request's first line and headers."""
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not method:
            return _response(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
        check = self.checks.get(target.partition(b"?")[0])
        if check is None:
            return _response(HTTPStatus.NOT_FOUND, "there are /healthz and /readyz")
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD")
        try:
            good, reason = check()
        except Exception:
            log.exception("internal error: a health check failed")
            good, reason = False, "the check failed; the log says why"
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(status, reason, with_body=method == b"GET")


class _Connection(asyncio.Protocol):
    """One request and its response."""

    def __init__(self, server: HealthServer) -> None:
        self._server = server
        self._request = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        if len(self._server.connections) >= CONNECTIONS_MAX:
            self.drop()
            return
        self._server.connections.add(self)
        self._timeout = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.drop)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._request += data
        end = self._request.find(b"\r\n\r\n")
        if end >= 0:
            self._respond(self._server.answer(bytes(self._request[:end])))
        elif len(self._request) > REQUEST_MAX:
            self._respond(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large"))

    def _respond(self, response: bytes) -> None:
        self._transport.write(response)
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._server.connections:
            self._server.connections.remove(self)
            self._timeout.cancel()

    def drop(self) -> None:
        """End the connection, whatever it is at."""
        self._transport.abort()


def _response(status: HTTPStatus, text: str, *, with_body: bool = True) -> bytes:
    body = logs.escaped(text).encode() + b"\n"
    allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{allow}Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
