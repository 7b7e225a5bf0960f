"""Delayed messages at real nodes: their time, and a restart. conversations/delayed.toml has the rest."""

import time

import pytest

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.conftest import StartBroker
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient


def publish(port: int, topic: str, payload: bytes, qos: int = 1, level: int = 4, **fields: object) -> None:
    """Publish, and have it acknowledged."""
    with SocketClient(port, "publisher", level=level) as client:
        client.send(Publish(topic, payload, qos, packet_id=1, **fields))
        if qos == 1:
            assert client.receive() == Puback(1)
        elif qos == 2:
            assert client.receive() == Pubrec(1)
            client.send(Pubrel(1))
            assert client.receive() == Pubcomp(1)
        else:
            client.ping()


def take(client: SocketClient) -> Publish:
    """The next message, acknowledged as its QoS asks for; a repeated one is not taken."""
    while True:
        packet = client.receive()
        if isinstance(packet, Publish):
            if packet.qos == 1:
                client.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                client.send(Pubrec(packet.packet_id))
                assert client.receive() == Pubrel(packet.packet_id)
                client.send(Pubcomp(packet.packet_id))
            return packet


def test_no_message_is_early(broker: Broker) -> None:
    """They come in the order in which they are due, whichever was accepted first, and from whichever node."""
    with SocketClient(broker.port, "s") as subscriber:
        subscriber.subscribe(("t", 1))
        began = time.monotonic()
        publish(broker.port, "$delayed/2/t", b"2")
        publish(broker.port, "$delayed/1/t", b"1")
        publish(broker.port, "$delayed/0/t", b"0", 0)
        for seconds in (0, 1, 2):
            assert take(subscriber).payload == b"%d" % seconds
            assert time.monotonic() - began >= seconds


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_messages_outlive_a_restart(start_broker: StartBroker, store: str, ending: str) -> None:
    """Each is published once, with QoS 0 too, also if it was due while the broker was off."""
    if store == "memory":
        pytest.skip("keeps nothing")
    node = start_broker()
    with SocketClient(node.port, "s", clean_start=False) as subscriber:
        subscriber.subscribe(("t/#", 2))
    began = time.monotonic()
    for qos in (0, 1, 2):
        publish(node.port, f"$delayed/4/t/{qos}", b"later", qos)
    publish(node.port, "$delayed/0/t/now", b"now", 2)
    publish(node.port, "$delayed/1/t/soon", b"soon", 2)
    with SocketClient(node.port, "s", clean_start=False) as subscriber:
        assert take(subscriber).payload == b"now"
    publish(node.port, "barrier", b"")  # QoS 0 is in the store
    getattr(node, ending)()
    node.start()
    with SocketClient(node.port, "s", clean_start=False) as subscriber:
        found = [take(subscriber)]
        while len(found) < 4:
            found.append(take(subscriber))
        assert [message.topic_name for message in found] == ["t/soon", "t/0", "t/1", "t/2"]
        assert time.monotonic() - began >= 4
    publish(node.port, "t/end", b"end")
    with SocketClient(node.port, "s", clean_start=False) as subscriber:
        assert take(subscriber).payload == b"end"  # and no message twice
