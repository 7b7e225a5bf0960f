"""A client that takes up a great many subscriptions at once, as a gateway does when it comes back."""

from _speedups.codec.encode import encode
from _speedups.codec.packets import Suback, Subscribe
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
