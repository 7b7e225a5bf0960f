"""A client that takes up a great many subscriptions at once, as a gateway does when it comes back."""

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Disconnect, Publish, Suback, Subscribe
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient

PACKETS = 30
FILTERS = 1000


def test_wildcards_under_which_nothing_is_retained(broker: Broker) -> None:
    """Each left a search for retained messages behind, and ten thousand of them ended the connection."""
    burst = b"".join(
        encode(Subscribe(i + 1, [(f"gateway/{i}/{j}/+", 1) for j in range(FILTERS)]), 4) for i in range(PACKETS)
    )
    with SocketClient(broker.port, "gateway") as client:
        client.send(burst)
        for i in range(PACKETS):
            assert client.receive() == Suback(i + 1, [1] * FILTERS)


def test_a_client_that_leaves_and_is_back_gets_only_what_it_subscribes_to_then(broker: Broker) -> None:
    """The subscriptions of its ended session leave the tree in slices; the new session has nothing of them."""
    with SocketClient(broker.port, "gateway") as client:
        for i in range(5):
            client.subscribe(*((f"gateway/{i}/{j}", 0) for j in range(FILTERS)))
        client.send(Disconnect())
        with SocketClient(broker.port, "gateway") as again:
            again.subscribe(("gateway/1/1", 0), ("end", 0))
            again.send(*(Publish(topic, b"x") for topic in ("gateway/0/0", "gateway/1/1", "gateway/4/999", "end")))
            found = [again.receive(), again.receive()]
    assert [packet.topic_name for packet in found if isinstance(packet, Publish)] == ["gateway/1/1", "end"]
