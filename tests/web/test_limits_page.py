"""Limits at real nodes that are filled: in the API, by `flockmq limits`, and on the page."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Pubrec
from tests.conftest import StartBroker, StartCluster, StartRedis
from tests.harness.broker_process import until
from tests.harness.chromium import Chromium
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import client, publish
from tests.web.http_client import HttpClient
from tests.web.test_page import says, visit

HTTP = {"http.listen": "127.0.0.1:0", "mqtt.sys_interval": 0}
QUOTA_EXCEEDED = 0x97


def limits(api: HttpClient, **query: object) -> dict[str, dict[str, Any]]:
    """All items, by their names."""
    reply = api.get("/limits", **query)
    assert reply["failures"] == {}
    return {item["name"]: item for item in reply["items"]}


def brief(item: dict[str, Any]) -> tuple[Any, ...]:
    """Use, limit, part and the fullest one."""
    return item["used"], item["limit"], item["full"], item["whose"]


def fill(client: SocketClient, topic: str, count: int) -> None:
    """Publish with QoS 1, and have it acknowledged."""
    for number in range(1, count + 1):
        client.send(Publish(topic, b"x" * 10, qos=1, packet_id=number))
        assert client.receive() == Puback(number)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_each_limit_shows_the_fullest(start_broker: StartBroker) -> None:
    settings = {
        "limits.max_queued_messages": 8,
        "limits.max_inflight": 2,
        "limits.max_subscriptions": 4,
        "limits.max_sessions": 5,
        "limits.max_retained_messages": 10,
        "limits.max_awaiting_release": 2,
        "limits.max_connections": 100,
        "quotas.max_connections_per_address": 50,
        "shared.max_queued_messages": 20,
    }
    broker = start_broker({**HTTP, **settings})
    api = HttpClient(broker)
    port = broker.port
    with (
        SocketClient(port, "slow", clean_start=False) as slow,
        SocketClient(port, "other") as other,
        socket.create_connection(("127.0.0.1", port)),
    ):
        slow.subscribe(("t", 1), ("u/#", 0), ("v", 0))
        slow.subscribe(("$share/g/jobs", 1))
        fill(other, "t", 6)
        other.send(Publish("kept", b"1", retain=True))
        other.send(Publish("twice", b"2", qos=2, packet_id=7))
        assert other.receive() == Pubrec(7)
        until(lambda: limits(api)["limits.max_pending_connects"]["used"] == 1)
        found = limits(api)
        assert brief(found["limits.max_queued_messages"]) == (6, 8, 0.75, "slow")
        assert found["limits.max_queued_bytes"]["used"] == 6 * len("t" + "x" * 10)
        assert brief(found["limits.max_inflight"]) == (2, 2, 1.0, "slow")
        assert brief(found["limits.max_subscriptions"]) == (4, 4, 1.0, "slow")
        assert brief(found["limits.max_sessions"]) == (2, 5, 0.4, "")
        assert brief(found["limits.max_retained_messages"])[:2] == (1, 10)
        assert brief(found["limits.max_awaiting_release"]) == (1, 2, 0.5, "other")
        assert brief(found["limits.max_connections"]) == (3, 100, 0.03, "")
        assert brief(found["quotas.max_connections"]) == (3, None, None, "default")
        assert brief(found["quotas.max_connections_per_address"]) == (3, 50, 0.06, "127.0.0.1")
        assert brief(found["limits.max_packet_size"])[:3] == (None, 2 << 20, None)
        assert found["RLIMIT_NOFILE"]["used"] > 3
        # It is reached, as in the row.
        assert [type(slow.receive()) for _ in range(2)] == [Publish, Publish]
        assert slow.subscribe(("w", 0), packet_id=9) == [0x80]
        fill(other, "t", 5)
        assert brief(limits(api)["limits.max_queued_messages"]) == (8, 8, 1.0, "slow")
    for _ in range(3):
        SocketClient(port, "worker", clean_start=False).close()
    until(lambda: limits(api)["limits.max_connections"]["used"] == 0)
    with SocketClient(port, "other") as other:
        fill(other, "jobs", 5)
        assert brief(limits(api)["shared.max_queued_messages"]) == (5, 20, 0.25, "$share/g/jobs")
    order = [item["full"] for item in api.get("/limits")["items"]]
    known = [full for full in order if full is not None]
    assert known == sorted(known, reverse=True) and order[: len(known)] == known


@pytest.mark.parametrize("store", ["memory"])
def test_receive_maximum_and_output(start_broker: StartBroker) -> None:
    broker = start_broker({**HTTP, "limits.receive_maximum": 3, "limits.max_outgoing_bytes": 100_000})
    api = HttpClient(broker)
    with SocketClient(broker.port, "sender", level=5) as sender, SocketClient(broker.port, "deaf") as deaf:
        for number in (1, 2, 3):
            sender.send(Publish("q2", b"", qos=2, packet_id=number))
            received = sender.receive()
            assert isinstance(received, Pubrec) and received.packet_id == number
        assert brief(limits(api)["limits.receive_maximum"]) == (3, 3, 1.0, "sender")
        deaf.subscribe(("big", 0))
        with SocketClient(broker.port, "loud") as loud:

            def deafened() -> bool:
                loud.send(*(Publish("big", bytes(1000)) for _ in range(2000)))
                loud.ping()
                found = limits(api)["limits.max_outgoing_bytes"]
                return bool(found["whose"] == "deaf" and found["full"] > 0.98)

            until(deafened)


@pytest.mark.parametrize("store", ["memory"])
def test_tenants_and_their_tokens(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    rules = [{"name": "acme", "user": "acme-*", "max_subscriptions": 2, "max_connections": 10}]
    rules.append({"name": "*", "user": "*-device", "max_connections": 4})
    quotas = {"quotas.max_connections_per_user": 8}
    broker = start_broker({**files.settings(tenants=json.dumps(rules)), **HTTP, **quotas})
    api = HttpClient(broker)
    with client(broker, "acme", "c", 5) as acme, client(broker, "acme", "d", 5), client(broker, "globex", "c", 5):
        assert acme.subscribe(("a", 0), ("b", 0)) == [0, 0]
        publish(acme, "kept", b"", retain=True)
        found = limits(api)
        assert brief(found["tenants.max_subscriptions"]) == (2, 2, 1.0, "acme")
        assert brief(found["tenants.max_connections"]) == (1, 4, 0.25, "globex")  # each has its own limit
        assert brief(found["tenants.max_sessions"])[1:3] == (None, None)
        assert brief(found["quotas.max_connections_per_user"]) == (2, 8, 0.25, "$tenant/acme/acme-device")
        assert acme.subscribe(("c", 0)) == [QUOTA_EXCEEDED]


@pytest.mark.parametrize("store", ["sqlite"])
def test_links_and_logs_and_bans(start_broker: StartBroker) -> None:
    far = {"url": "mqtt://127.0.0.1:1", "topics": ["t out 1"], "max_queued_messages": 4}
    settings = {"links": json.dumps({"far": far}), "analytics.topics": "#", "limits.max_streams": 2}
    broker = start_broker({**HTTP, **settings})
    api = HttpClient(broker)
    broker.wait_for_log("link is not connected")
    with SocketClient(broker.port, "other") as other:
        fill(other, "t", 3)
        assert other.subscribe(("$stream/now/t", 0)) == [0]
        assert api.ask("POST", "/bans", {"kind": "client_id", "value": "x"}).status == 200
        found = limits(api)
        assert brief(found["links.max_queued_messages"]) == (3, 4, 0.75, "far")
        assert found["links.max_queued_bytes"]["limit"] == 16 << 20  # the limit of all sessions
        assert found["limits.max_queued_messages"]["used"] == 0
        assert brief(found["limits.max_streams"]) == (1, 2, 0.5, "other")
        assert brief(found["bans"])[:2] == (1, 10_000)
        assert found["analytics.log_bytes"]["used"] > 0 and found["analytics.log_bytes"]["full"] is None
        assert found["analytics.max_waiting_bytes"]["limit"] == 32 << 20


@pytest.mark.parametrize("store", ["memory"])
def test_command(start_broker: StartBroker) -> None:
    broker = start_broker({**HTTP, "limits.max_sessions": 2, "limits.max_queued_messages": 1000})
    api = HttpClient(broker)
    with SocketClient(broker.port, "one"), SocketClient(broker.port, "two"):
        head, first, *lines = api.command("limits").splitlines()
        assert head.split() == ["full", "used", "limit", "name", "fullest", "node"]
        assert first.split() == ["100%", "2", "2", "sessions", "limits.max_sessions", "node"]
        assert lines[0].strip().startswith("A new client identifier is refused: reason code 0x97")
        assert lines[1].strip() == "Set limits.max_sessions in the configuration, then reload it (SIGHUP)."
        explained = api.command("limits", "--explain", "--node", "node").splitlines()
        items = json.loads(api.command("limits", "--json"))
        assert len(explained) == 1 + 3 * len(items)
        assert items[0]["name"] == "limits.max_sessions"
        assert "there is no node nobody" in api.command("limits", "--node", "nobody", status=1)
    assert api.ask("GET", "/limits", node="nobody").status == 404


def test_the_limits_of_a_cluster(start_redis: StartRedis, start_cluster: StartCluster) -> None:
    """Sessions and memory are Redis' figures; a queue in Redis is seen by any node; each limit at its fullest node."""
    settings = {"limits.max_queued_messages": 8, "limits.max_inflight": 2, "limits.max_sessions": 10}
    cluster = start_cluster({**HTTP, **settings}, nodes="ab")
    cluster.redis.client().config_set("maxmemory", 1 << 30)
    api = HttpClient(cluster["b"])
    with SocketClient(cluster["a"].port, "slow", clean_start=False) as slow:
        slow.subscribe(("t", 1), ("$share/g/jobs", 1))
        with SocketClient(cluster["b"].port, "other") as other:
            fill(other, "t", 6)
            cluster.settle()
            until(lambda: limits(api)["limits.max_queued_messages"]["used"] == 6)
            found = limits(api)
            queue = found["limits.max_queued_messages"]
            assert brief(queue) == (6, 8, 0.75, "slow")
            assert queue["node"].startswith("a-")
            assert brief(found["limits.max_inflight"]) == (2, 2, 1.0, "slow")
            assert brief(found["limits.max_sessions"]) == (1, 10, 0.1, "")
            memory = found["maxmemory of Redis"]
            assert memory["limit"] == 1 << 30 and 0 < memory["full"] < 1
            own = limits(api, node=queue["node"])
            assert {item["node"] for item in own.values()} == {queue["node"]} and set(own) == set(found)
            lines = api.command("limits", "--node", "a").splitlines()
            assert any(line.split()[-3:-1] == ["session", "slow"] for line in lines)
    until(lambda: not api.get("/client", client_id="slow")["connected"])
    with SocketClient(cluster["b"].port, "other") as other:
        fill(other, "jobs", 5)
        until(lambda: brief(limits(api)["shared.max_queued_messages"])[::3] == (5, "$share/g/jobs"))


def test_redis_does_not_let_a_node_ask(start_redis: StartRedis, start_cluster: StartCluster) -> None:
    """And when Redis is away, its figures are unknown, and the rest stands."""
    cluster = start_cluster({**HTTP, "cluster.timeout": 1, "cluster.lease": 3}, nodes="a")
    api = HttpClient(cluster["a"])
    cluster.redis.client().execute_command("ACL", "SETUSER", "default", "-info")
    found = limits(api)
    assert brief(found["maxmemory of Redis"])[:2] == (None, None)
    assert found["limits.max_sessions"]["used"] == 0
    cluster.redis.client().execute_command("ACL", "SETUSER", "default", "+info")
    cluster.redis.stop()
    until(lambda: not api.get("/nodes")["nodes"][api.get("/nodes")["here"]]["link"])
    found = limits(api)
    assert found["limits.max_sessions"]["used"] is None and found["limits.max_connections"]["used"] == 0
    cluster.redis.start()


@pytest.mark.parametrize("store", ["memory"])
def test_the_page(browser: Chromium, start_broker: StartBroker) -> None:
    broker = start_broker({**HTTP, "limits.max_sessions": 2})
    with SocketClient(broker.port, "one"), SocketClient(broker.port, "two"):
        visit(browser, HttpClient(broker).url, "limits")
        says(browser, "limits.max_sessions")
        first = "return [...document.querySelectorAll('tbody tr')][0].innerText"
        assert browser.run(first).split()[:3] == ["limits.max_sessions", "100", "%"]
        assert browser.run("return document.querySelector('td .pill.bad').innerText") == "100 %"
        says(browser, "A new client identifier is refused: reason code 0x97")
