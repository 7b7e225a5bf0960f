"""Limits and figures of each tenant: one that uses up its share takes nothing from the others."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles, counted
from tests.security.test_tenant_isolation import client, messages, publish
from tests.web.http_client import HttpClient

QUOTA_EXCEEDED = 0x97


@pytest.fixture
def store() -> str:
    return "memory"


def start(start_broker: StartBroker, tmp_path: Path, limits: dict[str, Any], **more: object) -> Broker:
    """A broker on which the tenant `acme` has limits; `globex` has none."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    rules = json.dumps([{"name": "acme", "user": "acme-*", **limits}, {"name": "*", "user": "*-device"}])
    return files.start(start_broker, tenants=rules, **more)


def code(found: SocketClient) -> int:
    """The reason code of CONNACK."""
    assert found.connack is not None
    return int(found.connack.reason_code)


def read_all(number: int, *receivers: SocketClient) -> None:
    """Read until the receivers have got this number of messages, and no more."""
    got: list[tuple[str, bytes]] = []

    def is_done() -> bool:
        for receiver in receivers:
            got.extend(messages(receiver))
        return len(got) >= number

    until(is_done)
    assert len(got) == number


def figure(broker: Broker, name: str, tenant: str) -> float:
    """A figure of a tenant in /metrics."""
    text = HttpClient(broker).ask("GET", "//metrics").data.decode()
    lines = [line for line in text.splitlines() if line.startswith(f'flockmq_tenant_{name}{{tenant="{tenant}",')]
    return float(lines[0].rpartition(" ")[2])


def test_connections_and_sessions(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, {"max_connections": 2, "max_sessions": 3})
    stays: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    with client(broker, "acme", "a", 5, **stays) as one, client(broker, "acme", "b", 5, **stays) as two:
        assert (code(one), code(two)) == (0, 0)
        assert code(client(broker, "acme", "c", 5)) == QUOTA_EXCEEDED
        with client(broker, "globex", "c", 5) as globex:
            assert code(globex) == 0
        with client(broker, "acme", "b", 5, **stays) as again:  # in place of the client before
            assert code(again) == 0
            assert figure(broker, "connections", "acme") == 2
    until(lambda: figure(broker, "connections", "acme") == 0)
    assert figure(broker, "sessions", "acme") == 2
    with client(broker, "acme", "c", 5, **stays) as third:
        assert code(third) == 0
        assert code(client(broker, "acme", "d", 5)) == QUOTA_EXCEEDED  # a fourth session
        with client(broker, "acme", "a", 5, **stays) as known:
            assert code(known) == 0
        with client(broker, "globex", "d", 5, **stays) as globex:
            assert code(globex) == 0
    until(lambda: figure(broker, "connections", "acme") == 0)
    with client(broker, "acme", "a", 5, clean_start=True) as ended:
        assert code(ended) == 0
    until(lambda: figure(broker, "sessions", "acme") == 2)


def test_subscriptions(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, {"max_subscriptions": 3})
    with client(broker, "acme", "a", 5) as one, client(broker, "acme", "b", 5) as two:
        assert one.subscribe(("a", 0), ("$share/g/b", 0)) == [0, 0]
        assert two.subscribe(("a", 0), ("b", 0), ("a", 1)) == [0, QUOTA_EXCEEDED, 1]
        assert figure(broker, "subscriptions", "acme") == 3
        with client(broker, "globex", "a", 5) as globex:
            assert globex.subscribe(*[(str(number), 0) for number in range(5)]) == [0] * 5
        one.close()
        until(lambda: figure(broker, "subscriptions", "acme") == 1)
        assert two.subscribe(("b", 0), ("$share/g/b", 0)) == [0, 0]


def test_memory_of_subscriptions_and_retained_messages(start_broker: StartBroker, tmp_path: Path) -> None:
    """Levels of filters count: each takes about a hundred bytes. Retained messages count their topics and places."""
    broker = start(start_broker, tmp_path, {"max_subscription_bytes": 10_000, "max_retained_bytes": 10_000})
    deep = "/".join(["x"] * 90)
    with client(broker, "acme", "a", 5) as acme, client(broker, "globex", "a", 5) as globex:
        assert acme.subscribe((deep, 0), (f"y/{deep}", 0), ("x/y", 0)) == [0, QUOTA_EXCEEDED, 0]
        assert globex.subscribe((deep, 0), (f"y/{deep}", 0)) == [0, 0]
        assert 90 * 96 < figure(broker, "subscription_bytes", "acme") < 10_000
        for topic in ("1/a", "1/b", "2/a"):
            publish(acme, topic, b"x" * 4500, retain=True)
            publish(globex, topic, b"globex", retain=True)
        assert (figure(broker, "retained", "acme"), figure(broker, "retained", "globex")) == (2, 3)
        assert 9000 + 2 * 180 < figure(broker, "retained_bytes", "acme") < 10_000
        acme.close()
        until(lambda: figure(broker, "subscription_bytes", "acme") == 0)


def test_retained_and_delayed_messages(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, {"max_retained_messages": 2, "max_delayed_messages": 1})
    with client(broker, "acme", "a", 5) as acme, client(broker, "globex", "a", 5) as globex:
        for number in range(4):
            publish(acme, f"kept/{number}", b"acme", retain=True)
            publish(globex, f"kept/{number}", b"globex", retain=True)
        publish(acme, "kept/1", b"new", retain=True)
        acme.subscribe(("kept/#", 0))
        globex.subscribe(("kept/#", 0))
        assert sorted(messages(acme)) == [("kept/0", b"acme"), ("kept/1", b"new")]
        assert len(messages(globex)) == 4
        assert figure(broker, "retained", "acme") == 2
        publish(acme, "kept/0", b"", retain=True)
        publish(acme, "kept/9", b"room", retain=True)
        assert figure(broker, "retained", "acme") == 2
        assert figure(broker, "dropped_total", "acme") == 2
        assert publish(acme, "$delayed/3600/x", b"1") < 0x80
        assert publish(acme, "$delayed/3600/x", b"2") == QUOTA_EXCEEDED
        assert publish(globex, "$delayed/0/x", b"1") < 0x80
        assert publish(globex, "$delayed/0/x", b"2") < 0x80
        until(lambda: figure(broker, "delayed", "globex") == 0)
        assert figure(broker, "delayed", "acme") == 1


@pytest.mark.parametrize("policy", ["drop-old", "drop-new"])
def test_queues_of_all_sessions_together(start_broker: StartBroker, tmp_path: Path, policy: str) -> None:
    broker = start(start_broker, tmp_path, {"max_queued_bytes": 3000}, limits__queue_policy=policy)
    stays: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    for tenant in ("acme", "globex"):
        for name in ("a", "b"):
            with client(broker, tenant, name, 5, **stays) as each:
                each.subscribe((f"{name}/#", 1), ("$share/g/c/#", 1))
    for tenant in ("acme", "globex"):
        with client(broker, tenant, "publisher", 5) as publisher:
            for number in range(5):
                for topic in ("a/x", "b/x", "c/x"):
                    publish(publisher, topic, b"%d" % number + b"x" * 499)
    assert 2000 < figure(broker, "queued_bytes", "acme") <= 3000
    assert figure(broker, "queued_bytes", "globex") > 15 * 500
    for tenant, found in (("acme", 5), ("globex", 15)):
        with client(broker, tenant, "a", 5, **stays) as one, client(broker, tenant, "b", 5, **stays) as two:
            read_all(found, one, two)
    until(lambda: figure(broker, "queued_bytes", "acme") == 0 == figure(broker, "queued_bytes", "globex"))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_connected_client_loses_its_oldest_messages(start_broker: StartBroker, tmp_path: Path, store: str) -> None:
    """With drop-old the queue drops unsent messages for a new one, also at the tenant's limit."""
    broker = start(start_broker, tmp_path, {"max_queued_bytes": 3000}, limits__queue_policy="drop-old")
    slow: dict[str, Any] = {"receive_maximum": 1, "session_expiry_interval": 3600}
    with (
        client(broker, "acme", "slow", 5, properties=slow) as reader,
        client(broker, "acme", "publisher", 5) as publisher,
    ):
        reader.subscribe(("t", 1))
        for number in range(9):
            publish(publisher, "t", b"%d" % number + b"x" * 499)
        found = ""
        while not found.endswith("8"):
            message = reader.receive()
            assert isinstance(message, Publish)
            found += chr(message.payload[0])
            reader.send(Puback(packet_id=message.packet_id))
    assert found == "05678", "the first is sent, and waits for its acknowledgement"


@pytest.mark.parametrize(("limit", "size"), [({"messages_per_second": 20}, 1), ({"bytes_per_second": 20_000}, 980)])
def test_rates_are_of_all_clients_together(
    start_broker: StartBroker, tmp_path: Path, limit: dict[str, int], size: int
) -> None:
    """Messages over the rate are read later: none is lost, and another tenant does not wait."""
    broker = start(start_broker, tmp_path, limit)
    with (
        client(broker, "acme", "a") as one,
        client(broker, "acme", "b") as two,
        client(broker, "globex", "a") as globex,
    ):
        began = time.monotonic()
        for sender in (one, two):
            for _ in range(30):
                sender.send(Publish("x", b"x" * size, qos=0, packet_id=0))
        for _ in range(300):
            globex.send(Publish("x", b"x" * size, qos=0, packet_id=0))
        until(lambda: figure(broker, "received_total", "globex") == 300)
        until(lambda: figure(broker, "received_total", "acme") == 60)
        assert time.monotonic() - began > 1.5  # the first second's amount at once, then 20 each second
        assert counted(broker, "throttled") > 0


def test_figures(start_broker: StartBroker, tmp_path: Path) -> None:
    """Messages of every QoS are counted at the publisher's and at the receiver's side; clients of no tenant nowhere."""
    files = AccessFiles(tmp_path)
    files.users('"\\-device', "acme-device")
    broker = files.start(
        start_broker, tenants=json.dumps([{"name": "*", "user": "*-device"}]), auth__allow_anonymous=True
    )
    with client(broker, '"\\') as odd, client(broker, "acme") as acme, client(broker, "") as free:
        acme.send(Subscribe(packet_id=1, topic_filters=[("#", 2), ("$share/g/#", 0)]))
        for qos in (0, 1, 2):
            publish(acme, "x", b"four", qos)
            publish(free, "x", b"four", qos)
        publish(odd, "x", b"123456", 1)
        until(lambda: figure(broker, "sent_total", "acme") == 6)
        assert figure(broker, "received_total", "acme") == 3
        assert figure(broker, "received_bytes_total", "acme") == 12
        assert figure(broker, "sent_bytes_total", "acme") == 24
        assert figure(broker, "received_bytes_total", r"\"\\") == 6
        text = HttpClient(broker).ask("GET", "//metrics").data.decode()
        assert text.count("flockmq_tenant_received_total{") == 2
