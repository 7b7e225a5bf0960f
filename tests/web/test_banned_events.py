"""The events of a client that an operator bans, or kicks."""

from tests.harness.broker_process import BrokerProcess
from tests.harness.socket_client import SocketClient
from tests.protocol.test_events import Reader
from tests.web.http_client import HttpClient


def test_a_ban(node: BrokerProcess) -> None:
    api, reader = HttpClient(node), Reader(node)
    pest = SocketClient(node.port, "pest", level=5)
    ban = {"kind": "client_id", "value": "pest", "reason": "floods"}
    assert api.ask("POST", "/bans", ban).status < 300
    event = reader.until(lambda event: event["event"] == "disconnected")[-1]
    assert (event["client_id"], event["reason_code"], event["reason"]) == ("pest", 0x98, "banned by client_id")
    pest = SocketClient(node.port, "pest", level=5)
    event = reader.until(lambda event: event["event"] == "refused")[-1]
    assert (event["client_id"], event["reason_code"]) == ("pest", 0x8A)
    pest.close()
    assert api.ask("DELETE", "/bans", kind="client_id", value="pest").status < 300


def test_a_kick(node: BrokerProcess) -> None:
    """emqx#1330: a client that was kicked had no event."""
    api, reader = HttpClient(node), Reader(node)
    kicked = SocketClient(node.port, "kicked", level=5)
    assert api.ask("DELETE", "/client/connection", client_id="kicked", reason="old firmware").status < 300
    event = reader.until(lambda event: event["event"] == "disconnected")[-1]
    assert event["client_id"] == "kicked" and "old firmware" in event["reason"]
    kicked.close()
