"""Listeners: addresses of all kinds, limits of each, changes by a reload, and figures."""

import os
import re
import signal
import socket
import ssl
import stat
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cases.proxy_headers import FOUR, SIX, binary, line
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.certificates import Authority
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.transports import make_node, ports, tls_client, tls_settings, tls_socket, trusting
from tests.model.websocket import BINARY, frame
from tests.protocol.test_websocket import CONNECT, request

StartNode = Callable[..., BrokerProcess]
PROXIED = {"listeners.open.proxied": True, "auth.allow_anonymous": True}


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    started: list[BrokerProcess] = []

    def start(settings: dict[str, object], **more: object) -> BrokerProcess:
        started.append(make_node(tmp_path / f"node-{len(started)}", settings, **more))
        return started[-1]

    yield start
    for node in started:
        assert node.stop() == 0
        node.check()


def unix_client(path: Path, client_id: str | None = "near") -> SocketClient:
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(DEADLINE)
    connected.connect(str(path))
    return SocketClient(0, client_id, connected=connected)


def test_a_unix_socket(start_node: StartNode, tmp_path: Path) -> None:
    path = tmp_path / "s"
    node = start_node({"listeners.near.listen": f"unix:{path}", "listeners.near.socket_mode": "600"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with unix_client(path) as client:
        assert client.ping() == []
        assert node.wait_for_log("client connected")["address"] == f"unix:{os.getuid()}"
    node.kill()
    assert path.exists()
    node.start()  # the file of a dead process is replaced
    unix_client(path).close()
    other = BrokerProcess(tmp_path, "memory", {"listeners.near.listen": f"unix:{path}"})
    other.spawn()
    assert "another process does (it accepts connections)" in other.wait_for_log("can't listen on unix:")["event"]
    assert other.wait() == 2
    unix_client(path).close()
    node.stop()
    assert not path.exists()
    path.write_text("something else")
    other.spawn()
    other.wait_for_log("there is a file that is no socket")
    assert other.wait() == 2
    assert path.read_text() == "something else"


def test_a_listener_has_its_own_limit(start_node: StartNode) -> None:
    settings = {"listeners.small.listen": "127.0.0.1:0", "listeners.small.quotas.max_connections": 2}
    node = start_node(settings, arguments=["--http", "127.0.0.1:0"])
    port = int(node.wait_for_log("^listener$")["listen"].rpartition(":")[2])
    with SocketClient(port, "one") as one, SocketClient(port, "two"):
        with SocketClient(port) as third:
            assert third.receive() is None
        with SocketClient(node.port, "elsewhere"):
            pass
        one.close()
        until(lambda: figure(node, 'flockmq_listener_connections{listener="small"}') == 1)
        SocketClient(port, "three").close()
    assert figure(node, 'flockmq_listener_refused_total{listener="small"}') == 1
    assert figure(node, "flockmq_connections_refused_total") == 1
    assert figure(node, 'flockmq_listener_accepted_total{listener="small"}') == 3
    assert figure(node, 'flockmq_listener_accepted_total{listener="default"}') == 1
    assert figure(node, 'flockmq_listener_bytes_received_total{listener="default"}') > 0
    assert figure(node, 'flockmq_listener_bytes_sent_total{listener="default"}') == 4  # CONNACK


def figure(node: BrokerProcess, name: str) -> float:
    url = node.wait_for_log("HTTP server is listening")["listen"]
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/metrics") as page:
        lines = re.sub(r',node="[^"]*"|\{node="[^"]*"\}', "", page.read().decode()).splitlines()
    return float(next(text.rpartition(" ")[2] for text in lines if text.startswith(f"{name} ")))


def test_what_tls_counts(start_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    settings = tls_settings(authority.server(days=10), "mqtts://127.0.0.1:0")
    soon = authority.server("soon", ["soon.example"], days=2)
    (tmp_path / "soon.pem").write_bytes(soon.both())
    node = start_node(
        settings | {"listeners.open.tls.certificates": tmp_path / "soon.pem"}, arguments=["--http", "127.0.0.1:0"]
    )
    port = ports(node)["mqtts"]
    context = trusting(authority)
    first = tls_socket(port, context)
    with SocketClient(0, "lamp", connected=first) as client:
        client.ping()  # the ticket comes after the handshake
        session = first.session
    with SocketClient(0, "lamp", connected=tls_socket(port, context, session=session)) as client:
        client.ping()
    with SocketClient(port, None) as plain:
        plain.send(CONNECT)
        while plain.socket.recv(100):
            pass
    assert figure(node, "flockmq_tls_handshakes_total") == 2
    assert figure(node, "flockmq_tls_resumed_total") == 1
    assert figure(node, "flockmq_tls_failures_total") == 1
    assert figure(node, "flockmq_tls_certificate_expires") == int(soon.certificate.not_valid_after_utc.timestamp())


@pytest.mark.parametrize("header", [line(SIX), binary(FOUR, tlvs=bytes(300))], ids=["v1", "v2"])
@pytest.mark.parametrize("pause", [False, True], ids=["at once", "byte by byte"])
def test_a_proxy_before_tls_and_websocket(start_node: StartNode, tmp_path: Path, header: bytes, pause: bool) -> None:
    """The header comes first and in plain text; the bytes after it are TLS's or HTTP's."""
    authority = Authority(tmp_path / "a")
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0,ws://127.0.0.1:0")
    node = start_node(settings | PROXIED | {"proxy.listen": "127.0.0.1:0"})
    address = "[2001:db8::7]:65535" if header.startswith(b"PROXY") else "203.0.113.7:50123"
    for scheme, port in ports(node).items():
        plain = socket.create_connection(("127.0.0.1", port), DEADLINE)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [header[n : n + 1] for n in range(len(header))] if pause else []:
            plain.sendall(piece)
        start = b"" if pause else header
        if scheme == "ws":
            plain.sendall(start + request() + frame(BINARY, CONNECT))
            found = b""
            while not found.endswith(b"\x82\4\x20\2\0\0"):
                piece = plain.recv(1000)
                assert piece, found
                found += piece
        else:
            plain.sendall(start)
            wrapped = trusting(authority).wrap_socket(plain, server_hostname="localhost")
            SocketClient(0, "page", connected=wrapped).close()
        assert node.wait_for_log("client connected", transport=scheme)["address"] == address
        plain.close()


def test_who_is_no_proxy_is_closed_before_tls(start_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0") | PROXIED
    node = start_node(settings)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        tls_socket(ports(node)["mqtts"], trusting(authority))
    assert node.wait_for_log("before it was accepted")["reason"] == "no PROXY protocol header"


def test_sighup_follows_tables(start_node: StartNode, tmp_path: Path) -> None:
    file = tmp_path / "flockmq.toml"

    def write(most: int, more: str = "") -> None:
        file.write_text(
            f'[listeners.a]\nlisten = ["127.0.0.1:0"]\n[listeners.a.quotas]\nmax_connections = {most}\n'
            f'[listeners.w]\nlisten = ["ws://127.0.0.1:0"]\n{more}'
        )

    write(1)
    node = start_node({}, arguments=["--config", str(file)])
    port = int(node.wait_for_log("^listener$", name="a")["listen"].rpartition(":")[2])
    with SocketClient(port, "one"):
        with SocketClient(port) as refused:
            assert refused.receive() is None
        write(2, '[listeners.w.websocket]\npath = "/new"\n[listeners.b]\nlisten = ["127.0.0.1:0"]\n')
        node.signal(signal.SIGHUP)
        changed = node.wait_for_log("configuration read")["changed"]
        assert "listeners.a.quotas.max_connections: 1 -> 2" in changed
        assert 'listeners.w.websocket.path: not set -> "/new"' in changed
        assert "listeners.b.listen: not set" in node.wait_for_log("takes effect after a restart")["change"]
        SocketClient(port, "two").close()
    with socket.create_connection(("127.0.0.1", ports(node, "w")["ws"]), DEADLINE) as page:
        page.sendall(request())
        assert page.recv(100).startswith(b"HTTP/1.1 404 ")


def test_listeners_outlive_a_node_that_begins_anew(
    start_cluster: Callable[..., ClusterProcess], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "certificates")
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0,ws://127.0.0.1:0")
    cluster = start_cluster(settings | {"cluster.lease": "3s", "http.listen": "127.0.0.1:0"}, nodes="ab")
    node = cluster["a"]
    with tls_client(ports(node)["mqtts"], trusting(authority), "before") as before:
        node.begin_anew()
        assert before.receive() is None
    with tls_client(ports(node)["mqtts"], trusting(authority), "after") as after:
        assert after.ping() == []
        assert figure(node, 'flockmq_listener_connections{listener="open"}') == 1
    with socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE) as page:
        page.sendall(request() + frame(BINARY, CONNECT))
        assert page.recv(100).startswith(b"HTTP/1.1 101 ")
