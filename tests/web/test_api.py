"""The HTTP API of a node and of a cluster: true answers, actions that take effect, a complete description."""

import base64
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Connack, Disconnect, Publish, Suback, Subscribe
from flockmq.broker.admin.http.tokens import add
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

StartBroker = Callable[..., BrokerProcess]
StartCluster = Callable[..., ClusterProcess]
HTTP = {"http.listen": "127.0.0.1:0"}
one_store = pytest.mark.parametrize("store", ["sqlite"])


def connect(port: int, client_id: str) -> int:
    """The return code of a CONNECT."""
    with SocketClient(port) as client:
        from flockmq._speedups.codec.packets import Connect

        client.send(Connect(client_id=client_id, protocol_level=4, keep_alive=0))
        answer = client.receive()
        assert isinstance(answer, Connack)
        return int(answer.reason_code)


@pytest.fixture
def two(start_cluster: StartCluster) -> ClusterProcess:
    """Nodes a and b."""
    return start_cluster(HTTP, nodes="ab")


@one_store
def test_clients_are_listed_in_pages(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    clients = [SocketClient(broker.port, f"c{number:02}") for number in range(25)]
    clients[3].subscribe(("a/+", 1), ("b", 0))
    seen: list[str] = []
    after = ""
    while after is not None:
        page = api.get("/clients", limit=10, after=after)
        seen += [item["client_id"] for item in page["items"]]
        after = page["next"]
        assert page["total"] == 25
    assert seen == [f"c{number:02}" for number in range(25)]
    assert [item["client_id"] for item in api.get("/clients", search="c1")["items"]] == [f"c1{n}" for n in range(10)]
    assert api.get("/clients", search="127.0.0.", by="address")["total"] == 25
    one = api.get("/client", client_id="c03")
    assert one["connected"] and one["address"] == f"127.0.0.1:{clients[3].socket.getsockname()[1]}"
    plain = {"no_local": False, "retain_as_published": False, "identifier": None}
    assert one["filters"] == [{"filter": "a/+", "qos": 1, **plain}, {"filter": "b", "qos": 0, **plain}]
    assert (one["level"], one["session_expiry"], one["receive_maximum"]) == (4, 0, None)
    found = api.get("/subscriptions", search="a/")["items"]
    assert [(item["filter"], item["client_id"], item["qos"]) for item in found] == [("a/+", "c03", 1)]
    assert api.ask("GET", "/client", client_id="nobody").status == 404
    for client in clients:
        client.close()


@one_store
def test_kick_and_end_a_session(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    with SocketClient(broker.port, "stays", clean_start=False) as client:
        client.subscribe(("q", 1))
        assert api.ask("DELETE", "/client/connection", client_id="stays").status == 204
        assert client.receive() is None
    assert api.ask("DELETE", "/client/connection", client_id="stays").status == 404
    assert api.ask("POST", "/messages", {"topic": "q", "payload": "x", "qos": 1}).status == 200
    assert api.get("/client", client_id="stays")["queued_messages"] == 1
    assert api.get("/clients")["total"] == 0 and api.get("/sessions")["total"] == 1
    assert api.ask("DELETE", "/session", client_id="stays").status == 204
    assert api.ask("DELETE", "/session", client_id="stays").status == 404
    broker.restart()
    with SocketClient(broker.port, "stays", clean_start=False) as again:
        assert again.connack is not None and not again.connack.session_present


@one_store
def test_a_delayed_message_is_published_by_the_api(start_broker: StartBroker) -> None:
    broker = start_broker({**HTTP, "mqtt.sys_interval": 0})
    api = HttpClient(broker)
    for topic in ("$delayed/x/t", "$delayed/4294968/t", "$delayed/1", "$delayed/1/$SYS/t"):
        assert api.ask("POST", "/messages", {"topic": topic, "payload": "x"}).status in (400, 422), topic
    with SocketClient(broker.port, "s") as subscriber:
        subscriber.subscribe(("t", 1))
        assert api.ask("POST", "/messages", {"topic": "$delayed/1/t", "payload": "x", "qos": 1}).status == 200
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        assert (packet.topic_name, packet.payload, packet.qos) == ("t", b"x", 1)


@one_store
def test_retained_messages_are_browsed_and_cleared(start_broker: StartBroker) -> None:
    broker = start_broker({**HTTP, "mqtt.sys_interval": 0})
    api = HttpClient(broker)
    binary = base64.b64encode(b"\xff\x00").decode()
    message = {"topic": "site/1/bin", "payload": binary, "encoding": "base64", "retain": True}
    assert api.ask("POST", "/messages", message).status == 200
    for number in range(5):
        assert api.ask("POST", "/messages", {"topic": f"site/{number}/t", "payload": "é", "retain": True}).status == 200
    assert api.get("/retained")["items"] == [
        {"level": "site", "topic": "site", "bytes": None, "below": 6, "below_is_least": False}
    ]
    first = api.get("/retained", parent="site", limit=2)
    second = api.get("/retained", parent="site", limit=5, after=first["next"])
    assert [item["level"] for item in first["items"] + second["items"]] == ["1", "0", "2", "3", "4"]
    assert api.get("/retained/message", topic="site/1/bin")["payload"] == binary
    assert api.get("/retained/message", topic="site/2/t") == {
        "topic": "site/2/t",
        "qos": 0,
        "bytes": 2,
        "payload": "é",
        "encoding": "text",
        "properties": {},
        "expires_in": None,
    }
    assert len(api.get("/retained/messages", filter="site/+/t", limit=3)["items"]) == 3
    with SocketClient(broker.port, "watches") as client:
        client.subscribe(("site/+/t", 0))
        client.ping()
        assert api.ask("DELETE", "/retained", filter="site/+/t").json == {"cleared": 5}
        told = client.ping()
        assert sorted(p.topic_name for p in told if isinstance(p, Publish) and not p.payload) == [
            f"site/{number}/t" for number in range(5)
        ]
    assert api.get("/retained")["items"][0]["below"] == 1
    assert api.ask("GET", "/retained", parent="site/2").status == 404
    assert api.ask("DELETE", "/retained", filter="$SYS/#").status == 422


@one_store
def test_level_5(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    limits = {"session_expiry_interval": 60, "receive_maximum": 7, "maximum_packet_size": 500}
    with SocketClient(broker.port, "five", level=5, properties=limits) as client:
        client.send(Subscribe(1, [("a/#", 1 | 4 | 8)], {"subscription_identifier": 99}))
        assert isinstance(client.receive(), Suback)
        one = api.get("/client", client_id="five")
        expected = {"level": 5, "session_expiry": 60, "expires_in": None, "protocol": "MQTT 5.0"}
        assert expected.items() <= one.items()
        assert (one["receive_maximum"], one["maximum_packet_size"]) == (7, 500)
        subscription = {"qos": 1, "no_local": True, "retain_as_published": True, "identifier": 99}
        assert one["filters"] == [{"filter": "a/#", **subscription}]
        assert subscription.items() <= api.get("/subscriptions")["items"][0].items()
        properties = {
            "message_expiry_interval": 1000,
            "response_topic": "answers",
            "correlation_data": base64.b64encode(b"\xff\x00").decode(),
            "content_type": "text/plain",
            "payload_format_indicator": 1,
            "user_property": [{"name": "a", "value": "1"}, {"name": "a", "value": "ü"}],
        }
        message = {"topic": "a/b", "payload": "x", "qos": 1, "retain": True, "properties": properties}
        assert api.ask("POST", "/messages", message).status == 200
        got = client.receive()
        assert isinstance(got, Publish) and got.retain
        assert 990 < got.properties.pop("message_expiry_interval") <= 1000
        assert got.properties == {
            "response_topic": "answers",
            "correlation_data": b"\xff\x00",
            "content_type": "text/plain",
            "payload_format_indicator": 1,
            "user_property": [("a", "1"), ("a", "ü")],
            "subscription_identifier": [99],
        }
        kept = api.get("/retained/message", topic="a/b")
        del properties["message_expiry_interval"]
        assert kept["properties"] == properties and 990 < kept["expires_in"] <= 1000
        assert api.get("/retained/messages", filter="#")["items"] == [{**kept, "expires_in": pytest.approx(995, abs=5)}]
        for wrong, status in (
            ({"response_topic": "a/#"}, 422),
            ({"correlation_data": "?"}, 422),
            ({"topic_alias": 1}, 400),
            ({"user_property": [{"name": "a"}]}, 400),
            ({"user_property": [{"name": "a", "value": "b"}] * 129}, 400),
            ({"payload_format_indicator": 2}, 400),
        ):
            assert api.ask("POST", "/messages", {"topic": "a", "properties": wrong}).status == status, wrong
        kick = {"client_id": "five", "reason_code": 0x9C, "reason": "elsewhere"}
        assert api.ask("DELETE", "/client/connection", **{**kick, "reason_code": 0x86}).status == 422
        assert api.ask("DELETE", "/client/connection", **kick).status == 204
        end = client.receive()
        assert isinstance(end, Disconnect) and end.reason_code == 0x9C
        assert end.properties["reason_string"] == "kicked by the operator: elsewhere"
    until(lambda: not api.get("/client", client_id="five")["connected"])
    assert 50 < api.get("/client", client_id="five")["expires_in"] <= 60


@one_store
def test_wills_that_wait(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    for number in range(3):
        will = {"will_topic": f"w/{number}", "will_payload": b"gone", "will_properties": {"will_delay_interval": 50}}
        properties = {"session_expiry_interval": 60}
        SocketClient(broker.port, f"c{number}", level=5, properties=properties, **will).close()
    until(lambda: api.get("/wills")["total"] == 3)
    first = api.get("/wills", limit=2)
    rest = api.get("/wills", limit=2, after=first["next"])
    items = first["items"] + rest["items"]
    assert rest["next"] is None and [item["client_id"] for item in items] == ["c0", "c1", "c2"]
    assert all(0 < item.pop("due_in") <= 50 and item.pop("node") for item in items)
    assert items[1] == {"client_id": "c1", "topic": "w/1", "qos": 0, "retain": False, "bytes": 4}
    assert api.ask("DELETE", "/will", client_id="c1").status == 204
    assert api.ask("DELETE", "/will", client_id="c1").status == 404
    broker.restart()
    api = HttpClient(broker)
    assert [item["client_id"] for item in api.get("/wills")["items"]] == ["c0", "c2"]
    with SocketClient(broker.port, "watches") as watcher:
        watcher.subscribe(("w/#", 0))
        assert api.ask("DELETE", "/session", client_id="c0").status == 204
        got = watcher.receive()
        assert isinstance(got, Publish) and got.topic_name == "w/0"
    assert api.get("/wills")["total"] == 1


@one_store
def test_shared_subscriptions(start_broker: StartBroker) -> None:
    """By the API and by `flockmq groups`."""
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    command = partial(api.command, "groups")
    assert command() == "there are no shared subscriptions\n"
    jobs, logs = "$share/workers/jobs/#", "$share/a/logs"
    away = SocketClient(broker.port, "away", clean_start=False)
    away.subscribe((jobs, 1), (logs, 0))
    away.close()
    with SocketClient(broker.port, "publisher") as publisher:
        until(lambda: not api.get("/client", client_id="away")["connected"])
        for number in range(3):
            publisher.send(Publish(f"jobs/{number}", b"12345", 1, packet_id=1))
            publisher.receive()
    page = api.get("/groups", limit=1)
    assert [item["group"] for item in page["items"]] == [logs] and page["total"] == 2
    (found,) = api.get("/groups", after=page["next"])["items"]
    assert (found["name"], found["filter"], found["subscribers"], found["connected"]) == ("workers", "jobs/#", 1, 0)
    assert (found["waiting"], found["waiting_bytes"], found["unacknowledged"]) == (3, 3 * (6 + 5), 0)
    one = api.get("/group", group=jobs)
    assert [subscriber["client_id"] for subscriber in one["sessions"]] == ["away"]
    assert one["sessions"][0]["node"] is None
    assert one["oldest"][0] == {"place": 1, "topic": "jobs/0", "bytes": 5}
    assert "away: away, persistent, QoS 1, 0 unacknowledged" in command("show", jobs)
    assert jobs in command()
    assert api.ask("GET", "/group", group="$share/no/such").status == 404
    assert command("purge", jobs) == "messages dropped: 3\n"
    assert api.get("/group", group=jobs)["waiting"] == 0
    broker.restart()
    assert HttpClient(broker).get("/group", group=jobs)["waiting"] == 0


@one_store
def test_declared_groups(start_broker: StartBroker) -> None:
    """By the API and by `flockmq groups`."""
    broker = start_broker({**HTTP, "shared.groups": '[{"name": "$share/a/logs", "window": 7}]', "shared.window": 9})
    api = HttpClient(broker)
    jobs, logs = "$share/workers/jobs/#", "$share/a/logs"
    command = partial(api.command, "groups")
    assert api.get("/group", group=logs)["settings"]["window"] == 7
    options = ("--max-queued-bytes", "2 KiB", "--when-full", "drop-new", "--expiry", "1h", "--last-value")
    assert command("add", jobs, *options) == f"{jobs} is declared\n"
    found = api.get("/group", group=jobs)
    settings = {"max_queued_bytes": 2048, "when_full": "drop-new", "expiry": 3600, "last_value": True, "window": 9}
    assert (found["declared"], found["qos"], found["subscribers"]) == (True, 2, 0)
    assert found["settings"].items() >= settings.items()
    with SocketClient(broker.port, "publisher") as publisher:
        for topic in ("jobs/1", "jobs/1", "jobs/2"):
            publisher.send(Publish(topic, b"1", 1, packet_id=1))
            publisher.receive()
    broker.restart()
    api = HttpClient(broker)
    command = partial(api.command, "groups")
    assert api.get("/group", group=jobs)["waiting"] == 2
    assert f"{jobs} (declared)" in command()
    shown = command("show", jobs)
    assert '  declared with max_queued_bytes 2048, when_full "drop-new", expiry 3600, last_value true\n' in shown
    assert "  from [shared]: window 9, max_queued_messages 100000, " in shown
    assert api.ask("PUT", "/group", {}, group=jobs).status == 204
    assert api.get("/group", group=jobs)["settings"]["last_value"] is False
    assert api.ask("PUT", "/group", {"window": 0}, group=jobs).status == 400
    assert api.ask("PUT", "/group", {"dead_letter_topic": "#"}, group=jobs).status == 422
    assert api.ask("PUT", "/group", {}, group="jobs/#").status == 422
    assert "a name of the form $share/NAME/FILTER" in command("add", "jobs/#", status=2)
    assert "a whole number from 1" in command("add", jobs, "--window", "0", status=2)
    assert "--window is of `groups add`" in command("show", jobs, "--window", "1", status=2)
    assert command("drain", jobs) == "paused\n"
    assert api.get("/group", group=jobs)["settings"]["paused"] is True
    assert command("resume", jobs) == "resumed\n"
    assert api.ask("PUT", "/group/paused", {"paused": True}, group="$share/no/such").status == 404
    assert command("remove", jobs) == "removed; messages dropped: 2\n"
    assert api.ask("DELETE", "/group", group=jobs).status == 404
    assert [item["group"] for item in api.get("/groups")["items"]] == [logs]


@one_store
@pytest.mark.parametrize("kind", ["client_id", "username", "address"])
def test_a_ban_closes_refuses_and_outlives_the_node(start_broker: StartBroker, kind: str) -> None:
    broker = start_broker(HTTP)
    value = {"client_id": "evil", "username": "eve", "address": "127.0.0.1/32"}[kind]
    with SocketClient(broker.port, "evil") as client:
        ban = {"kind": kind, "value": value, "reason": "why not"}
        assert HttpClient(broker).ask("POST", "/bans", ban).json["until"] is None
        if kind == "username":  # no client has a name without authentication
            assert client.ping() == []
        else:
            assert client.receive() is None
    broker.restart()
    api = HttpClient(broker)
    assert [(item["kind"], item["value"]) for item in api.get("/bans")["items"]] == [(kind, value)]
    assert connect(broker.port, "evil") == (0 if kind == "username" else 5)
    if kind == "client_id":
        assert connect(broker.port, "good") == 0
        with SocketClient(broker.port, "nosy") as nosy:  # no client may read a ban
            assert nosy.subscribe(("#", 0), ("$SYS/#", 0), ("+/#", 0)) == [0, 0, 0]
            assert not [p for p in nosy.ping() if isinstance(p, Publish) and "ban" in p.topic_name]
    assert api.ask("DELETE", "/bans", kind=kind, value=value).status == 204
    assert connect(broker.port, "evil") == 0
    assert api.ask("DELETE", "/bans", kind=kind, value=value).status == 404


@one_store
def test_a_ban_ends(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    assert api.ask("POST", "/bans", {"kind": "client_id", "value": "c", "seconds": 1}).status == 200
    assert connect(broker.port, "c") == 5
    until(lambda: connect(broker.port, "c") == 0)
    assert api.get("/bans")["items"] == []
    assert api.ask("POST", "/bans", {"kind": "address", "value": "nowhere"}).status == 422


def test_wills_that_wait_in_a_cluster(two: ClusterProcess) -> None:
    a, b = HttpClient(two["a"]), HttpClient(two["b"])
    for number in range(3):
        will = {"will_topic": f"w/{number}", "will_payload": b"gone", "will_properties": {"will_delay_interval": 50}}
        properties = {"session_expiry_interval": 60}
        node = two["ab"[number % 2]]
        SocketClient(node.port, f"c{number}", level=5, properties=properties, **will).close()
    for api in (a, b):
        until(lambda api=api: api.get("/wills")["total"] == 3)
        first = api.get("/wills", limit=2)
        items = first["items"] + api.get("/wills", limit=2, after=first["next"])["items"]
        assert [item["client_id"] for item in items] == ["c0", "c1", "c2"]
        assert all(40 < item["due_in"] <= 51 for item in items)
        assert (items[1]["topic"], items[1]["bytes"]) == ("w/1", 4)
    assert a.ask("DELETE", "/will", client_id="c1").status == 204
    assert b.ask("DELETE", "/will", client_id="c1").status == 404
    assert [item["client_id"] for item in b.get("/wills")["items"]] == ["c0", "c2"]
    with SocketClient(two["a"].port, "watches") as watcher:
        watcher.subscribe(("w/#", 0))
        with SocketClient(two["b"].port, "c1"):  # its will is gone: a clean start publishes nothing
            assert b.ask("DELETE", "/session", client_id="c2").status == 204  # the end of a session publishes its will
            got = watcher.receive()
        assert isinstance(got, Publish) and got.topic_name == "w/2"
    two.redis.kill()
    until(lambda: a.get("/wills")["failures"])
    assert a.get("/wills")["items"] == []
    assert a.ask("DELETE", "/will", client_id="c0").status == 404


def test_all_nodes_answer_whichever_is_asked(two: ClusterProcess) -> None:
    a, b = HttpClient(two["a"]), HttpClient(two["b"])
    with SocketClient(two["a"].port, "at-a") as at_a, SocketClient(two["b"].port, "at-b", clean_start=False) as at_b:
        at_a.subscribe(("x/#", 0))
        at_b.subscribe(("y", 1))
        for api in (a, b):
            assert sorted(node["name"] for node in api.get("/nodes")["nodes"].values()) == ["a", "b"]
            page = api.get("/clients")
            assert [item["client_id"] for item in page["items"]] == ["at-a", "at-b"] and page["total"] == 2
            assert len({item["node"] for item in page["items"]}) == 2
            until(lambda api=api: len(api.get("/subscriptions")["items"]) == 2)
            assert api.get("/client", client_id="at-b")["connected"]
        levels = a.ask("PUT", "/log-level", {"level": "warning"}).json["nodes"]
        assert sorted(levels.values()) == ["warning", "warning"]
        assert a.ask("DELETE", "/client/connection", client_id="at-b").status == 204
        assert at_b.receive() is None
        assert b.ask("POST", "/messages", {"topic": "y", "payload": "1", "qos": 1}).status == 200
        assert a.get("/client", client_id="at-b")["queued_messages"] == 1
        assert a.ask("DELETE", "/session", client_id="at-b").status == 204
        until(lambda: b.ask("GET", "/client", client_id="at-b").status == 404)


def test_a_ban_holds_at_all_nodes(two: ClusterProcess) -> None:
    with SocketClient(two["b"].port, "evil") as evil:
        assert HttpClient(two["a"]).ask("POST", "/bans", {"kind": "client_id", "value": "evil"}).status == 200
        assert evil.receive() is None
        assert connect(two["b"].port, "evil") == connect(two["a"].port, "evil") == 5
    assert HttpClient(two["b"]).ask("DELETE", "/bans", kind="client_id", value="evil").status == 204
    assert connect(two["a"].port, "evil") == 0


def test_who_does_not_answer_is_told(start_cluster: StartCluster) -> None:
    two = start_cluster({**HTTP, "cluster.lease": "60s"}, nodes="ab")
    import signal

    two["b"].signal(signal.SIGSTOP)
    try:
        found = HttpClient(two["a"]).get("/nodes")
        assert len(found["nodes"]) == 1
        assert list(found["failures"].values()) == ["the node did not answer in time"]
    finally:
        two["b"].signal(signal.SIGCONT)


def test_without_redis(two: ClusterProcess) -> None:
    api = HttpClient(two["a"])
    two.redis.kill()
    until(lambda: api.get("/nodes")["failures"])
    assert list(api.get("/clients")["failures"].values()) == ["this node has no link to the others: Redis is away"]
    for method, path, more in (
        ("GET", "/client", ""),
        ("DELETE", "/session", "; the change may have been made or not"),
    ):
        reply = api.ask(method, path, client_id="c")
        assert reply.status == 503 and reply.json["detail"] == f"Redis is away{more}"
    name = "$share/g/t"
    reply = api.ask("GET", "/group", group=name)
    assert reply.status == 503 and "Redis is away" in reply.json["detail"]
    assert "Redis is away" in api.command("groups", status=1)
    assert "internal error" not in two.log_text()
    two.redis.start()
    until(lambda: not api.get("/nodes")["failures"])
    assert api.ask("GET", "/client", client_id="c").status == 404
    assert api.ask("GET", "/group", group=name).status == 404


@one_store
def test_figures_come_each_second(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    with HttpClient(broker).events("/events") as events:
        first = next(events)
        with SocketClient(broker.port, "c") as client:
            client.send(Publish("t", b"x"))
            client.ping()
            second = next(events)
    assert 0.5 < second["time"] - first["time"] < 10
    (before,), (after,) = first["nodes"].values(), second["nodes"].values()
    assert (before["publish_received"], after["publish_received"]) == (0, 1)


@one_store
def test_the_description_is_kept(start_broker: StartBroker, tmp_path: Path) -> None:
    """Schemathesis makes requests that the description allows, and others, with and without a token."""
    tokens = tmp_path / "tokens"
    token = add(tokens, "fuzz", "admin")
    broker = start_broker({**HTTP, "http.tokens_file": tokens})
    api = HttpClient(broker, token)
    document = tmp_path / "openapi.json"
    document.write_bytes(api.ask("GET", "/openapi.json").data)
    (tmp_path / "schemathesis.toml").write_text(
        "[checks]\npositive_data_acceptance.expected-statuses = ['2xx', 404, 409, 422]\n"
        "negative_data_rejection.expected-statuses = [400, 403, 404, 406, 413, 415, 422, 428, '5xx']\n"  # 413: 4 MiB
    )
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        str(document),
        "--url",
        f"{api.url}/api/v1",
        "--header",
        f"Authorization: Bearer {token}",
        "--exclude-path",
        "/events",
        "--exclude-path",
        "/trace",
        "--exclude-path",
        "/login",  # a body that is allowed is refused: it is not the password
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "10",
        "--max-time",
        "15",
        "--seed",
        "1",
        "--suppress-health-check",
        "all",
        "--request-timeout",
        "20",
    ]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


@one_store
def test_errors_name_what_is_wrong(start_broker: StartBroker) -> None:
    api = HttpClient(start_broker(HTTP))

    def detail(method: str, path: str, body: object = None, **query: object) -> str:
        reply = api.ask(method, path, body, **query)
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["status"] == reply.status >= 400
        return str(reply.json["detail"])

    assert detail("GET", "/nope") == "/api/v1/nope is not there; /api/v1/openapi.json describes what is"
    assert detail("POST", "/bans/all") == "/api/v1/bans/all is not there; /api/v1/openapi.json describes what is"
    assert detail("PATCH", "/bans") == "/api/v1/bans takes DELETE, GET, HEAD, POST, not PATCH"
    assert detail("GET", "/clients", limit="x") == "limit must be a whole number, not 'x'"
    assert detail("GET", "/clients", limit=0) == "limit must be from 1 to 1000"
    assert detail("POST", "/messages", b"{").startswith("the body is not JSON: ")
    assert detail("POST", "/messages", b'{"qos": 1e400}') == "the body is not JSON: 1e400 is too large for a number"
    assert detail("POST", "/messages", [1]) == "the body must be of type object"
    assert detail("POST", "/messages", {"payload": "x"}) == "the body lacks topic"
    assert detail("POST", "/messages", {"topic": 1, "payload": "x"}) == "topic must be of type string"
    wildcard = {"topic": "a/#", "payload": "x"}
    assert detail("POST", "/messages", wildcard) == "topic must be a topic name, without wildcards and outside of $SYS"
    properties = {"topic": "a", "payload": "x", "properties": {"content_type": 1}}
    assert detail("POST", "/messages", properties) == "properties.content_type must be of type string"
