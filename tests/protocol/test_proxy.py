"""Clients behind a load balancer that speaks the PROXY protocol, at a real node."""

import signal
import socket
from collections.abc import Callable

import pytest

from tests.cases.proxy_headers import BAD, FOUR, GOOD, SIX, Header, binary, line
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.protocol.packet_lines import parse_packet

pytestmark = pytest.mark.one_process
StartBroker = Callable[..., Broker]
CONNECT = parse_packet("connect id=lamp", 4)
CONNACK = parse_packet("connack", 4)
PROXIED = {"proxy.listen": "127.0.0.1:0", "auth.allow_anonymous": True}
HOSTS = {"203.0.113.7:50123": FOUR, "[2001:db8::7]:65535": SIX}


@pytest.fixture
def proxied(start_broker: StartBroker) -> Broker:
    return start_broker({**PROXIED, "log.level": "debug"})


def connect(broker: Broker) -> socket.socket:
    """A connection to the port for proxies."""
    host, _, port = broker.wait_for_log("load balancers")["listen"].removeprefix("mqtt://").rpartition(":")
    return socket.create_connection((host, int(port)), DEADLINE)


def answer(connection: socket.socket, size: int = 4) -> bytes:
    """The bytes that come, up to so many; less when the connection ends."""
    data = b""
    try:
        while len(data) < size and (piece := connection.recv(size - len(data))):
            data += piece
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_the_address_is_the_clients(proxied: Broker, case: Header) -> None:
    with connect(proxied) as connection:
        own = "{}:{}".format(*connection.getsockname())
        connection.sendall(case.data + CONNECT + parse_packet("pingreq", 4))
        assert answer(connection, 6) == CONNACK + parse_packet("pingresp", 4)
    expected = next((text for text, client in HOSTS.items() if client == case.client), own)
    assert proxied.wait_for_log("client connected", client_id="lamp")["address"] == expected


@pytest.mark.parametrize("header", [line(SIX), binary(FOUR, tlvs=bytes(40))], ids=["v1", "v2"])
def test_one_byte_at_a_time(proxied: Broker, header: bytes) -> None:
    with connect(proxied) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in header + CONNECT:
            connection.sendall(bytes((byte,)))
        assert answer(connection) == CONNACK


@pytest.mark.parametrize(("name", "data", "words"), BAD, ids=[name for name, _, _ in BAD])
def test_what_is_no_header_ends_its_connection(proxied: Broker, name: str, data: bytes, words: str) -> None:
    with connect(proxied) as connection:
        connection.sendall(data + CONNECT)
        assert answer(connection) == b""
    assert words in proxied.wait_for_log("connection ended before it was accepted")["reason"]


def test_a_header_is_taken_at_the_other_port_by_nobody(proxied: Broker) -> None:
    with socket.create_connection(("127.0.0.1", proxied.port), DEADLINE) as connection:
        connection.sendall(line(FOUR) + CONNECT)
        assert answer(connection) == b""


def test_who_is_not_trusted_is_closed(start_broker: StartBroker) -> None:
    broker = start_broker({**PROXIED, "proxy.trusted": "10.0.0.0/8,::1/128", "log.level": "info"})
    with connect(broker) as connection:
        connection.sendall(line(FOUR) + CONNECT)
        assert answer(connection) == b""
    ended = broker.wait_for_log("connection ended before it was accepted")
    assert ended["reason"] == "not from a trusted proxy"
    assert ended["address"].startswith("127.0.0.1:")


def test_who_is_not_trusted_keeps_nobody_waiting(start_broker: StartBroker) -> None:
    settings = {**PROXIED, "proxy.trusted": "10.0.0.0/8", "limits.max_pending_connects": 1}
    broker = start_broker(settings)
    broker.wait_for_log("load balancers")
    broker.signal(signal.SIGSTOP)  # all come in one turn
    connections = [connect(broker) for _ in range(10)]
    broker.signal(signal.SIGCONT)
    for connection in connections:
        with connection:
            assert answer(connection) == b""
    assert not any("accepting no connections" in entry["event"] for entry in broker.log)


def test_a_header_has_as_much_time_as_connect(start_broker: StartBroker) -> None:
    broker = start_broker({**PROXIED, "limits.connect_timeout": "0.5s", "log.level": "debug"})
    with connect(broker) as connection:
        connection.sendall(line(FOUR)[:20])
        assert answer(connection) == b""
    assert broker.wait_for_log("connection ended")["reason"] == "no CONNECT in time"


def test_a_check_that_says_nothing_is_harmless(proxied: Broker) -> None:
    before = proxied.open_files()
    for _ in range(20):
        connect(proxied).close()
    until(lambda: proxied.open_files() == before)
    with connect(proxied) as connection:
        connection.sendall(binary(None, command=0x20))
    until(lambda: proxied.open_files() == before)
