"""Known attacks on listeners of brokers, each by its name: they end their own connection, and nothing else.

See also tests/protocol/test_proxy.py (headers of PROXY: from untrusted peers, cut off, of unknown families).
"""

import contextlib
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect, Pingreq, Publish
from flockmq._speedups.net.websocket import WebSocket
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.certificates import Authority
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.transports import make_node, ports, tls_client, tls_settings, trusting, websocket
from tests.model.websocket import BINARY, PROTOCOL_ERROR, TEXT, UNSUPPORTED_DATA, frame
from tests.protocol.test_websocket import request

CONNECT = encode(Connect(client_id="attacker", keep_alive=0))
CONNACK = b"\x20\2\0\0"
StartNode = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


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


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    running = make_node(tmp_path_factory.mktemp("attacked") / "node", tls_settings(authority.server()))
    yield running
    assert running.stop() == 0
    running.check()


@pytest.fixture(autouse=True)
def others_are_served(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever is done to the module's node, a client that was there before notices nothing."""
    if "node" not in request.fixturenames:
        yield
        return
    node: BrokerProcess = request.getfixturevalue("node")
    with SocketClient(node.port, "bystander") as bystander:
        yield
        assert bystander.ping() == []


def opened(node: BrokerProcess) -> socket.socket:
    """A WebSocket by hand, after its handshake."""
    connection = socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(request())
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        found += connection.recv(1000)
    assert found.startswith(b"HTTP/1.1 101 ")
    return connection


def read(connection: socket.socket, size: int = 1 << 20) -> bytes:
    """The bytes that come, up to so many or to the end."""
    found = b""
    try:
        while len(found) < size and (piece := connection.recv(size - len(found))):
            found += piece
    except ConnectionResetError:
        pass
    return found


# ---- CVE-2026-25627 (NanoMQ): frames that don't fit the packets in them


def test_cve_2026_25627_remaining_length_beyond_the_frame(node: BrokerProcess) -> None:
    """A packet may be longer than its frame: missing bytes are waited for, not read from beyond."""
    with opened(node) as connection:
        connect = encode(Connect(client_id="remaining", keep_alive=0))
        publish = encode(Publish(topic_name="t", payload=bytes(100), qos=1, packet_id=1))
        connection.sendall(frame(BINARY, connect) + frame(BINARY, publish[:3]))
        assert read(connection, 6) == frame(BINARY, CONNACK, mask=None)
        connection.sendall(frame(BINARY, publish[3:]))
        assert read(connection, 6) == frame(BINARY, b"\x40\2\0\1", mask=None)
        connection.sendall(frame(BINARY, b"\x30\xff\xff\xff\x7f"))  # 256 MiB announced, nothing sent
        assert read(connection).endswith(PROTOCOL_ERROR.to_bytes(2, "big"))
    ended = node.wait_for_log("connection ended", client_id="remaining")
    assert "268435460 bytes" in ended["reason"]


def test_cve_2026_25627_one_byte_frames(node: BrokerProcess) -> None:
    with opened(node) as connection:
        for byte in CONNECT + encode(Pingreq()):
            connection.sendall(frame(BINARY, bytes((byte,))))
        client, found = WebSocket(client=True), b""
        while len(found) < 6:
            found += client.receive(connection.recv(100))
        assert found == CONNACK + b"\xd0\0"


def test_cve_2026_25627_many_packets_in_a_frame(node: BrokerProcess) -> None:
    with opened(node) as connection:
        connection.sendall(frame(BINARY, CONNECT + encode(Pingreq()) * 10_000))
        assert read(connection, 20_008) == frame(BINARY, CONNACK + b"\xd0\0" * 10_000, mask=None)


def test_cve_2026_25627_text_frame(node: BrokerProcess) -> None:
    with opened(node) as connection:
        connection.sendall(frame(TEXT, CONNECT))
        assert read(connection).endswith(UNSUPPORTED_DATA.to_bytes(2, "big"))


@pytest.mark.parametrize("length", [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_cve_2026_25627_frame_of_16_eb(node: BrokerProcess, length: int) -> None:
    """The length is only counted down: nothing is allocated, and packets in it are served."""
    before = node.rss()
    with opened(node) as connection:
        connection.sendall(b"\x82\xff" + length.to_bytes(8, "big") + bytes(4) + CONNECT)
        answer = read(connection, 6)
        if length >> 63:
            assert answer[-2:] == PROTOCOL_ERROR.to_bytes(2, "big")
        else:
            assert answer == frame(BINARY, CONNACK, mask=None)
    assert node.rss() - before < 4 << 20


# ---- what else WebSocket brings


def test_zip_bomb_by_permessage_deflate(node: BrokerProcess) -> None:
    """Compression is never agreed, so a compressed frame is one with a reserved bit."""
    with websocket(ports(node)["ws"], compression="deflate") as connection:
        assert connection.response is not None
        assert "Sec-WebSocket-Extensions" not in connection.response.headers
    before = node.rss()
    with opened(node) as raw:
        bomb = zlib.compress(bytes(100 << 20), 9)
        raw.sendall(frame(BINARY, bomb[:60_000], reserved=4))
        assert read(raw).endswith(PROTOCOL_ERROR.to_bytes(2, "big"))
    assert node.rss() - before < 4 << 20


SMUGGLED = b"GET /mqtt HTTP/1.1\r\nHost: smuggled\r\n\r\n"


@pytest.mark.parametrize(
    "more",
    [
        "Content-Length: 39\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: y\nContent-Length: 39\r\n",
        " Content-Length: 39\r\n",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        "Host: twice\r\nUpgrade: h2c\r\n",
    ],
)
def test_http_smuggling(node: BrokerProcess, more: str) -> None:
    """A request that two readers could end at different places is refused, and nothing after it is a request."""
    with socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE) as connection:
        connection.sendall(request(more=more) + SMUGGLED)
        answer = read(connection)
    assert answer.startswith(b"HTTP/1.1 4")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close\r\n" in answer


def test_what_follows_an_upgrade_is_no_request(node: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE) as connection:
        connection.sendall(request() + SMUGGLED)
        answer = read(connection)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(PROTOCOL_ERROR.to_bytes(2, "big"))


# ---- CVE-2017-7652 (Mosquitto): a reload without file descriptors falls back to the open files


def test_cve_2017_7652_reload_without_file_descriptors(
    start_node: StartNode, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "flockmq.toml"
    server = authority.server("reload")
    file.write_text(
        f'[listeners.strict]\nlisten = ["mqtts://127.0.0.1:0"]\n[listeners.strict.tls]\ncertificate = "{server.cert}"\n'
        f'key = "{server.key}"\nclient_ca = "{authority.ca}"\nclient_certificate = "required"\nusername_from = "cn"\n'
    )
    node = start_node({}, arguments=["--config", str(file)])
    port = ports(node, "strict")["mqtts"]
    limit = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    lowest_free = min(set(range(1000)) - {int(fd) for fd in os.listdir(f"/proc/{node.pid}/fd")})
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (lowest_free, limit[1]))
    node.signal(signal.SIGHUP)
    assert "Too many open files" in node.wait_for_log("configuration not changed")["error"]
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, limit)
    with pytest.raises((ssl.SSLError, ConnectionError)), tls_client(port, trusting(authority), None) as nobody:
        nobody.receive()
    tls_client(port, trusting(authority, authority.client("lamp"))).close()
    node.signal(signal.SIGHUP)
    node.wait_for_log("configuration read")


# ---- CVE-2018-20145 (Mosquitto): options of a listener are silently left out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls.client_certificate": "required", "tls.client_ca": "x"}, "no address of this listener is one for it"),
        ({"websocket.origins": "https://a.example"}, "no address of this listener is one for it"),
        ({"listen": "mqtts://127.0.0.1:0"}, "certificate: mqtts:// and wss:// need one"),
        ({"tls.client_certificates": "required"}, "did you mean tls.client_certificate"),
        ({"store.url": "memory"}, "unknown key listeners.public.store.url"),
    ],
)
def test_cve_2018_20145_options_of_a_listener_are_never_left_out(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    public = {f"listeners.public.{key}": value for key, value in {"listen": "127.0.0.1:0", **settings}.items()}
    node = BrokerProcess(tmp_path, "memory", public)
    node.spawn()
    assert words in node.wait_for_log("flockmq: error: ")["event"]
    assert node.wait() == 2


def test_cve_2018_20145_each_listener_has_its_own(start_node: StartNode, authority: Authority) -> None:
    strict = {"client_ca": authority.ca, "client_certificate": "required"}
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0", "strict", **strict)
    settings |= tls_settings(authority.server(), "mqtts://127.0.0.1:0", "lax")
    settings |= {"listeners.few.listen": "127.0.0.1:0", "listeners.few.quotas.max_connections": 1}
    node = start_node(settings)
    tls_client(ports(node, "lax")["mqtts"], trusting(authority)).close()
    strict_port = ports(node, "strict")["mqtts"]
    with pytest.raises((ssl.SSLError, ConnectionError)), tls_client(strict_port, trusting(authority), None) as nobody:
        nobody.receive()
    few = ports(node, "few")["mqtt"]
    with SocketClient(few, "one"), SocketClient(node.port, "a"), SocketClient(node.port, "b"), SocketClient(few) as two:
        assert two.receive() is None


# ---- TLS


def hello(extension: bytes = b"", *, version: bytes = b"\3\3") -> bytes:
    """A ClientHello by hand."""
    ciphers = b"\xc0\x2b\xc0\x2f\x13\x01"
    body = version + bytes(32) + b"\0" + struct.pack(">H", len(ciphers)) + ciphers + b"\1\0"
    body += struct.pack(">H", len(extension)) + extension
    message = b"\1" + struct.pack(">I", len(body))[1:] + body
    return b"\x16\3\1" + struct.pack(">H", len(message)) + message


def name_extension(name: bytes, kind: int = 0) -> bytes:
    """SNI."""
    entry = bytes((kind,)) + struct.pack(">H", len(name)) + name
    return struct.pack(">HHH", 0, len(entry) + 2, len(entry)) + entry


@pytest.mark.parametrize(
    "data",
    [
        hello(name_extension(b"\0" * 10)),
        hello(name_extension(b"")),
        hello(name_extension(b"a" * 60_000)),
        hello(name_extension(b"localhost\0.evil.example")),
        hello(name_extension(b"..%2e\xff\r\n\x1b[31m")),
        hello(name_extension(b"x", kind=77)),
        hello(b"\0\0\0\xff\0\0"),
        hello(version=b"\3\0"),
        b"\x16\3\1\xff\xff" + bytes(100),
        b"\x80\x2e\1\0\2" + bytes(50),
        b"GET / HTTP/1.1\r\n\r\n",
        CONNECT,
    ],
    ids=[
        "NULs",
        "empty",
        "60 000 bytes",
        "NUL in the middle",
        "control characters",
        "unknown kind",
        "cut off",
        "SSL 3.0",
        "record of 64 KiB",
        "SSL 2.0",
        "HTTP",
        "MQTT",
    ],
)
def test_sni_garbage(node: BrokerProcess, data: bytes) -> None:
    since = len(node.log)
    with socket.create_connection(("127.0.0.1", ports(node)["mqtts"]), DEADLINE) as connection:
        connection.sendall(data)
        with contextlib.suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_WR)
        read(connection)
    ended = node.wait_for_log("before it was accepted", since=since)
    assert ended["reason"].startswith(("TLS: ", "closed by the client"))


def test_tls_renegotiation(node: BrokerProcess, authority: Authority) -> None:
    """A client of TLS 1.2 that asks for another handshake gets a warning and no work done."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{ports(node)['mqtts']}", "-tls1_2"]
    done = subprocess.run(command, input="R\n", capture_output=True, text=True, timeout=DEADLINE)
    assert "RENEGOTIATING" in done.stdout + done.stderr
    assert "no renegotiation" in done.stdout + done.stderr


def test_slow_tls_handshake_one_byte_at_a_time(start_node: StartNode, authority: Authority) -> None:
    """It has as long as CONNECT has, however busily it sends."""
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0") | {"limits.connect_timeout": "1s"}
    node = start_node(settings)
    with socket.create_connection(("127.0.0.1", ports(node)["mqtts"]), DEADLINE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            for byte in hello(name_extension(b"a" * 1000)):
                connection.sendall(bytes((byte,)))
                time.sleep(0.01)
        assert time.monotonic() - began < 5
    assert node.wait_for_log("before it was accepted")["reason"] == "no CONNECT in time"


def test_slow_http_request(start_node: StartNode) -> None:
    node = start_node({"listeners.open.listen": "ws://127.0.0.1:0", "limits.connect_timeout": "0.5s"})
    with socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE) as connection:
        connection.sendall(request()[:-2])
        assert read(connection) == b""
    with opened(node) as connection:
        assert read(connection).endswith(b"\x88\2\x03\xe8")
    assert node.wait_for_log("before it was accepted")["reason"] == "no CONNECT in time"


def test_a_thousand_half_handshakes(start_node: StartNode, authority: Authority) -> None:
    """Memory stays flat: another thousand costs nothing more, others are let in, and in time all are gone."""
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0") | {"limits.max_pending_connects": 1500}
    node = start_node(settings | {"limits.connect_timeout": "3s"})
    port = ports(node)["mqtts"]
    idle = node.open_files()

    def half(many: int) -> list[socket.socket]:
        made = [socket.create_connection(("127.0.0.1", port), DEADLINE) for _ in range(many)]
        for each in made:
            each.sendall(hello(name_extension(b"localhost"))[:-1])
        tls_client(port, trusting(authority), "between").close()
        return made

    timed_out = half(1000)
    until(lambda: node.open_files() == idle, "all have gone")
    for each in timed_out:
        each.close()
    used = []
    for _ in range(8):  # the first rounds take memory that later ones use again
        made = half(1000)
        used.append(node.rss())
        for each in made:
            each.close()
        until(lambda: node.open_files() == idle, "all have gone")
    assert min(after - before for before, after in pairwise(used)) < 1 << 20  # a leak loses memory each time
