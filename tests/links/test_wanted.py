"""Links that carry only messages that the receiving side wants: `wanted_only`."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.broker.links.exchange import Exchange
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.web.http_client import HttpClient

one_store = pytest.mark.parametrize("store", ["sqlite"])
HTTP = {"http.listen": "127.0.0.1:0"}


def links(**tables: dict[str, object]) -> dict[str, object]:
    """The settings of a node with these links."""
    return {**HTTP, "links": json.dumps(tables)}


def table(port: int, *topics: str, **more: object) -> dict[str, object]:
    """A link that carries wanted messages only."""
    return {"url": f"mqtt://127.0.0.1:{port}", "topics": topics, "retry": 0.5, "wanted_only": True, **more}


def filters_of(broker: BrokerProcess, client_id: str) -> set[str]:
    """The subscriptions of a session."""
    answer = HttpClient(broker).ask("GET", "/client", client_id=client_id)
    if answer.status == 404:
        return set()
    return {item["filter"] for item in json.loads(answer.data)["filters"]}


def carried(broker: BrokerProcess, direction: str = "out", name: str = "far") -> int:
    """The messages that a link has carried."""
    return next(
        int(item[direction]["messages"]) for item in HttpClient(broker).get("/links")["items"] if item["name"] == name
    )


@pytest.mark.parametrize(
    "payload",
    [b"{", b"[" * 100_000, b'{"wanted": [["\\ud800", []]]}', b'{"wanted": [["a", ["\\udfff"]]]}', b'{"wanted": 1}'],
    ids=lambda payload: payload[:40].decode(),
)
def test_a_report_that_cannot_be_read_ends_the_connection(payload: bytes) -> None:
    aborted: list[str] = []
    exchange = SimpleNamespace(_remote=SimpleNamespace(abort=aborted.append), _peer="peer", _held=[])
    Exchange.on_report(cast(Any, exchange), payload)
    assert aborted == ["it has sent a report of wanted filters that can't be read"] and not exchange._held


def publish(broker: BrokerProcess, topics: Iterable[str], *, qos: int = 1, **more: object) -> None:
    """Publish a message to each of these topics; its payload is the topic."""
    with SocketClient(broker.port, "publisher") as client:
        for number, topic in enumerate(topics, 1):
            client.send(Publish(topic, topic.encode(), qos=qos, packet_id=number, **more))  # type: ignore[arg-type]
            if qos == 2:
                assert isinstance(client.receive(), Pubrec)
                client.send(Pubrel(number))
            assert isinstance(client.receive(), Puback if qos == 1 else Pubcomp)


def received(client: SocketClient, number: int) -> list[str]:
    """The payloads of so many messages."""
    found: list[str] = []
    while len(found) < number:
        packet = client.receive()
        if isinstance(packet, Publish):
            found.append(packet.payload.decode())
    return found


def is_asked(here: BrokerProcess, *wanted: str, name: str = "far") -> Callable[[], bool]:
    """Whether the link of this broker sends messages of these filters."""
    return lambda: filters_of(here, f"$link/{name}") == set(wanted)


@one_store
def test_a_link_out_sends_what_the_other_broker_has_subscribers_for(start_broker: StartBroker) -> None:
    there = start_broker(HTTP)
    here = start_broker(links(far=table(there.port, 'sensors/# out 2 "" plant/', "other/# out 1")))
    here.wait_for_log("link is connected")
    with SocketClient(there.port, "reader") as reader:
        publish(here, ["sensors/a/1", "sensors/b"])
        reader.subscribe(("plant/sensors/a/#", 2), ("nothing/of/the/link", 1))
        until(is_asked(here, "sensors/a/#"))
        publish(here, ["sensors/b", "sensors/a/2", "other/x", "sensors/a"])
        assert received(reader, 2) == ["sensors/a/2", "sensors/a"]
        assert carried(here) == 2
        reader.subscribe(("plant/sensors/a/1", 1), ("#", 0))  # the first is covered
        until(is_asked(here, "sensors/#", "other/#"))
        until(lambda: HttpClient(here).get("/links")["items"][0]["wanted"] == {"here": 0, "there": 2})
        text = HttpClient(here).ask("GET", "//metrics").data.decode()
        assert 'flockmq_link_wanted{link="far",direction="out"' in text
    until(is_asked(here))
    publish(here, ["sensors/a/3"])
    assert carried(here) == 2


@one_store
def test_a_link_in_asks_for_what_has_subscribers_here(start_broker: StartBroker) -> None:
    there = start_broker(HTTP)
    here = start_broker(links(far=table(there.port, 'cmd/# in 2 "" plant/', client_id="x")))
    here.wait_for_log("link is connected")
    away = SocketClient(here.port, "away", clean_start=False, level=4)
    away.subscribe(("cmd/+/go", 1))
    away.close()  # a persistent session wants messages, too
    with SocketClient(here.port, "member", level=5) as member:
        member.subscribe(("$share/group/cmd/all", 1))
        until(lambda: filters_of(there, "x") == {"plant/cmd/+/go", "plant/cmd/all"})
        publish(there, ["plant/cmd/1/go", "plant/cmd/1/stop", "plant/cmd/all"])
        assert received(member, 1) == ["plant/cmd/all"]
        assert carried(here, "in") == 2
    until(lambda: filters_of(there, "x") == {"plant/cmd/+/go"})
    with SocketClient(here.port, "away", clean_start=False, level=4) as back:
        assert received(back, 1) == ["plant/cmd/1/go"]


@one_store
@pytest.mark.parametrize("direction", ["out", "in"])
def test_wanted_messages_wait_for_a_link_that_is_down(start_broker: StartBroker, direction: str) -> None:
    source, target = start_broker(HTTP), start_broker(HTTP)
    runner, other = (source, target) if direction == "out" else (target, source)
    runner.stop()
    runner.settings |= links(far=table(other.port, f"a/# {direction} 2", client_id="x"))
    runner.start()
    asked = is_asked(source, "a/1") if direction == "out" else lambda: filters_of(source, "x") == {"a/1"}
    reader = SocketClient(target.port, "reader", clean_start=False, level=4)
    reader.subscribe(("a/1", 2))
    until(asked)
    reader.close()
    target.kill()
    publish(source, ["a/1", "a/2"])
    source.kill()
    source.start()
    publish(source, ["a/1"])
    before = len(runner.log)
    target.start()
    runner.wait_for_log("link is connected", since=before if direction == "out" else 0)
    with SocketClient(target.port, "reader", clean_start=False, level=4) as back:
        assert received(back, 2) == ["a/1", "a/1"]
        publish(source, ["a/1"])
        assert received(back, 1) == ["a/1"]
    assert asked()


@one_store
@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_later_subscriber_gets_the_retained_messages_of_now(start_broker: StartBroker, direction: str) -> None:
    source, target = start_broker(HTTP), start_broker(HTTP)
    runner, other = (source, target) if direction == "out" else (target, source)
    runner.stop()
    runner.settings |= links(far=table(other.port, f"a/# {direction} 1", client_id="x"))
    runner.start()
    runner.wait_for_log("link is connected")
    publish(source, ["a/old", "a/gone"], retain=True)
    with SocketClient(target.port, "first") as first:
        first.subscribe(("a/+", 1))
        assert sorted(received(first, 2)) == ["a/gone", "a/old"]
    # The filter has no subscriber any more: the copies end, since nothing keeps them up to date.
    asked = is_asked(source) if direction == "out" else lambda: filters_of(source, "x") == set()
    until(asked)
    until(lambda: HttpClient(target).get("/retained/messages", filter="a/#")["items"] == [])
    with SocketClient(source.port, "publisher") as client:
        client.send(Publish("a/gone", b"", qos=1, packet_id=1, retain=True))
        client.ping()
    publish(source, ["a/new"], retain=True)
    with SocketClient(target.port, "second") as second:
        second.subscribe(("a/+", 1))
        assert sorted(received(second, 2)) == ["a/new", "a/old"]
    assert {item["topic"] for item in HttpClient(source).get("/retained/messages", filter="a/#")["items"]} == {
        "a/old",
        "a/new",
    }


@one_store
@pytest.mark.parametrize("direction", ["out", "in"])
def test_copies_end_also_if_their_subscriber_went_with_a_restart(start_broker: StartBroker, direction: str) -> None:
    source, target = start_broker(HTTP), start_broker(HTTP)
    runner, other = (source, target) if direction == "out" else (target, source)
    runner.stop()
    runner.settings |= links(far=table(other.port, f"a/# {direction} 1", client_id="x"))
    runner.start()
    publish(source, ["a/old"], retain=True)
    publish(target, ["a/own"], retain=True)  # not a copy
    with SocketClient(target.port, "first") as first:
        first.subscribe(("a/old", 1))
        assert received(first, 1) == ["a/old"]
        target.kill()
    target.start()
    until(
        lambda: (
            [item["topic"] for item in HttpClient(target).get("/retained/messages", filter="a/#")["items"]] == ["a/own"]
        )
    )


@one_store
@pytest.mark.parametrize("direction", ["out", "in"])
def test_interest_crosses_a_ring_of_three_and_ends_with_its_client(start_broker: StartBroker, direction: str) -> None:
    ring = [start_broker(HTTP) for _ in range(3)]
    for broker, after in zip(ring, [*ring[1:], ring[0]], strict=True):
        broker.stop()
        broker.settings |= links(next=table(after.port, f"r/# {direction} 1", client_id="x"))
    for broker in ring:
        broker.start()
    for broker in ring:
        broker.wait_for_log("link is connected")
    client_id = "$link/next" if direction == "out" else "x"
    reader = SocketClient(ring[0].port, "reader")
    reader.subscribe(("r/1", 1))
    # The brokers before it send; none sends its own wanted filter back to the reader's broker.
    others = {"out": (1, 2), "in": (2, 1)}[direction]
    until(lambda: all(filters_of(ring[number], client_id) == {"r/1"} for number in others))
    for number in (2, 1, 0):
        publish(ring[number], ["r/0", "r/1"])
        assert received(reader, 1) == ["r/1"]
    assert filters_of(ring[0], client_id) == set()
    reader.close()
    until(lambda: all(filters_of(broker, client_id) == set() for broker in ring))


@one_store
def test_too_many_filters_are_the_rules_filter(start_broker: StartBroker) -> None:
    there = start_broker(HTTP)
    here = start_broker(links(far=table(there.port, "a/# both 1", max_wanted=5, client_id="x")))
    here.wait_for_log("link is connected")
    with SocketClient(there.port, "there") as reader, SocketClient(here.port, "here") as other:
        for client in (reader, other):
            client.subscribe(*((f"a/{number}", 1) for number in range(5)))
        until(is_asked(here, *(f"a/{number}" for number in range(5))))
        until(lambda: len(filters_of(there, "x")) == 5)
        for client in (reader, other):
            client.subscribe(("a/5", 1))
        until(is_asked(here, "a/#"))
        until(lambda: filters_of(there, "x") == {"a/#"})


@one_store
def test_a_rule_for_another_kind_of_broker_carries_all(start_broker: StartBroker) -> None:
    there = start_broker(HTTP)
    here = start_broker(links(far={**table(there.port, "a/# out 1"), "wanted_only": False}))
    here.wait_for_log("link is connected")
    assert filters_of(here, "$link/far") == {"a/#"}
    assert HttpClient(here).get("/links")["items"][0]["wanted"] is None
    # The same link, then with the exchange: the rule's filters are wanted no more.
    here.stop()
    here.settings |= links(far=table(there.port, "a/# out 1"))
    here.start()
    until(is_asked(here))


@one_store
def test_a_link_learns_no_filters_of_topics_that_its_user_may_not_write(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    files = AccessFiles(tmp_path)
    files.users("link", "reader")
    files.rules("user reader", "topic read #", "user link", "topic readwrite a/#", "topic read b/#")
    there = files.start(start_broker, **{"http.listen": "127.0.0.1:0"})
    here = start_broker(links(far=table(there.port, "a/# out 1", "b/# out 1", username="link", password="link")))
    here.wait_for_log("link is connected")
    with SocketClient(there.port, "reader", username="reader", password=b"reader") as reader:
        reader.subscribe(("a/secret", 1), ("b/secret", 1))
        until(is_asked(here, "a/secret", "b/#"))


@one_store
def test_a_link_of_a_tenant_learns_the_filters_of_its_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    rules = json.dumps([{"name": "*", "user": "*-device"}])
    there = files.start(start_broker, tenants=rules, **{"http.listen": "127.0.0.1:0"})
    user = {"username": "acme-device", "password": "acme-device"}
    here = start_broker(links(far=table(there.port, "a/# both 1", client_id="x", **user)))
    here.wait_for_log("link is connected")
    with (
        SocketClient(there.port, "one", username="acme-device", password=b"acme-device") as one,
        SocketClient(there.port, "two", username="globex-device", password=b"globex-device") as two,
        SocketClient(here.port, "here") as reader,
    ):
        two.subscribe(("a/theirs", 1))
        one.subscribe(("a/own", 1))
        reader.subscribe(("a/back", 1))
        until(is_asked(here, "a/own"))
        until(lambda: HttpClient(here).get("/links")["items"][0]["wanted"] == {"here": 1, "there": 1})
        one.send(Publish("a/back", b"1", qos=1, packet_id=9))
        publish(here, ["a/own"])
        assert received(one, 1) == ["a/own"] and received(reader, 1) == ["1"]


def test_clusters_tell_each_other_and_no_interest_stays(start_cluster: StartCluster) -> None:
    there = start_cluster(HTTP, nodes="xy")
    here = start_cluster(links(far=table(there["x"].port, "a/# both 2", client_id="x")) | {"cluster.lease": 1})
    here.wait_for_log("link is connected")
    names = "abc"
    with SocketClient(there["y"].port, "there") as reader, SocketClient(here["b"].port, "here") as other:
        reader.subscribe(("a/1", 2))
        other.subscribe(("a/2", 2))
        until(is_asked(here["a"], "a/1"))
        until(lambda: filters_of(there["x"], "x") == {"a/2"})
        publish(here["c"], ["a/1", "a/2", "a/3"])
        publish(there["y"], ["a/1", "a/2", "a/3"])
        assert received(reader, 2) == ["a/1", "a/1"] and received(other, 2) == ["a/2", "a/2"]
        # The last: a link moves when a node joins that is responsible for it.
        runner = next(line["node"] for line in reversed(here.log) if line["event"] == "link is connected")
        if runner != "b":  # its client would be gone with it
            before = len(here.log)
            here[runner].kill()
            left = next(name for name in names if name not in (runner, "b"))
            publish(here[left], ["a/1"])
            here.wait_for_log("link is connected", since=before)
            assert received(reader, 1) == ["a/1"]
            publish(there["x"], ["a/2"])
            assert received(other, 1) == ["a/2"]
    until(lambda: filters_of(here["b"], "$link/far") == set() and filters_of(there["x"], "x") == set())
