"""The HTTP server: the answers of its pages, and the errors of a peer that misbehaves."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from aiohttp import web

from flockmq.broker.admin.api.api import errors_as_problems
from flockmq.broker.admin.exporters.health import check, handler
from flockmq.broker.admin.http import server as http_server
from flockmq.broker.admin.http.server import HttpServer, in_time
from flockmq.broker.errors import ListenError
from tests.harness.deadline import DEADLINE


class State:
    """The answers of the checks, to be set by a test."""

    healthy: tuple[bool, str] | Exception = (True, "ok")
    ready: tuple[bool, str] | Exception = (True, "ready, 3 clients")

    def check(self, name: str) -> Callable[[], tuple[bool, str]]:
        def answer() -> tuple[bool, str]:
            value: tuple[bool, str] | Exception = getattr(self, name)
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    def server(self) -> HttpServer:
        app = web.Application(middlewares=[errors_as_problems, in_time])
        app.add_routes([web.get(f"/{name}z", handler(check(self.check(name)))) for name in ("healthy", "ready")])
        return HttpServer(app)


Scenario = Callable[[HttpServer, State, str, int], Awaitable[None]]


def run(scenario: Scenario) -> None:
    """Run a scenario against a server on a free port."""

    async def main() -> None:
        state = State()
        server = state.server()
        await server.start(["127.0.0.1:0"])
        host, _, port = server.addresses[0].removeprefix("http://").rpartition(":")
        try:
            async with asyncio.timeout(DEADLINE):
                await scenario(server, state, host, int(port))
        finally:
            await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def exchange(host: str, port: int, *pieces: bytes) -> tuple[int, bytes, bytes]:
    """Status, headers and body of the answer to these bytes; status 0 when there is none."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        data = await reader.read()
    except ConnectionError:
        data = b""
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), head, body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def test_good_and_bad() -> None:
    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        assert (await exchange(host, port, get("/healthyz")))[::2] == (200, b"ok\n")
        assert (await exchange(host, port, get("/readyz?full=1")))[::2] == (200, b"ready, 3 clients\n")
        state.ready = (False, "Redis is away\nsince 5 s")
        assert (await exchange(host, port, get("/readyz")))[::2] == (503, b"Redis is away\\nsince 5 s\n")
        assert (await exchange(host, port, get("/healthyz")))[0] == 200
        state.healthy = ValueError("secret")
        status, _, body = await exchange(host, port, get("/healthyz"))
        assert status == 500
        assert b"secret" not in body
        assert b"log" in body

    run(scenario)


def test_one_byte_at_a_time() -> None:
    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        request = get("/healthyz")
        assert (await exchange(host, port, *(request[n : n + 1] for n in range(len(request)))))[0] == 200

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), 404),
        (get("/healthyz/"), 404),
        (get("/metrics"), 404),
        (get("/healthyz", "POST"), 405),
        (get("/readyz", "DELETE"), 405),
        (b"\0\r\n\r\n", 400),
        (b"GET /healthyz\r\n\r\n", 400),
        (b"GET /healthyz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthyz HTTP/2\r\n\r\n", 400),
        (b"GET /healthyz HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        (b"POST /healthyz HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n", 400),
    ],
)
def test_other_requests(request_: bytes, status: int) -> None:
    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        found, head, _ = await exchange(host, port, request_)
        assert found == status
        assert (b"Allow: GET,HEAD" in head) == (status == 405)

    run(scenario)


def test_head_has_no_body() -> None:
    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        status, head, body = await exchange(host, port, get("/healthyz", "HEAD"))
        assert (status, body) == (200, b"")
        assert b"Content-Length: 3" in head

    run(scenario)


def test_a_large_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_FIELD", 100)

    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        assert (await exchange(host, port, b"GET /healthyz HTTP/1.1\r\nA: " + b"x" * 200 + b"\r\n\r\n"))[0] == 400

    run(scenario)


def test_a_slow_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.05)

    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        assert await exchange(host, port, b"GET /healthyz HTTP/1.1\r\n") == (0, b"", b"")
        assert not server.connections

    run(scenario)


def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)

    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        idle = [await asyncio.open_connection(host, port) for _ in range(2)]
        assert (await exchange(host, port, get("/healthyz")))[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert await idle[0][0].read() == b""  # the oldest has lost its place
        idle[0][1].close()
        await server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)
        assert await idle[1][0].read() == b""
        assert not server.connections
        idle[1][1].close()

    run(scenario)


def test_a_taken_port_and_a_shared_one() -> None:
    async def scenario(server: HttpServer, state: State, host: str, port: int) -> None:
        second = state.server()
        with pytest.raises(ListenError, match=f"can't listen on 127.0.0.1:{port}: .*--http"):
            await second.start(["127.0.0.1:0", f"127.0.0.1:{port}"])
        assert second.addresses == []
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("127.0.0.1", 0))
            await second.start([f"127.0.0.1:{reserved.getsockname()[1]}"], shared=True)
        await second.close()

    run(scenario)
