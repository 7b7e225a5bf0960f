"""Each step of a followed message is reported, with the reason where it ends."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from flockmq._speedups.session.rights import PUBLISH, Rights
from flockmq._speedups.session.trace import STEPS
from flockmq.broker.admin.api.operations.events import trace_events
from flockmq.broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from flockmq.broker.commands.trace import WORDS, line
from flockmq.broker.errors import UsageError
from flockmq.broker.tracing import FORGET_SECONDS, KEPT, MAX_NAMES, check, follow
from tests.harness.inprocess import Client, KeepingStore, Node

Told = list[tuple[str, str, str]]  # step, client, detail


class Follower:
    """Asks a node as another node would."""

    def __init__(self, node: Node, *, client: str | None = None, topic: str | None = None) -> None:
        self._node = node
        self._arguments = {"follower": str(id(self)), "client": client, "topic": topic, "names": [], "stop": False}
        assert self.ask() == ([], 0)

    def ask(self, **more: Any) -> tuple[list[Any], int]:
        steps, missed = self._node.broker.rpc_methods["trace"](self._arguments | more)
        return steps, missed

    def told(self, **more: Any) -> Told:
        return [(step[1], step[4], step[7]) for step in self.ask(**more)[0]]

    def stop(self) -> None:
        self.ask(stop=True)


def client_of(node: Node, client_id: str, *filters: tuple[str, int], **connect: Any) -> Client:
    client = Client(node, client_id, **connect)
    client.connack()
    if filters:
        client.send(Subscribe(packet_id=1, topic_filters=list(filters)))
        client.take()
    return client


def test_qos_0() -> None:
    node = Node()
    client_of(node, "watcher", ("t/#", 0))
    follower = Follower(node, topic="t/+")
    client_of(node, "device").send(Publish("t/1", b"x"), Publish("other", b"x"), Publish("t/1/2", b"x"))
    assert follower.told() == [("received", "device", ""), ("sent", "watcher", "")]
    assert follower.told() == []


def test_qos_1_stored_queued_sent_and_acknowledged() -> None:
    node = Node(auto=False)
    reader = client_of(node, "reader")
    node.confirm()
    reader = Client(node, "keeper", clean_start=False)
    node.confirm()
    reader.connack()
    reader.send(Subscribe(packet_id=1, topic_filters=[("t", 1)]))
    node.confirm()
    reader.take()
    follower = Follower(node, topic="t")
    device = client_of(node, "device")
    device.send(Publish("t", b"x", qos=1, packet_id=9))
    assert follower.told() == [("received", "device", ""), ("queued", "keeper", "")]
    node.confirm()
    assert follower.told() == [("stored", "device", ""), ("answered", "device", "PUBACK"), ("sent", "keeper", "")]
    (message,) = reader.take()
    reader.send(Puback(packet_id=message.packet_id))  # type: ignore[attr-defined]
    assert follower.told() == [("acknowledged", "keeper", "PUBACK")]


def test_qos_2() -> None:
    node = Node()
    reader = client_of(node, "reader", ("t", 2))
    follower = Follower(node, topic="t")
    device = client_of(node, "device")
    device.send(Publish("t", b"x", qos=2, packet_id=1))
    assert follower.told() == [("received", "device", ""), ("answered", "device", "PUBREC")]
    device.send(Pubrel(packet_id=1))
    assert follower.told() == [("queued", "reader", ""), ("answered", "device", "PUBCOMP"), ("sent", "reader", "")]
    (message,) = reader.take()
    reader.send(Pubrec(packet_id=message.packet_id))  # type: ignore[attr-defined]
    assert follower.told() == [("acknowledged", "reader", "PUBREC")]


def test_what_nobody_gets_and_why() -> None:
    class Denies:
        def authenticate(self, credentials: Credentials) -> Verdict:
            rules = [(True, PUBLISH, b"mine")] if credentials.client_id == "device" else None
            return Verdict(ReasonCode.ACCEPTED, Identity(None, None if rules is None else Rights(rules)))

    node = Node(authenticator=Denies(), max_queued_messages=1)
    follower = Follower(node, topic="#")
    device = client_of(node, "device")
    device.send(Publish("yours", b""))
    assert follower.told() == [("received", "device", ""), ("dropped", "device", "the client may not publish there")]
    device.send(Publish("mine", b""))
    assert follower.told() == [("received", "device", ""), ("dropped", "", "nobody here has subscribed")]
    client_of(node, "away", ("mine", 1), clean_start=False).close()
    device.send(Publish("mine", b""))
    assert follower.told()[1:] == [("dropped", "away", "QoS 0, and not connected")]
    device.send(Publish("mine", b"", qos=1, packet_id=1), Publish("mine", b"", qos=1, packet_id=2))
    assert [told for told in follower.told() if told[1] == "away"] == [
        ("queued", "away", "until the client is back"),
        ("dropped", "away", "the queue is full"),
    ]


def test_retained_messages() -> None:
    node = Node()
    follower = Follower(node, topic="t")
    device = client_of(node, "device")
    device.send(Publish("t", b"x", retain=True))
    assert follower.told() == [("received", "device", ""), ("retained", "", "")]
    client_of(node, "late", ("t", 0))
    assert follower.told() == [("sent", "late", "retained")]


def test_what_a_client_publishes_and_gets() -> None:
    node = Node()
    follower = Follower(node, client="device")
    device = client_of(node, "device", ("cmd", 0))
    other = client_of(node, "other", ("up", 0))
    other.send(Publish("noise", b"x"))
    device.send(Publish("up", b"1"))
    other.send(Publish("cmd", b"2"))
    assert follower.told() == [
        ("received", "device", ""),
        ("sent", "other", ""),
        ("received", "other", ""),
        ("sent", "device", ""),
    ]


def test_names_of_another_node_find_what_happened_before() -> None:
    node = Node()
    client_of(node, "other", ("up", 0))
    elsewhere = Follower(node, client="not here")
    client_of(node, "device").send(Publish("up", b"1"))
    assert elsewhere.told() == []
    name = Follower(node, topic="up")  # at the node where it came in; here the same one
    client_of(node, "device2").send(Publish("up", b"1"))
    names = {step[2] for step in name.ask()[0]}
    assert [step for step, _, _ in elsewhere.told(names=list(names))] == ["received", "sent"] * 2


def test_off_is_off() -> None:
    node = Node()
    follower = Follower(node, topic="#")
    assert node.turn.tracer is not None
    follower.stop()
    assert node.turn.tracer is None


def test_who_asks_no_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    Follower(node, topic="#")
    node.broker.traces.forget()
    assert node.turn.tracer is not None
    moment = __import__("time").monotonic() + FORGET_SECONDS + 1
    monkeypatch.setattr("flockmq.broker.tracing.time.monotonic", lambda: moment)
    node.broker.traces.forget()
    assert node.turn.tracer is None


def test_memory_is_bounded_and_what_is_missed_is_counted() -> None:
    node = Node()
    follower = Follower(node, topic="t")
    device = client_of(node, "device")
    for _ in range(25):
        device.send(*[Publish("t", b"")] * 1000)
    steps, missed = follower.ask()
    assert len(steps) == 2000
    assert missed == 2 * 25_000 - 20_000


def test_followers_miss_only_what_is_theirs() -> None:
    """One follower has much and polls seldom; the other misses nothing by that, and each has its own count."""
    node = Node()
    slow, quick = Follower(node, topic="much"), Follower(node, topic="few")
    device = client_of(node, "device")
    for _ in range(3):
        for _ in range(20):
            device.send(*[Publish("much", b"")] * 1000)
        device.send(Publish("few", b""))
        steps, missed = quick.ask()
        assert ([step[3] for step in steps], missed) == (["few", "few"], 0)
    steps, missed = slow.ask()
    assert len(steps) == 2000
    assert missed == 3 * 2 * 20_000 - KEPT
    assert slow.ask()[1] == 0


def test_followers_of_the_same_have_each_their_count() -> None:
    node = Node()
    one, two = Follower(node, topic="#"), Follower(node, client="device")
    device = client_of(node, "device")
    for _ in range(25):
        device.send(*[Publish("t", b"")] * 1000)
    assert one.ask()[1] == 2 * 25_000 - KEPT
    assert two.ask()[1] == 2 * 25_000 - KEPT
    assert (one.ask()[1], two.ask()[1]) == (0, 0)


def test_following_over_all_nodes() -> None:
    async def run() -> list[tuple[str, str, str]]:
        node = Node(KeepingStore())
        client_of(node, "watcher", ("t", 0))
        steps = follow(node.broker.coordinator.nodes.call_all, node.broker.data_plane.run, None, "t")
        assert await anext(steps) == ([], 0)
        client_of(node, "device").send(Publish("t", b"x"))
        told = [(step.step, step.client, step.message) for step in (await anext(steps))[0]]
        await steps.aclose()  # type: ignore[attr-defined]
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert node.turn.tracer is None
        return told

    told = asyncio.run(run())
    assert [step[:2] for step in told] == [("received", "device"), ("sent", "watcher")]
    assert told[0][2] == told[1][2]


def test_an_answer_is_not_told_of_a_message_before_with_its_packet_identifier() -> None:
    """The earlier message's connection may have ended, and its memory be another's."""
    node = Node(auto=False)
    keeper = Client(node, "keeper", clean_start=False)
    node.confirm()
    keeper.connack()
    keeper.send(Subscribe(packet_id=1, topic_filters=[("#", 1)]))
    node.confirm()
    follower = Follower(node, topic="followed")
    for n in range(20):
        device = client_of(node, f"gone-{n}")
        device.send(Publish("followed", b"x", qos=1, packet_id=7))
        device.close()
        node.confirm()
    assert "answered" not in [step for step, _, _ in follower.told()]
    node.clients.clear()
    for n in range(20):
        client_of(node, f"device-{n}").send(Publish("other", b"x", qos=1, packet_id=7))
        node.confirm()
    assert follower.told() == []


def test_what_a_follower_knows_of_a_client_is_bounded() -> None:
    node = Node()
    follower = Follower(node, client="device")
    device = client_of(node, "device")
    for n in range(30):
        device.send(*(Publish("t", b"%d" % (n * 1000 + i)) for i in range(1000)))
        while follower.ask(names=[n])[0]:
            pass
    (known,) = node.broker.traces._followers.values()
    assert len(known.names) <= KEPT + MAX_NAMES


def test_a_stream_of_steps_ends_when_the_node_has_begun_anew() -> None:
    """Its reader then asks once more, and gets the steps of now."""

    async def run() -> int:
        node = SimpleNamespace(broker=Node().broker)
        count = 0
        async for _ in trace_events(cast(Any, node), None, "t"):
            count += 1
            if count == 2:
                node.broker = Node().broker
        return count

    assert asyncio.run(asyncio.wait_for(run(), 5)) == 2


@pytest.mark.parametrize(("client", "topic"), [(None, None), (None, "a#"), ("c", "")])
def test_what_can_not_be_followed(client: str | None, topic: str | None) -> None:
    with pytest.raises(UsageError):
        check(client, topic)


def test_an_unsubscribed_client_gets_no_more() -> None:
    node = Node()
    watcher = client_of(node, "watcher", ("t", 0))
    watcher.send(Unsubscribe(packet_id=2, topic_filters=["t"]))
    follower = Follower(node, client="watcher")
    client_of(node, "device").send(Publish("t", b"x"))
    assert follower.told() == []


def test_every_step_has_words_and_a_step_of_a_later_version_is_shown() -> None:
    assert tuple(WORDS) == STEPS
    step = {"time": 0.0, "node": "a", "message": "m", "client": "c", "detail": "", "topic": "t", "size": 1, "qos": 0}
    assert "a m DROPPED for c: t, 1 bytes, QoS 0" in line({**step, "step": "dropped"})
    assert "a m archived c: t, 1 bytes, QoS 0" in line({**step, "step": "archived"})
