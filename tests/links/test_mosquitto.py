"""Links to a real Mosquitto, and its own bridges to a node."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.conftest import StartBroker
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.mosquitto_process import MosquittoProcess
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

pytestmark = [
    pytest.mark.skipif(not MosquittoProcess.is_installed(), reason="not installed: mosquitto"),
    pytest.mark.parametrize("store", ["sqlite"]),
]
TOPICS = ["out/# out 2", 'cmd/# in 2 "" plant/', "both/# both 1"]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[MosquittoProcess]:
    """One that accepts anybody."""
    process = MosquittoProcess(tmp_path).start()
    yield process
    process.kill()


def links(**tables: dict[str, object]) -> dict[str, object]:
    """The setting of a node with these links."""
    return {"links": json.dumps(tables), "http.listen": "127.0.0.1:0"}


def linked(start_broker: StartBroker, mosquitto: MosquittoProcess, version: str, **more: object) -> BrokerProcess:
    """A node with a link to it, which is connected."""
    table = {"url": f"mqtt://127.0.0.1:{mosquitto.port}", "topics": TOPICS, "version": version, "retry": 0.5, **more}
    broker = start_broker(links(m=table))
    broker.wait_for_log("link is connected")
    return broker


def received(client: SocketClient, number: int) -> set[tuple[str, bytes, int, bool]]:
    """So many messages; each is acknowledged, so that none comes twice."""
    found = []
    while len(found) < number:
        packet = client.receive()
        if isinstance(packet, Publish):
            found.append((packet.topic_name, packet.payload, packet.qos, packet.retain))
    return set(found)


@pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])
def test_messages_go_out_and_come_in_and_do_not_return(
    start_broker: StartBroker, mosquitto: MosquittoProcess, version: str
) -> None:
    broker = linked(start_broker, mosquitto, version)
    with SocketClient(broker.port, "here") as here, SocketClient(mosquitto.port, "there") as there:
        here.subscribe(("#", 2))
        there.subscribe(("#", 2))
        here.send(
            Publish("out/a", b"1", qos=0),
            Publish("both/a", b"2", qos=1, packet_id=1, retain=True),
            Publish("cmd/a", b"is not for there", qos=0),
        )
        there.send(
            Publish("plant/cmd/b", b"3", qos=0),
            Publish("both/b", b"4", qos=1, packet_id=1, retain=True),
            Publish("out/b", b"is not for here", qos=0),
        )
        assert received(here, 5) == {
            ("out/a", b"1", 0, False),
            ("both/a", b"2", 1, False),
            ("cmd/a", b"is not for there", 0, False),
            ("cmd/b", b"3", 0, False),
            ("both/b", b"4", 1, False),
        }
        assert received(there, 5) == {
            ("out/a", b"1", 0, False),
            ("both/a", b"2", 1, False),
            ("plant/cmd/b", b"3", 0, False),
            ("both/b", b"4", 1, False),
            ("out/b", b"is not for here", 0, False),
        }
        # Whatever has returned, or was carried against the rules, would come before these.
        here.send(Publish("both/last", b"", qos=0))
        there.send(Publish("both/last", b"", qos=0))
        assert received(here, 2) == received(there, 2) == {("both/last", b"", 0, False)}
    for port in (broker.port, mosquitto.port):
        with SocketClient(port, "late") as late:
            late.subscribe(("both/#", 1))
            assert received(late, 2) == {("both/a", b"2", 1, True), ("both/b", b"4", 1, True)}


def test_messages_wait_for_a_broker_that_is_away(start_broker: StartBroker, mosquitto: MosquittoProcess) -> None:
    with TcpProxy(mosquitto.port) as network, SocketClient(mosquitto.port, "there") as there:
        there.subscribe(("out/#", 0))  # so that nothing waits for its acknowledgements
        broker = linked(start_broker, mosquitto, "3.1.1", url=f"mqtt://127.0.0.1:{network.port}")
        network.refuse()
        network.cut()
        broker.wait_for_log("link is not connected")
        with SocketClient(broker.port, "here") as here:
            here.send(*(Publish("out/a", b"%d" % number, qos=1, packet_id=number) for number in range(1, 51)))
            for _ in range(50):
                assert isinstance(here.receive(), Puback)
        broker.kill()
        broker.start()
        network.resume()
        found = [packet.payload for _ in range(50) if isinstance(packet := there.receive(), Publish)]
        assert found == [b"%d" % number for number in range(1, 51)]


def test_a_message_that_is_too_large_does_not_stop_the_others(
    start_broker: StartBroker, mosquitto: MosquittoProcess
) -> None:
    table = {"url": f"mqtt://127.0.0.1:{mosquitto.port}", "topics": ["a in 2"], "version": "3.1.1"}
    broker = start_broker({"limits.max_packet_size": 1000, **links(m=table)})
    broker.wait_for_log("link is connected")
    with SocketClient(broker.port, "here") as here, SocketClient(mosquitto.port, "there") as there:
        here.subscribe(("a", 1))
        there.send(Publish("a", bytes(100_000), qos=1, packet_id=1), Publish("a", b"next", qos=1, packet_id=2))
        assert received(here, 1) == {("a", b"next", 1, False)}
    (link,) = HttpClient(broker).get("/links")["items"]
    assert link["in"]["ended"]["too_large"] == 1 and link["state"] == "connected"


def test_a_bridge_of_mosquitto(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0"})
    lines = ("connection up", f"address 127.0.0.1:{broker.port}", 'topic # both 1 "" site/', "restart_timeout 1")
    mosquitto = MosquittoProcess(tmp_path, *lines).start()
    try:
        until(lambda: "Received SUBACK" in mosquitto.log_text(), "its bridge has subscribed")
        with SocketClient(broker.port, "here") as here, SocketClient(mosquitto.port, "there") as there:
            here.subscribe(("site/#", 1), ("$SYS/broker/connection/+/state", 0))
            there.subscribe(("#", 1))
            here.send(Publish("site/a", b"1", qos=1, packet_id=1, retain=True), Publish("site/q", b"2", retain=True))
            there.send(Publish("b", b"3", qos=1, packet_id=1, retain=True))
            names = {(topic.rpartition("/")[2], payload) for topic, payload, *_ in received(here, 4)}
            assert names == {("state", b"1"), ("a", b"1"), ("q", b"2"), ("b", b"3")}
            assert {topic for topic, *_ in received(there, 3)} == {"a", "q", "b"}
            here.send(Publish("site/last", b""))
            there.send(Publish("last", b""))
            assert [topic for topic, *_ in received(here, 2)] == ["site/last"]
            assert [topic for topic, *_ in received(there, 2)] == ["last"]
        with SocketClient(mosquitto.port, "late") as late:  # RETAIN is as published
            late.subscribe(("#", 0))
            assert received(late, 3) == {("a", b"1", 0, True), ("q", b"2", 0, True), ("b", b"3", 0, True)}
    finally:
        mosquitto.kill()
