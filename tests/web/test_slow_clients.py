"""Slow clients and topic metrics: in the API, in /metrics and on the page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.chromium import Chromium
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import RULES, client
from tests.web.http_client import HttpClient
from tests.web.test_page import EVIL, says, visit

HTTP = {"http.listen": "127.0.0.1:0", "mqtt.sys_interval": 0}


@pytest.fixture(scope="module")
def slow_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node with slow clients of each kind; the first one calls itself HTML."""
    settings = {
        **HTTP,
        "limits.max_queued_messages": 20,
        "limits.max_inflight": 2,
        "metrics.topics": "site/+/temp,site/#",
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("node"), "sqlite", settings).start()
    clients = []
    for name, count in ((EVIL, 9), ("some", 5), ("few", 1)):
        clients.append(SocketClient(broker.port, name))
        clients[-1].subscribe((f"for/{count}", 1))
        publish(broker, f"for/{count}", count)
    away = SocketClient(broker.port, "loses", clean_start=False)
    away.subscribe(("lost", 1))
    away.close()
    publish(broker, "lost", 27)
    yield broker
    for each in clients:
        each.close()
    assert broker.stop() == 0


def publish(broker: Any, topic: str, count: int, payload: bytes = b"x" * 10) -> None:
    """Publish with QoS 1, and have it acknowledged."""
    with SocketClient(broker.port, "sender") as sender:
        for number in range(1, count + 1):
            sender.send(Publish(topic, payload, qos=1, packet_id=number))
            assert sender.receive() == Puback(number)


def slowest(api: HttpClient, **query: object) -> list[dict[str, Any]]:
    reply = api.get("/slow-clients", **query)
    assert reply["failures"] == {}
    items: list[dict[str, Any]] = reply["items"]
    return items


def test_each_order(slow_node: BrokerProcess) -> None:
    api = HttpClient(slow_node)
    by_queue = slowest(api)
    assert [(item["client_id"], item["queued_messages"]) for item in by_queue] == [
        ("loses", 20), (EVIL, 9), ("some", 5), ("few", 1)
    ]  # fmt: skip
    assert by_queue[0]["connected"] is False and by_queue[1]["connected"] is True and by_queue[1]["address"]
    assert [item["client_id"] for item in slowest(api, limit=2)] == ["loses", EVIL]
    until(lambda: {item["client_id"] for item in slowest(api, by="age")} == {EVIL, "some"})
    assert all(item["oldest_seconds"] >= 0 for item in slowest(api, by="age"))
    (lost,) = until(lambda: slowest(api, by="drops"))
    assert lost["client_id"] == "loses" and lost["dropped_messages"] == lost["dropped_queue_full"] == 7
    assert lost["dropped_output_full"] == 0 and lost["dropped_ago"] >= 0


@pytest.mark.parametrize("query", [{"by": "name"}, {"limit": 0}, {"limit": 101}, {"limit": "x"}])
def test_what_it_does_not_take(slow_node: BrokerProcess, query: dict[str, object]) -> None:
    assert HttpClient(slow_node).ask("GET", "/slow-clients", None, None, **query).status == 400


def test_topic_metrics(slow_node: BrokerProcess) -> None:
    api = HttpClient(slow_node)
    with SocketClient(slow_node.port, "reader") as reader, SocketClient(slow_node.port, "other") as other:
        reader.subscribe(("site/#", 0))
        other.subscribe(("site/1/temp", 1), ("site/+/+", 0))
        publish(slow_node, "site/1/temp", 3)
        publish(slow_node, "site/1/hum", 2)
        publish(slow_node, "elsewhere", 5)
        found = {item.pop("filter"): item for item in api.get("/topic-metrics")["items"]}
    assert found["site/+/temp"] == {"received": 3, "received_bytes": 30, "sent": 6, "sent_bytes": 60}
    assert found["site/#"] == {"received": 5, "received_bytes": 50, "sent": 10, "sent_bytes": 100}
    text = api.ask("GET", "//metrics").data.decode()
    assert 'flockmq_topic_messages_sent_total{filter="site/#",node="' in text
    assert 'flockmq_topic_received_bytes_total{filter="site/+/temp",node="' in text


def test_the_page(browser: Chromium, slow_node: BrokerProcess) -> None:
    url = HttpClient(slow_node).url
    visit(browser, url, "slow")
    says(browser, "some")
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    rows = "return [...document.querySelectorAll('main tbody tr')].map((row) => row.cells[0].innerText)"
    browser.until(f"{rows.replace('return ', 'return (')}).length === 4")
    assert browser.run(rows)[0] == "loses" and any("<img" in name for name in browser.run(rows))
    browser.run("document.querySelector('select[name=by]').value = 'drops'")
    browser.run("document.querySelector('select[name=by]').dispatchEvent(new Event('change'))")
    browser.until(f"{rows.replace('return ', 'return (')}).join() === 'loses'")
    browser.run("document.querySelector('main tbody a').click()")
    browser.until("return document.querySelector('[data-view]')?.dataset.view === 'clients'")
    visit(browser, url, "topics")
    says(browser, "site/+/temp")
    says(browser, "Topic metrics")


def test_over_nodes(start_cluster: StartCluster) -> None:
    cluster = start_cluster({**HTTP, "limits.max_inflight": 1, "metrics.topics": "t/#"}, nodes="ab")
    readers = []
    for node, count in (("a", 3), ("b", 6)):
        readers.append(SocketClient(cluster[node].port, f"r{node}"))
        readers[-1].subscribe((f"t/{count}", 1))
        publish(cluster[node], f"t/{count}", count)
    api = HttpClient(cluster["a"])
    until(lambda: [item["queued_messages"] for item in slowest(api)] == [6, 3])
    assert [item["client_id"] for item in slowest(api)] == ["rb", "ra"]
    assert len({item["node"] for item in slowest(api)}) == 2
    (item,) = api.get("/topic-metrics")["items"]
    assert (item["received"], item["sent"]) == (9, 9)


@pytest.mark.parametrize("store", ["memory"])
def test_a_tenant_sees_its_own(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    broker = files.start(start_broker, tenants=RULES, auth__allow_anonymous=True, http__listen="127.0.0.1:0")
    api = HttpClient(broker)
    slow = [client(broker, tenant, "slow") for tenant in ("acme", "globex")]
    for each, tenant in zip(slow, ("acme", "globex"), strict=True):
        each.send(Subscribe(1, [("t", 1)]))
        each.receive()
        sender = client(broker, tenant, "sender")
        sender.send(Publish("t", b"", 1, packet_id=1))
        sender.receive()
    until(lambda: len(slowest(api)) == 2)
    assert [item["client_id"] for item in slowest(api, tenant="acme")] == ["$tenant/acme/slow"]
    assert slowest(api, tenant="/") == []
    assert "globex" not in json.dumps(slowest(api, tenant="acme"))
