"""GET over HTTP, for load balancers, orchestrators and Prometheus: a few pages that are made when asked for.

One request a connection, answered and closed. Whoever connects costs little: requests are small and prompt or refused,
and there are at most `CONNECTIONS_MAX` at a time.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

from broker import logs
from broker.config_values import split_address
from broker.errors import ListenError
from broker.listening import address_of

REQUEST_MAX = 8192  # bytes of request line and headers
REQUEST_SECONDS = 5.0  # that a connection may last
CONNECTIONS_MAX = 64
HINTS = {
    errno.EADDRINUSE: "another program has the port: stop it, or choose another with --http",
    errno.EACCES: "ports below 1024 need a privilege",
}

PLAIN = "text/plain; charset=utf-8"

log = logs.get("flockmq.http")


class Answer(NamedTuple):
    """What a page says now."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    kind: str = PLAIN


Page = Callable[[], Answer]


def check(is_well: Callable[[], tuple[bool, str]]) -> Page:
    """A page that says 200 or 503, and in one line why or what is missing."""

    def answer() -> Answer:
        good, reason = is_well()
        return Answer(logs.escaped(reason) + "\n", HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE)

    return answer


class HttpServer:
    """Answers on the addresses given to `start`.

    Args:
        pages: by path.
    """

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = {path.encode(): page for path, page in pages.items()}
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
            self.addresses += map(address_of, server.sockets)

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
            return _refusal(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
        page = self._pages.get(target.partition(b"?")[0])
        if page is None:
            return _refusal(HTTPStatus.NOT_FOUND, f"there are {b', '.join(self._pages).decode()}")
        if method not in (b"GET", b"HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD")
        try:
            answer = page()
        except Exception:
            log.exception("internal error: a page failed")
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the log says why")
        return _response(answer, with_body=method == b"GET")


class _Connection(asyncio.Protocol):
    """One request and its response."""

    def __init__(self, server: HttpServer) -> None:
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
            self._respond(_refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large"))

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


def _refusal(status: HTTPStatus, text: str) -> bytes:
    return _response(Answer(text + "\n", status))


def _response(answer: Answer, *, with_body: bool = True) -> bytes:
    body = answer.text.encode()
    allow = "Allow: GET, HEAD\r\n" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n{allow}Content-Type: {answer.kind}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
