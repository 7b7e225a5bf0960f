"""A client that breaks the protocol is found in the log, at the level that is on by default."""

import pytest

from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient

PROXY = "the client sends a PROXY header, and only addresses of proxy.listen take one"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the client sends HTTP, and this listener is for MQTT"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "the client begins TLS, and this listener is without TLS"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1000 1883\r\n", PROXY),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12), PROXY),
        (b"\xc0\0", "the first packet is not CONNECT [MQTT-3.1.0-1]"),
        (b"\x10\xff\xff\xff\xff\x01", "the Remaining Length has more than four bytes [MQTT-2.2.3]"),
    ],
)
def test_fault_before_connect(broker: Broker, data: bytes, reason: str) -> None:
    """It was logged only at level debug."""
    with SocketClient(broker.port) as client:
        client.send(data)
        assert client.receive() is None
    line = broker.wait_for_log("connection ended before it was accepted", reason=reason)
    assert line["level"] == "info"


def test_refusal_is_logged_once(broker: Broker) -> None:
    with SocketClient(broker.port, "", clean_start=False) as client:
        assert client.connack is not None
        assert client.connack.reason_code == 2
        assert client.receive() is None
    broker.wait_for_log("connection refused")
    broker.stop()
    assert not [line for line in broker.log if "before it was accepted" in line["event"]]
