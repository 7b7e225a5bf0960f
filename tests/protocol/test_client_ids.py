"""Client identifiers: the log names the reason of a refusal; the broker reports an identifier that it has made."""

import pytest

from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient


@pytest.mark.parametrize(
    ("level", "client_id", "reason"),
    [
        (3, "x" * 24, "above the 23 characters of MQTT 3.1; mqtt.long_client_ids = true accepts it"),
        (3, "", "it is empty: MQTT 3.1 knows no such identifier"),
        (4, "", "it is empty, and clean session is 0"),
        (4, "a\tb", "control characters or non-characters; mqtt.control_characters = true accepts them"),
        (5, "$link/a", "identifiers that begin with $link/ are the broker's own"),
        (4, "$tenant/a/b", "identifiers that begin with $tenant/ are the broker's own"),
    ],
)
def test_the_log_names_the_reason_of_a_refusal(broker: Broker, level: int, client_id: str, reason: str) -> None:
    with SocketClient(broker.port, client_id, level=level, clean_start=False) as client:
        assert client.connack is not None
        assert client.connack.reason_code == (0x85 if level == 5 else 2)
        assert client.receive() is None
    line = broker.wait_for_log("connection refused", reason=reason)
    assert (line["client_id"], line["code"]) == (client_id, "client_identifier_not_valid")


def test_an_assigned_identifier_is_sent_to_a_client_that_sent_none(broker: Broker) -> None:
    """The client that came back with it got it once more [5: MQTT-3.2.2-16]."""
    kept = {"session_expiry_interval": 60}
    with SocketClient(broker.port, "", level=5, properties=kept) as client:
        assert client.connack is not None
        assigned = client.connack.properties["assigned_client_identifier"]
    with SocketClient(broker.port, assigned, level=5, clean_start=False, properties=kept) as again:
        assert again.connack is not None and again.connack.session_present
        assert "assigned_client_identifier" not in again.connack.properties
    with SocketClient(broker.port, "", level=5) as other:
        assert other.connack is not None
        assert other.connack.properties["assigned_client_identifier"] != assigned
