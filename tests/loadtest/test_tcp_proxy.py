"""The proxy passes everything on, and each kind of bad network is one."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets; it serves a connection at a time in its own thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except ConnectionError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[TcpProxy]:
    with TcpProxy(echo) as proxy:
        yield proxy


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE)


def is_refused(proxy: TcpProxy) -> bool:
    """Whether a new connection comes to nothing; the RST may be quicker than connect()."""
    try:
        with connect(proxy) as connection:
            return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more
        data += more
    return data


def test_everything_comes_back_and_then_the_end(proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 40_000  # more than may be under way at once
    with connect(proxy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert exactly(connection, len(data)) == data
        sender.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    until(lambda: proxy.connections == 0)


def test_cut(proxy: TcpProxy) -> None:
    with connect(proxy) as one, connect(proxy) as two:
        for connection in (one, two):
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
        assert proxy.cut() == 2
        for connection in (one, two):
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    with connect(proxy) as again:
        again.sendall(b"y")
        assert again.recv(1) == b"y"


def test_refuse_leaves_open_connections_alone(proxy: TcpProxy) -> None:
    with connect(proxy) as one:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
        proxy.refuse()
        assert is_refused(proxy)
        one.sendall(b"y")
        assert one.recv(1) == b"y"
    proxy.resume()
    with connect(proxy) as three:
        three.sendall(b"z")
        assert three.recv(1) == b"z"


def test_stall(proxy: TcpProxy) -> None:
    with connect(proxy) as one:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
        proxy.stall()
        one.sendall(b"later")
        with connect(proxy) as two:
            two.sendall(b"new")
            for connection in (one, two):
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(10)
                connection.settimeout(20)
            proxy.resume()
            assert exactly(one, 5) == b"later"
            assert exactly(two, 3) == b"new"


def test_delay_is_of_each_way_and_does_not_add_up(proxy: TcpProxy) -> None:
    with connect(proxy) as connection:
        proxy.slow(0.2)
        began = time.monotonic()
        for _ in range(10):
            connection.sendall(b"x" * 1000)
        assert exactly(connection, 10_000) == b"x" * 10_000
        took = time.monotonic() - began
        assert 0.4 <= took < 2
        proxy.resume()
        began = time.monotonic()
        connection.sendall(b"y")
        assert connection.recv(1) == b"y"
        assert time.monotonic() - began < 0.2


def test_partition(proxy: TcpProxy) -> None:
    with connect(proxy) as one:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
        proxy.partition()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    assert is_refused(proxy)
    assert proxy.connections == 0


def test_nobody_at_the_target() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with TcpProxy(port) as proxy:
        assert is_refused(proxy)
        until(lambda: proxy.connections == 0)
