"""The other broker is away when a link begins, or when a rule is added: messages acknowledged before wait for it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.socket_client import SocketClient
from tests.links.test_links import HTTP, links, payloads, table
from tests.links.test_lost_sessions import OtherBroker, other
from tests.links.test_wanted import filters_of, publish
from tests.web.http_client import HttpClient

__all__ = ["other"]  # a fixture
one_store = pytest.mark.parametrize("store", ["sqlite"])
NUMBERS = [b"%d" % number for number in range(1, 6)]


@pytest.fixture
def network() -> Iterator[TcpProxy]:
    """The way to the other broker, which refuses all connections."""
    with TcpProxy(0) as found:
        found.refuse()
        yield found


def arrive(network: TcpProxy, port: int) -> None:
    """The other broker is there."""
    network.target = port
    network.resume()


def send(port: int, *packets: Publish) -> None:
    """Publish messages of QoS 1 and 2 until they are acknowledged."""
    with SocketClient(port, "publisher", level=5) as client:
        for packet in packets:
            client.send(packet)
            if packet.qos == 2:
                assert isinstance(client.receive(), Pubrec)
                client.send(Pubrel(packet.packet_id))
            assert isinstance(client.receive(), (Puback, Pubcomp))


def link_waits(broker: BrokerProcess) -> int:
    """Messages in the queue of the link."""
    return int(HttpClient(broker).get("/links")["items"][0]["waiting"])


def five(qos: int) -> list[Publish]:
    return [Publish("a/x", payload, qos=qos, packet_id=number) for number, payload in enumerate(NUMBERS, 1)]


@one_store
@pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_the_first_connection(
    start_broker: StartBroker, network: TcpProxy, version: str, qos: int
) -> None:
    here = start_broker(links(far=table(network.port, "a/# out 2", version=version)))
    send(here.port, *five(qos))
    here.kill()
    there = start_broker(HTTP)
    with SocketClient(there.port, "reader") as reader:
        reader.subscribe(("a/#", 2))
        here.start()
        arrive(network, there.port)
        here.wait_for_log("link is connected")
        publish(here, ["a/end"], qos=qos)
        assert payloads(reader, b"a/end") == [*NUMBERS, b"a/end"]
        assert filters_of(here, "$link/far") == {"a/#"}
    assert here.stop() == 0


@one_store
def test_a_rule_that_sighup_adds_while_the_other_broker_is_away(
    start_broker: StartBroker, network: TcpProxy, tmp_path: Path
) -> None:
    path = tmp_path / "node.toml"
    text = f'[links.far]\nurl = "mqtt://127.0.0.1:{network.port}"\nretry = 0.5\ntopics = '
    path.write_text(text + '["b out 2"]\n')
    there = start_broker(HTTP)
    arrive(network, there.port)
    here = start_broker(HTTP, arguments=["--config", str(path)])
    here.wait_for_log("link is connected")
    send(here.port, Publish("a/state", b"retained", qos=1, packet_id=1, retain=True))
    network.refuse()
    network.cut()
    here.wait_for_log("link is not connected")
    path.write_text(text + '["b out 2", "a/# out 2"]\n')
    before = len(here.log)
    here.signal(signal.SIGHUP)
    here.wait_for_log("configuration read", since=before)
    send(here.port, *five(2))
    with SocketClient(there.port, "reader") as reader:
        reader.subscribe(("a/#", 2))
        network.resume()
        assert payloads(reader, NUMBERS[-1]) == [b"retained", *NUMBERS]


@one_store
def test_retained_messages_cross_with_the_first_connection(start_broker: StartBroker, network: TcpProxy) -> None:
    """With QoS 1 they are in the queue; with QoS 0 the present ones are sent, also by a rule of QoS 0."""
    here = start_broker(links(far=table(network.port, "a/# out 1", "zero/# out 0")))
    with SocketClient(here.port, "publisher") as client:
        for topic in ("a/0", "zero/1"):
            client.send(Publish(topic, b"old", retain=True), Publish(topic, b"new " + topic.encode(), retain=True))
    send(
        here.port,
        Publish("a/1", b"queued", qos=1, packet_id=1, retain=True),
        Publish("zero/2", b"lowered", qos=1, packet_id=2, retain=True, properties={"message_expiry_interval": 60}),
    )
    there = start_broker(HTTP)
    with SocketClient(there.port, "reader", level=5) as reader:
        reader.subscribe(("#", 2))
        arrive(network, there.port)
        found = [packet for _ in range(4) if isinstance(packet := reader.receive(), Publish)]
        assert sorted(packet.payload for packet in found) == [b"lowered", b"new a/0", b"new zero/1", b"queued"]
        (lowered,) = [packet for packet in found if packet.payload == b"lowered"]
        assert lowered.qos == 0 and 50 <= lowered.properties["message_expiry_interval"] <= 60
        publish(here, ["a/end"])
        assert payloads(reader, b"a/end") == [b"a/end"]
    with SocketClient(there.port, "late") as late:
        late.subscribe(("#", 0))
        kept = [packet.payload for _ in range(4) if isinstance(packet := late.receive(), Publish)]
        assert sorted(kept) == sorted(packet.payload for packet in found)


@one_store
def test_until_the_first_report_all_that_the_rules_name_is_wanted(start_broker: StartBroker, network: TcpProxy) -> None:
    """Retained messages follow when they are wanted; none of the others leaves a copy there."""
    here = start_broker(links(far=table(network.port, "a/# out 2", wanted_only=True)))
    send(here.port, *five(2), Publish("a/y", b"copy", qos=1, packet_id=9, retain=True))
    there = start_broker(HTTP)
    with SocketClient(there.port, "reader") as reader:
        reader.subscribe(("a/x", 2))
        arrive(network, there.port)
        here.wait_for_log("link is connected")
        until(lambda: filters_of(here, "$link/far") == {"a/x"})
        publish(here, ["a/x"], qos=2)
        assert payloads(reader, b"a/x") == [*NUMBERS, b"a/x"]
        reader.subscribe(("a/#", 0))
        publish(there, ["a/end"])
        found = payloads(reader, b"a/end")
        assert found in ([b"a/end"], [b"copy", b"a/end"])  # it crosses when it is wanted, and not before


@one_store
@pytest.mark.parametrize("maximum_qos", [1, 0])
def test_the_queue_holds_a_higher_qos_than_the_other_broker_takes(
    start_broker: StartBroker, other: OtherBroker, maximum_qos: int
) -> None:
    here = start_broker(links(far=table(other.port, "a/# out 2", retry=0.1)))
    send(here.port, *five(2))
    client, _ = other.accept()
    client.send(Connack(properties={"maximum_qos": maximum_qos}))
    for payload in NUMBERS:
        packet = client.receive()
        assert isinstance(packet, Publish) and (packet.payload, packet.qos) == (payload, maximum_qos)
        if maximum_qos and payload != NUMBERS[-1]:
            client.send(Puback(packet.packet_id))
    until(lambda: link_waits(here) == maximum_qos)
    client.close()
    client, _ = other.accept()
    client.send(Connack(session_present=True, properties={"maximum_qos": maximum_qos}))
    if maximum_qos:
        packet = client.receive()
        assert isinstance(packet, Publish) and packet.payload == NUMBERS[-1]
        client.send(Puback(packet.packet_id))
    until(lambda: link_waits(here) == 0)
    client.close()


@one_store
def test_the_other_brokers_session_is_older_than_the_one_here(start_broker: StartBroker, other: OtherBroker) -> None:
    """Also after a restart before the first connection: packet identifiers here begin at 1, so that session ends."""
    here = start_broker(links(far=table(1, "a/# out 2", "b in 2", retry=0.1)))
    send(here.port, *five(2))
    here.kill()
    here.settings |= links(far=table(other.port, "a/# out 2", "b in 2", retry=0.1))
    here.start()
    client, _ = other.accept()
    client.send(Connack(session_present=True))
    ending, packet = other.accept()
    assert packet.clean_start
    ending.send(Connack())
    ending.close()
    client.close()
    client, packet = other.accept()
    assert not packet.clean_start
    client.send(Connack())
    found: list[bytes] = []
    while len(found) < len(NUMBERS):
        packet = client.receive()
        if isinstance(packet, Subscribe):
            client.send(Suback(packet.packet_id, [2]))
        elif isinstance(packet, Publish):
            found.append(packet.payload)
            client.send(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
    assert found == NUMBERS
    client.close()


def test_messages_at_any_node_wait_for_the_first_connection(start_cluster: StartCluster, network: TcpProxy) -> None:
    cluster = start_cluster(links(far=table(network.port, "a/# out 2")), nodes="abc")
    for name, packet in zip("abcab", five(2), strict=True):
        send(cluster[name].port, packet)
    there = start_cluster(HTTP, nodes="x")["x"]
    with SocketClient(there.port, "reader") as reader:
        reader.subscribe(("a/#", 2))
        arrive(network, there.port)
        assert payloads(reader, NUMBERS[-1]) == NUMBERS
