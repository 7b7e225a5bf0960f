"""When a silent client is taken for gone [MQTT-3.1.2-24]."""

import time

from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient


def test_keep_alive_shorter_than_the_time_for_connect(broker: Broker) -> None:
    """The timer of the connection was still the wait for CONNECT, ten seconds."""
    with SocketClient(broker.port, "a", keep_alive=1) as client:
        began = time.monotonic()
        assert client.receive(timeout=8) is None
        assert 1.4 < time.monotonic() - began < 5
