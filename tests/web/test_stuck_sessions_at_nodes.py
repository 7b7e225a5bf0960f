"""A client that withholds an acknowledgement, at real nodes: in the log, the API, the metrics and on the page."""

import urllib.request

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.chromium import Chromium
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient
from tests.web.test_page import HAS, click, says, visit

SETTINGS = {"http.listen": "127.0.0.1:0", "limits.max_inflight": 2, "limits.stuck_after": 1}


def figure(broker: Broker) -> float:
    """The metric."""
    url = broker.wait_for_log("HTTP server is listening")["listen"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE) as response:
        lines = response.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("flockmq_sessions_stuck")).rpartition(" ")[2])


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_stuck_session_is_shown_until_it_acknowledges(start_broker: StartBroker) -> None:
    broker = start_broker(SETTINGS)
    withhold(broker, broker)


def test_the_queue_is_in_redis(start_cluster: StartCluster) -> None:
    """Another node than the client's is asked."""
    cluster = start_cluster(SETTINGS, nodes="ab")
    withhold(cluster["b"], cluster["a"])


def withhold(own: Broker, asked: Broker) -> None:
    """A client of a node withholds a PUBACK; `asked` is the node of the API."""
    api = HttpClient(asked)
    with SocketClient(own.port, "slow", clean_start=False) as slow, SocketClient(own.port, "other") as other:
        slow.subscribe(("t/#", 1))
        other.subscribe(("t/#", 1))
        for number in range(4):
            assert api.ask("POST", "/messages", {"topic": f"t/{number}", "qos": 1}).status == 200
            message = other.receive()
            assert isinstance(message, Publish)
            other.send(Puback(message.packet_id))
        first, second = slow.receive(), slow.receive()
        assert isinstance(first, Publish) and isinstance(second, Publish)
        line = own.wait_for_log("messages wait behind one that the client does not acknowledge")
        assert (line["client_id"], line["packet_id"], line["topic"], line["waiting"]) == ("slow", 1, "t/0", 2)
        shown = api.get("/client", client_id="slow")["stuck"]
        assert shown.pop("seconds") >= 1
        assert shown == {"packet_id": 1, "topic": "t/0", "waiting": 2}
        found = {item["client_id"]: item["stuck"] for item in api.get("/clients")["items"]}
        assert (found["slow"]["packet_id"], found["other"], figure(own)) == (1, None, 1)
        slow.send(Puback(first.packet_id), Puback(second.packet_id))
        for _ in range(2):
            message = slow.receive()
            assert isinstance(message, Publish)
            slow.send(Puback(message.packet_id))
        own.wait_for_log("no message waits any more")
        assert (api.get("/client", client_id="slow")["stuck"], figure(own)) == (None, 0)
    until(lambda: not api.get("/client", client_id="slow")["connected"])
    assert api.get("/client", client_id="slow")["stuck"] is None


@pytest.mark.parametrize("store", ["memory"])
def test_the_page_marks_it(browser: Chromium, start_broker: StartBroker) -> None:
    broker = start_broker(SETTINGS)
    api = HttpClient(broker)
    with SocketClient(broker.port, "slow") as slow:
        slow.subscribe(("t", 1))
        for _ in range(3):
            assert api.ask("POST", "/messages", {"topic": "t", "qos": 1}).status == 200
        broker.wait_for_log("messages wait behind one")
        visit(browser, api.url, "clients")
        browser.until("return document.querySelector('td .pill.warn')?.innerText === 'stuck'")
        assert "1 message behind packet 1 of t, not acknowledged for " in browser.run(
            "return document.querySelector('td .pill.warn').title"
        )
        click(browser, "slow", "td")
        says(browser, "1 message behind packet 1 of t")
        slow.send(Puback(1), Puback(2), Puback(3))
        broker.wait_for_log("no message waits any more")
        click(browser, "Refresh", "main")
        browser.until(f"{HAS} && !document.querySelector('td .pill.warn')", "slow")
