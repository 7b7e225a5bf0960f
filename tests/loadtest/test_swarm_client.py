"""A simulated client, with its socket, against a real node and a bad network."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq._speedups.protocol.client_session import ConnectOptions, Will
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from flockmq.loadtest.swarm.client import Client, Network
from flockmq.loadtest.swarm.connection import Connection
from flockmq.loadtest.swarm.timer import Timer
from tests.harness.broker_process import BrokerProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient


class Listener:
    """The events of a client."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.messages: list[Publish] = []
        self.tokens: list[Any] = []

    def connected(self, seconds: float, session_present: bool) -> None:
        self.happened.append(f"connected {session_present}")

    def refused(self, reason: str, seconds: float) -> None:
        self.happened.append(f"refused: {reason}")

    def disconnected(self, reason: str) -> None:
        self.happened.append(f"disconnected: {reason}")

    def delivered(self, packet: Publish) -> None:
        self.messages.append(packet)

    def acknowledged(self, token: Any) -> None:
        self.tokens.append(token)


class Test:
    """Makes clients of one node or proxy."""

    __test__ = False

    def __init__(self) -> None:
        self.timer = Timer()
        self.clients: list[Client] = []

    def client(self, port: int, *topic_filters: tuple[str, int], source: str = "", **options: Any) -> Client:
        listener = Listener()
        settings = ConnectOptions(**{"client_id": f"c{len(self.clients)}", **options})
        network = Network([("127.0.0.1", port)], [source] if source else [])
        client = Client(settings, list(topic_filters), listener, network, self.timer)
        self.clients.append(client)
        client.open()
        return client


def heard(client: Client) -> Listener:
    listener = client._listener
    assert isinstance(listener, Listener)
    return listener


def until(condition: Callable[[], Any]) -> None:
    """As `broker_process.until`, while gevent's loop runs."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        gevent.sleep(0.005)


@pytest.fixture
def test() -> Iterator[Test]:
    test = Test()
    timer = gevent.spawn(test.timer.run)
    yield test
    for client in test.clients:
        client.vanish()
    timer.kill()


def test_messages_of_every_qos_both_ways(node: BrokerProcess, test: Test) -> None:
    receiver = test.client(node.port, ("t/#", 2))
    sender = test.client(node.port)
    assert receiver.ready.wait(DEADLINE) and sender.ready.wait(DEADLINE)
    for number in range(90):
        sender.publish("t/1", b"%d" % number, number % 3, token=number)
    until(lambda: len(heard(receiver).messages) == 90 and len(heard(sender).tokens) == 60)
    assert sorted(heard(sender).tokens) == [number for number in range(90) if number % 3]
    for qos in range(3):
        numbers = [int(packet.payload) for packet in heard(receiver).messages if packet.qos == qos]
        assert numbers == list(range(qos, 90, 3)), "in order"
    assert sender.unacknowledged == 0


def test_a_large_message_that_the_socket_does_not_take_at_once(node: BrokerProcess, test: Test) -> None:
    with TcpProxy(node.port) as proxy:
        client = test.client(proxy.port, ("t", 1))
        assert client.ready.wait(DEADLINE)
        proxy.stall()
        payloads = [bytes([number]) * 1_500_000 for number in range(6)]
        for payload in payloads:
            client.publish("t", payload, 1)
        assert client._connection is not None and client._connection._to_send
        proxy.resume()
        until(lambda: len(heard(client).messages) == len(payloads))
        assert [packet.payload for packet in heard(client).messages] == payloads


def test_a_will_is_left_by_who_vanishes_and_not_by_who_closes(node: BrokerProcess, test: Test) -> None:
    with SocketClient(node.port, "witness") as witness:
        witness.subscribe(("will/#", 0))
        polite = test.client(node.port, ("noise", 0), will=Will("will/polite", b"x"))
        abrupt = test.client(node.port, will=Will("will/abrupt", b"x"))
        assert polite.ready.wait(DEADLINE) and abrupt.ready.wait(DEADLINE)
        polite.publish("noise", bytes(100_000), 0)  # unread, when it closes
        polite.close()
        until(lambda: all(connection.ended for connection in test.timer.closing))
        abrupt.vanish()
        packet = witness.receive()
        assert isinstance(packet, Publish) and packet.topic_name == "will/abrupt"


def test_the_end_of_a_connection_is_not_a_reset_though_something_is_unread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened: list[bool] = []
        address = ("127.0.0.1", server.getsockname()[1])
        connection = Connection(address, "", lambda: opened.append(True), lambda data: None, lambda reason: None)
        until(lambda: opened)
        other, _ = server.accept()
        with other:
            other.sendall(bytes(100_000))
            connection.send(b"bye")
            connection.finish()
            assert [other.recv(100), other.recv(100)] == [b"bye", b""]
        until(lambda: connection.ended)


def test_it_comes_back_and_sends_again_what_was_not_acknowledged(node: BrokerProcess, test: Test) -> None:
    with TcpProxy(node.port) as proxy, SocketClient(node.port, "witness") as witness:
        witness.subscribe(("t", 2))
        client = test.client(proxy.port, ("t", 2), clean_start=False)
        assert client.ready.wait(DEADLINE)
        proxy.stall()
        client.publish("t", b"one", 1, token=1)
        client.publish("t", b"two", 2, token=2)
        gevent.sleep(0)
        proxy.refuse()
        proxy.cut()
        until(lambda: sum(word.startswith("refused") for word in heard(client).happened) >= 2)
        assert not client.ready.is_set() and not client.may_publish and client.unacknowledged == 2
        proxy.resume()
        until(lambda: heard(client).tokens == [1, 2])
        assert heard(client).happened[-1] == "connected True"
        assert heard(client).happened[1].startswith("disconnected: ")
        seen = [witness.receive(), witness.receive()]
        assert [packet.payload for packet in seen if isinstance(packet, Publish)] == [b"one", b"two"]
        until(lambda: len(heard(client).messages) == 2)


def test_it_subscribes_if_the_connection_was_lost_before_suback(node: BrokerProcess, test: Test) -> None:
    with SocketClient(node.port, "c0", clean_start=False):
        pass  # as if it had been lost then: the broker has the session, without subscriptions
    client = test.client(node.port, ("t", 1), clean_start=False)
    assert client.ready.wait(DEADLINE)
    client.publish("t", b"x", 1)
    until(lambda: heard(client).messages)


def test_a_broker_that_says_nothing_is_given_up(
    node: BrokerProcess, test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flockmq.loadtest.swarm.client.TIMEOUT", 1.0)
    with TcpProxy(node.port) as proxy:
        client = test.client(proxy.port, keep_alive=1)
        assert client.ready.wait(DEADLINE)
        gevent.sleep(2.5)
        assert heard(client).happened == ["connected False"], "pings keep it"
        proxy.stall()
        until(lambda: "disconnected: no answer to PINGREQ" in heard(client).happened)
        until(lambda: "refused: no answer to CONNECT or SUBSCRIBE" in heard(client).happened)
        proxy.resume()
        assert client.ready.wait(DEADLINE)


def test_who_is_refused_says_why(tmp_path: Path, test: Test) -> None:
    client = test.client(1)
    until(lambda: heard(client).happened == ["refused: connection refused"] * 2)
    node = BrokerProcess(tmp_path).start()
    try:
        client = test.client(node.port, client_id="", clean_start=False)
        until(lambda: heard(client).happened[:1] == ["refused: identifier rejected"])
    finally:
        node.stop()


def test_a_source_address(node: BrokerProcess, test: Test) -> None:
    client = test.client(node.port, source="127.0.3.7")
    assert client.ready.wait(DEADLINE)
    connection = client._connection
    assert connection is not None and connection._socket.getsockname()[0] == "127.0.3.7"


def test_those_who_drop_their_connections_are_back(node: BrokerProcess, test: Test) -> None:
    clients = [test.client(node.port) for _ in range(300)]
    until(lambda: all(client.ready.is_set() for client in clients))
    for client in clients:
        client.drop()
    assert not any(client.ready.is_set() for client in clients)
    until(lambda: all(client.ready.is_set() for client in clients))
    assert all(heard(client).happened == ["connected False"] * 2 for client in clients)
