"""Clients and sessions by the API and by `flockmq clients`, at one node and in a cluster."""

import json
import re
from collections.abc import Callable
from functools import partial

import pytest

from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

HTTP = {"http.listen": "127.0.0.1:0"}
StartBroker = Callable[..., BrokerProcess]
StartCluster = Callable[..., ClusterProcess]


@pytest.mark.parametrize("store", ["sqlite"])
def test_list_show_kick_end(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    command = partial(HttpClient(broker).command, "clients")
    assert command() == "there are no connected clients\n"
    with SocketClient(broker.port, "pump-1", clean_start=False) as pump, SocketClient(broker.port, "fan") as fan:
        pump.subscribe(("a/+", 1))
        head, *lines = command().splitlines()
        assert head.split() == ["client", "id", "connected", "address", "user", "subscriptions", "queued", "size"]
        assert [line.split()[:3] for line in lines] == [["fan", "MQTT", "3.1.1"], ["pump-1", "MQTT", "3.1.1"]]
        assert [item["client_id"] for item in json.loads(command("--search", "ump", "--json"))] == ["pump-1"]
        assert command("--search", "none") == "there are no connected clients like it\n"
        shown = command("show", "pump-1")
        assert "MQTT 3.1.1" in shown and "  a/+  QoS 1\n" in shown
        assert command("kick", "pump-1") == "disconnected\n"
        assert pump.receive() is None
        assert "there are no" not in command("--sessions", "--search", "pump")
        assert command("end", "fan") == "ended\n"
        assert fan.receive() is None
    assert command("end", "pump-1") == "ended\n"
    assert command("--sessions") == "there are no sessions\n"
    assert "no session with this client identifier" in command("show", "pump-1", status=1)
    assert "takes a client id" in command("kick", status=2)
    assert "takes no client id" in command("list", "pump-1", status=2)


def test_sessions_that_are_away_in_a_cluster(start_cluster: StartCluster) -> None:
    two = start_cluster({**HTTP, "mqtt.session_expiry": "1h"}, nodes="ab")
    apis = [HttpClient(two[name]) for name in "ab"]
    properties = {"session_expiry_interval": 600}
    for name, options in (("old", {}), ("new", {"level": 5, "properties": properties})):
        with SocketClient(two["a"].port, name, clean_start=False, **options) as client:
            client.subscribe(("q", 1))
    until(lambda: not apis[1].get("/client", client_id="new")["connected"])
    for number in range(3):
        assert apis[1].ask("POST", "/messages", {"topic": "q", "payload": str(number), "qos": 1}).status == 200
    with SocketClient(two["b"].port, "here"):
        for api in apis:
            until(lambda api=api: len(api.get("/sessions")["items"]) == 3)
            here, new, old = api.get("/sessions")["items"]
            assert here["connected"] and here["node"]
            for session, interval, most in ((new, 600, 600), (old, None, 3600)):
                assert (session["connected"], session["node"], session["queued_messages"]) == (False, "", 3)
                assert session["session_expiry"] == interval and most - 60 < session["expires_in"] <= most
                assert session["queued_bytes"] > 0
                one = api.get("/client", client_id=session["client_id"])
                assert {name: one[name] for name in session if name != "expires_in"} == {
                    name: session[name] for name in session if name != "expires_in"
                }
    assert "3 messages" in apis[0].command("clients", "show", "old")


def test_subscriptions_are_counted_alike_at_all_nodes(start_cluster: StartCluster) -> None:
    two = start_cluster(HTTP, nodes="ab")
    apis = [HttpClient(two[name]) for name in "ab"]

    def counted() -> list[int]:
        pages = [api.ask("GET", "//metrics").data.decode() for api in apis]
        return [int(found) for page in pages for found in re.findall(r"^flockmq_subscriptions\S* (\d+)", page, re.M)]

    assert counted() == [0, 0]
    with SocketClient(two["a"].port, "away", clean_start=False) as client:
        client.subscribe(("a", 1), ("$share/g/b", 1))
    until(lambda: counted() == [2, 2])
    with SocketClient(two["b"].port, "clean") as client:
        client.subscribe(("c/#", 0))
        until(lambda: counted() == [2, 3])
