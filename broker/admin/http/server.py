"""The HTTP server: listens, and bounds the cost of each connection; an `aiohttp` application does the rest.

A connection has `REQUEST_SECONDS` for each request, from its first byte or from the start, and `KEEP_SECONDS` until the
next request; then it is dropped in any state. There are at most `MAX_CONNECTIONS` at a time. One more takes the place
of the oldest one that sends nothing, of the address that has the most: so one address locks no other out, and health
checks are answered. This module is imported only if `http.listen` is set: a node without it never loads aiohttp.
"""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion10, web

from ... import logs
from ...errors import ListenError
from ...listeners.bind import address_of, bind, is_loopback
from . import problems
from .headers import HEADERS

MAX_LINE = 256 << 10  # bytes of a request's first line: the arguments may be long, and are percent-encoded
MAX_FIELD = 8 << 10  # bytes of a header field
MAX_FIELDS = 32
MAX_BODY = 4 << 20  # bytes of a body
REQUEST_SECONDS = 5.0
KEEP_SECONDS = 20.0
MAX_CONNECTIONS = 128
LOG_SECONDS = 60.0  # between log lines about connections that lost their places
SETTING = "--http or FLOCKMQ_HTTP_LISTEN"
log = logs.get("flockmq.http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """A connection, and the clock that ends it."""

    __slots__ = ("_clock", "_server", "address", "is_local")

    def __init__(self, server: "HttpServer", is_local: bool, manager: web.Server, **more: Any) -> None:
        super().__init__(manager, **more)
        self._server = server
        self._clock: asyncio.TimerHandle | None = None
        self.is_local = is_local  # only this machine reaches its address
        self.address = ""  # of the other end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._server.has_room(self.address):
            self.drop()
            return
        self._server.connections[self] = None
        self.limit(REQUEST_SECONDS)

    def connection_lost(self, error: BaseException | None) -> None:
        self.limit(None)
        self._server.connections.pop(self, None)
        super().connection_lost(error)

    def limit(self, seconds: float | None) -> None:
        """Set the remaining life of the connection; None: unlimited."""
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.get_running_loop().call_later(seconds, self.drop) if seconds is not None else None

    @property
    def is_silent(self) -> bool:
        """Whether it waits for a whole request."""
        return self._clock is not None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Invalid requests are answered and not logged: else any client could fill the log."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        response = problems.response(problems.Problem(HTTPStatus(status), "this is not an HTTP request"))
        response.headers.update(HEADERS)
        response.force_close()
        return response

    def drop(self) -> None:
        """Close the connection in any state."""
        if self.transport is not None:
            self.transport.abort()


@web.middleware
async def in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Limit the time of a request, and then that until the next one."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.limit(None)
    if request.version < HttpVersion10:
        raise web.HTTPBadRequest(reason="not an HTTP/1 request")
    try:
        return await handler(request)
    finally:
        connection.limit(KEEP_SECONDS)


class HttpServer:
    """Serves the addresses given to `start`.

    Args:
        app: the application; `in_time` is one of its middlewares.
        tls: for addresses that begin with https://; None if there are none.
        failures: number of wrong tokens received.
        is_open: whether this machine needs no credentials.
    """

    def __init__(
        self,
        app: web.Application,
        tls: ssl.SSLContext | None = None,
        failures: Callable[[], int] = int,
        is_open: Callable[[], bool] = bool,
    ) -> None:
        self.failures = failures
        self.is_open = is_open
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        self._tls = tls
        self.connections: dict[Connection, None] = {}  # the oldest first
        self._dropped: Counter[str] = Counter()  # by address, since the last log line about them
        self._logged = float("-inf")  # when that was
        self.addresses: list[str] = []  # URLs with real ports
        self._servers: list[asyncio.Server] = []

    async def start(self, addresses: Iterable[str], *, shared: bool = False) -> None:
        """Listen on HOST:PORT each, as `bind` takes it, optionally after http:// or https://; `shared` as
        configuration key `listen_shared`.

        Raises:
            ListenError: an address can't be listened on; then none is.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        for address in addresses:
            scheme, _, place = address.rpartition("://")
            scheme = scheme or "http"
            try:
                sockets = bind(place, shared, SETTING)
            except ListenError:
                await self.close()
                raise
            for socket in sockets:
                real = address_of(socket)
                server = await loop.create_server(
                    self._factory(is_loopback(real)),
                    sock=socket,
                    ssl=self._tls if scheme == "https" else None,
                    ssl_handshake_timeout=REQUEST_SECONDS if scheme == "https" else None,
                )
                self._servers.append(server)
                self.addresses.append(f"{scheme}://{real}")

    def has_room(self, address: str) -> bool:
        """Whether a connection more from this address may stay. Another one may lose its place to it."""
        if len(self.connections) < MAX_CONNECTIONS:
            return True
        counts = Counter(connection.address for connection in self.connections)
        losers = [connection for connection in self.connections if connection.is_silent]
        losers = losers or [each for each in self.connections if counts[each.address] > counts[address] + 1]
        loser = max(losers, key=lambda connection: counts[connection.address], default=None)
        self._dropped[address if loser is None else loser.address] += 1
        if (now := time.monotonic()) >= self._logged + LOG_SECONDS:
            self._logged = now
            most, count = self._dropped.most_common(1)[0]
            log.warning(
                "all HTTP connections are taken: the oldest that send nothing are dropped",
                dropped=self._dropped.total(),
                most_of=most,
                its=count,
                limit=MAX_CONNECTIONS,
            )
            self._dropped.clear()
        if loser is None:
            return False
        del self.connections[loser]
        loser.drop()
        return True

    def _factory(self, is_local: bool) -> Callable[[], Connection]:
        loop = asyncio.get_running_loop()
        manager = self._runner.server
        assert manager is not None

        def make() -> Connection:
            return Connection(
                self,
                is_local,
                manager,
                loop=loop,
                access_log=None,
                tcp_keepalive=False,
                keepalive_timeout=KEEP_SECONDS,
                max_line_size=MAX_LINE,
                max_field_size=MAX_FIELD,
                max_headers=MAX_FIELDS,
                lingering_time=0,
            )

        return make

    async def close(self) -> None:
        """Stop listening and drop the connections. Harmless when not started."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.addresses.clear()
        for connection in list(self.connections):
            connection.drop()
        await self._runner.cleanup()
