"""The state of a session after the node was stopped or killed and started again."""

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartBroker
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient


@pytest.fixture
def node(start_broker: StartBroker, store: str) -> Broker:
    """A node with a store that outlives it."""
    if store == "memory":
        pytest.skip("keeps nothing")
    return start_broker()


def publish(node: Broker, payload: bytes) -> None:
    """Publish with QoS 1, and have it acknowledged."""
    with SocketClient(node.port, "publisher") as publisher:
        publisher.send(Publish(topic_name="t", payload=payload, qos=1, packet_id=1))
        assert isinstance(publisher.receive(), Puback)


@pytest.mark.parametrize("waiting", [[], [b"while away"]])
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_session_that_had_acknowledged_messages_still_gets_new_ones(
    node: Broker, ending: str, waiting: list[bytes]
) -> None:
    """Its record had "done" for entries that were already done, and the queue seemed full for ever."""
    with SocketClient(node.port, "subscriber", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 1))
        publish(node, b"first")
        first = subscriber.receive()
        assert isinstance(first, Publish)
        subscriber.send(Puback(packet_id=first.packet_id))
        subscriber.ping()
    for payload in waiting:
        publish(node, payload)
    getattr(node, ending)()
    node.start()
    publish(node, b"after")
    payloads: list[bytes] = []
    with SocketClient(node.port, "subscriber", clean_start=False) as subscriber:
        while len(payloads) < len(waiting) + 1:
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            if packet.payload == b"first":
                assert packet.dup  # the PUBACK was not yet in the store when the node was killed
            else:
                payloads.append(packet.payload)
    assert payloads == [*waiting, b"after"]
