"""MQTT over WebSocket at a real node, spoken by `websockets`: the clients that are admitted, and the form of frames."""

import socket
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect, Disconnect, Packet, Pingreq, Pingresp, Publish, Subscribe
from tests.harness.broker_process import BrokerProcess
from tests.harness.certificates import Authority
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.transports import make_node, ports, tls_settings, trusting, websocket
from tests.model.websocket import BINARY, PING, PROTOCOL_ERROR, TEXT, UNSUPPORTED_DATA, frame

CONNECT = encode(Connect(client_id="page", keep_alive=0))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = tls_settings(authority.server()) | {"limits.max_outgoing_bytes": "64 MiB"}
    settings |= {"listeners.apps.listen": "ws://127.0.0.1:0", "listeners.apps.websocket.path": "/fleet"}
    settings |= {"listeners.apps.websocket.origins": "https://app.example,http://localhost:3000"}
    settings |= {"listeners.all.listen": "ws://127.0.0.1:0", "listeners.all.websocket.origins": "*"}
    running = make_node(tmp_path_factory.mktemp("websocket") / "node", settings)
    yield running
    assert running.stop() == 0
    running.check()


class Page:
    """An MQTT client at one end of a WebSocket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._decoder = Decoder(4)
        self._packets: list[Packet] = []

    def receive(self) -> Packet:
        while not self._packets:
            data = self.connection.recv(DEADLINE)
            assert isinstance(data, bytes)
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)


@pytest.mark.parametrize("secure", [False, True], ids=["ws", "wss"])
@pytest.mark.parametrize("size", [1, 20_000, 300_000])
def test_messages(node: BrokerProcess, authority: Authority, secure: bool, size: int) -> None:
    context = trusting(authority) if secure else None
    with websocket(ports(node)["wss" if secure else "ws"], context, max_size=None) as connection:
        page = Page(connection)
        connection.send(CONNECT + encode(Subscribe(packet_id=1, topic_filters=[("w", 2)])))
        payload = bytes(n & 255 for n in range(size))
        connection.send([part for at in range(0, size + 7, 1000) for part in [publish("w", payload)[at : at + 1000]]])
        packets = [page.receive() for _ in range(3)]
        message = next(packet for packet in packets if isinstance(packet, Publish))
        assert message.payload == payload
        assert connection.subprotocol == "mqtt"
        connection.send(encode(Disconnect()))
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(DEADLINE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        assert "Sec-WebSocket-Extensions" not in connection.response.headers  # type: ignore[union-attr]


@pytest.mark.parametrize("secure", [False, True], ids=["ws", "wss"])
def test_who_reads_slowly_gets_all(node: BrokerProcess, authority: Authority, secure: bool) -> None:
    """Frames are cut where the socket takes no more, and go on there."""
    context = trusting(authority) if secure else None
    with (
        websocket(ports(node)["wss" if secure else "ws"], context, max_size=None, max_queue=1) as connection,
        SocketClient(node.port, "fast") as fast,
    ):
        page = Page(connection)
        connection.send(CONNECT + encode(Subscribe(packet_id=1, topic_filters=[("bulk", 0)])))
        page.receive()
        page.receive()
        for n in range(200):
            fast.send(Publish(topic_name="bulk", payload=bytes((n,)) * 50_000, qos=0))
        fast.ping()
        for n in range(200):
            packet = page.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == bytes((n,)) * 50_000
        connection.send(encode(Pingreq()))
        assert isinstance(page.receive(), Pingresp)


def publish(topic: str, payload: bytes) -> bytes:
    return encode(Publish(topic_name=topic, payload=payload, qos=0, packet_id=0))


def test_a_close_is_answered(node: BrokerProcess) -> None:
    with websocket(ports(node)["ws"]) as connection:
        connection.send(CONNECT)
        Page(connection).receive()
        connection.close(1001)
        assert connection.close_code == 1001


def test_a_ping_is_answered(node: BrokerProcess) -> None:
    with websocket(ports(node)["ws"]) as connection:
        connection.send(CONNECT)
        assert connection.ping(b"are you there").wait(DEADLINE)


def test_pings_keep_no_client_alive(node: BrokerProcess) -> None:
    """[MQTT-3.1.2-24] asks for packets, and no packet is in a frame without payload."""
    with websocket(ports(node)["ws"], ping_interval=0.2) as connection:
        connection.send(encode(Connect(client_id="pings", keep_alive=1)))
        Page(connection).receive()
        with pytest.raises(ConnectionClosed):
            connection.recv(DEADLINE)
    assert "keep alive" in node.wait_for_log("connection ended", client_id="pings")["reason"]


@pytest.mark.parametrize(
    ("listener", "more", "status"),
    [
        ("open", {"path": "/other"}, 404),
        ("open", {"path": "/mqtt/"}, 404),
        ("open", {"path": "/mqtt?x=1"}, 101),
        ("open", {"subprotocols": ["mqttv3.1"]}, 101),
        ("open", {"subprotocols": ["chat", "mqtt"]}, 101),
        ("open", {"subprotocols": ["chat"]}, 400),
        ("open", {"subprotocols": None}, 400),
        ("open", {"origin": "http://evil.example"}, 403),
        ("open", {"origin": "null"}, 403),
        ("open", {"origin": "http://127.0.0.1:{port}"}, 101),
        ("open", {"origin": "http://127.0.0.1"}, 403),
        ("open", {"origin": "http://evil.example", "additional_headers": {"Host": "evil.example"}}, 403),
        ("apps", {"path": "/fleet", "origin": "https://app.example"}, 101),
        ("apps", {"path": "/fleet", "origin": "https://APP.example.evil"}, 403),
        ("apps", {"path": "/fleet", "origin": "http://127.0.0.1:{port}"}, 403),
        ("apps", {"path": "/fleet"}, 101),
        ("apps", {"path": "/mqtt"}, 404),
        ("all", {"origin": "http://anybody.example"}, 101),
    ],
)
def test_who_is_let_in(node: BrokerProcess, listener: str, more: dict[str, object], status: int) -> None:
    port = ports(node, listener)["ws"]
    if isinstance(origin := more.get("origin"), str):
        more = {**more, "origin": origin.format(port=port)}
    try:
        with websocket(port, None, **more) as connection:  # type: ignore[arg-type]
            found = connection.response.status_code  # type: ignore[union-attr]
    except InvalidStatus as refused:
        found = refused.response.status_code
    assert found == status
    if status == 403:
        node.wait_for_log(
            "connection ended before it was accepted",
            reason=f"WebSocket: no page of this origin may connect: {more['origin']}",
        )


REQUEST = (
    "GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n{more}\r\n"
)


def raw(node: BrokerProcess, data: bytes) -> bytes:
    """All that is answered to these bytes."""
    found = b""
    with socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        try:
            while piece := connection.recv(65536):
                found += piece
        except ConnectionResetError:
            pass
    return found


def request(host: str = "127.0.0.1", more: str = "") -> bytes:
    return REQUEST.format(host=host, more=more).encode()


def test_what_follows_a_request_at_once_is_taken(node: BrokerProcess) -> None:
    answer = raw(node, request() + frame(BINARY, CONNECT + encode(Pingreq())))
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert frame(BINARY, b"\x20\2\0\0\xd0\0", mask=None) in answer


def test_a_name_that_leads_here_is_not_ours(node: BrokerProcess) -> None:
    """DNS rebinding: the page's host has our address now; in plain text nothing shows that it isn't us."""
    evil = request("evil.example:80", "Origin: http://evil.example:80\r\n")
    assert raw(node, evil).startswith(b"HTTP/1.1 403 ")
    assert raw(node, request("localhost:80", "Origin: http://localhost:80\r\n")).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /mqtt HTTP/1.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 426),
        (b"GET nonsense\r\n\r\n", 400),
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\nCookie: " + bytes(9000) + b"\r\n\r\n", 400),
        (CONNECT, 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
    ids=["POST", "HTTP 1.0", "no upgrade", "nonsense", "9000 bytes", "MQTT without WebSocket", "TLS"],
)
def test_what_is_no_request(node: BrokerProcess, data: bytes, status: int) -> None:
    assert raw(node, data).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("data", "code"), [(frame(TEXT, CONNECT), UNSUPPORTED_DATA), (frame(BINARY, CONNECT, mask=None), PROTOCOL_ERROR)]
)
def test_a_fault_is_said(node: BrokerProcess, data: bytes, code: int) -> None:
    assert raw(node, request() + data).endswith(code.to_bytes(2, "big"))


def test_answers_to_pings_do_not_pile_up(node: BrokerProcess) -> None:
    """A client that pings and doesn't read costs one answer, and loses nothing else."""
    before = node.rss()
    with socket.create_connection(("127.0.0.1", ports(node)["ws"]), DEADLINE) as connection:
        connection.sendall(request() + frame(BINARY, CONNECT))
        connection.settimeout(1)
        for _ in range(1000):
            connection.sendall(frame(PING, bytes(125)) * 100)
    assert node.rss() - before < 8 << 20
