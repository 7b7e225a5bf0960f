"""Hooks: their calls and decisions, sync and async, and that one that fails harms nobody else."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import (
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flockmq._speedups.net.listener import Endpoint, Listener
from flockmq.broker.auth.authenticator import Authenticator, Credentials, Identity, ReasonCode, Verdict
from flockmq.broker.auth.bans import Ban
from flockmq.broker.config.topic_rules import AutoSubscription
from flockmq.broker.core.hidden_messages import HiddenMessages
from flockmq.broker.errors import UsageError
from flockmq.broker.hooks.api import Client, Hooks, Message, Refusal
from flockmq.broker.hooks.chain import NAMES, HookChain
from flockmq.broker.hooks.load import load
from tests.harness.inprocess import Client as Connected
from tests.harness.inprocess import Node

Play = Callable[[Node], Any]


def play(
    hooks: list[Hooks],
    act: Play,
    *,
    timeout: float = 5.0,
    authenticator: Authenticator | None = None,
    mqtt: dict[str, Any] | None = None,
) -> Any:
    """Run `act(node)` within a loop, with these hooks; after it, and on `await settle(node)`, async hooks are done."""

    async def run() -> Any:
        node = Node(authenticator=authenticator, mqtt=mqtt)
        node.broker.use(hooks, timeout)
        found = act(node)
        found = await found if isinstance(found, Awaitable) else found
        await settle(node)
        node.close()
        return found

    return asyncio.run(run())


async def settle(node: Node) -> None:
    """Until no hook is at work."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    node.run()


async def pass_on(node: Node) -> None:
    """Let the hooks that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)
        node.run()


def client_of(node: Node, client_id: str, *filters: tuple[str, int], **connect: Any) -> Connected:
    client = Connected(node, client_id, **connect)
    client.connack()
    if filters:
        client.send(Subscribe(packet_id=1, topic_filters=list(filters)))
        client.take()
    return client


def topics(client: Connected) -> list[tuple[str, bytes]]:
    return [(packet.topic_name, packet.payload) for packet in client.take() if isinstance(packet, Publish)]


def test_no_hook_costs_nothing() -> None:
    node = Node()
    node.broker.use([Hooks()])
    assert not node.turn.has_publish_hook
    assert node.turn.deliver_hook is None
    assert not node.broker.hooks.has(*NAMES)


class Stamps(Hooks):
    """Changes what is published."""

    def publish(self, client: Client, message: Message) -> Message | bool:
        if message.topic == "drop":
            return False
        return message._replace(topic=f"{client.client_id}/{message.topic}", payload=message.payload.upper())


class StampsLater(Hooks):
    """The same, later."""

    async def publish(self, client: Client, message: Message) -> Message | bool:
        await asyncio.sleep(0)
        return Stamps().publish(client, message)


@pytest.mark.parametrize("hooks", [Stamps(), StampsLater()])
def test_hooks_see_the_topic_of_a_delayed_message_without_its_delay(hooks: Hooks) -> None:
    async def act(node: Node) -> list[tuple[str, bytes]]:
        watcher = client_of(node, "watcher", ("#", 1))
        device = client_of(node, "device")
        device.send(*(Publish(f"$delayed/1/{topic}", b"a", qos=1, packet_id=1) for topic in ("a", "drop")))
        await settle(node)
        assert len(device.take()) == 2
        assert topics(watcher) == []
        node.advance(8)
        return topics(watcher)

    assert play([hooks], act) == [("device/a", b"A")]


@pytest.mark.parametrize("hooks", [Stamps(), StampsLater()])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_changes_and_drops_messages_in_order(hooks: Hooks, qos: int) -> None:
    async def act(node: Node) -> list[tuple[str, bytes]]:
        watcher = client_of(node, "watcher", ("#", qos))
        device = client_of(node, "device")
        sent = [
            Publish(topic, topic.encode(), qos=qos, packet_id=n if qos else 0)
            for n, topic in enumerate(("a", "drop", "b", "c"), 1)
        ]
        device.send(*sent)
        await settle(node)
        answers = device.take()
        kind = {1: Puback, 2: Pubrec}.get(qos)
        assert [packet.packet_id for packet in answers] == ([1, 2, 3, 4] if qos else [])  # type: ignore[attr-defined]
        assert all(isinstance(packet, kind) for packet in answers if kind)
        if qos == 2:
            device.send(*(Pubrel(packet_id=n) for n in (1, 2, 3, 4)))
        return topics(watcher)

    assert play([hooks], act) == [("device/a", b"A"), ("device/b", b"B"), ("device/c", b"C")]


def test_a_message_made_invalid_is_dropped() -> None:
    class Breaks(Hooks):
        def publish(self, client: Client, message: Message) -> Message:
            return message._replace(topic="a/#")

    def act(node: Node) -> list[Any]:
        device = client_of(node, "device")
        device.send(Publish("a", b"", qos=1, packet_id=3))
        return device.take()

    assert [packet.packet_id for packet in play([Breaks()], act)] == [3]


@pytest.mark.parametrize("delay", [b"", b"$delayed/0/"])
def test_a_hook_moves_no_message_to_topics_of_the_broker(delay: bytes) -> None:
    """It could move one of a client without a tenant into a tenant, behind a delay."""

    class Moves(Hooks):
        def publish(self, client: Client, message: Message) -> Message:
            return message._replace(topic=message.payload.decode())

    def act(node: Node) -> list[tuple[str, bytes]]:
        device, reader = client_of(node, "device"), client_of(node, "reader", ("#", 0), ("$SYS/#", 0))
        before = node.router.retained.count
        for topic in (b"$tenant/acme/x", b"$SYS/x", b"$SYS", b"$stream/0/x", b"fine"):
            device.send(Publish("from", delay + topic, retain=True))
        if delay:
            device.send(Publish("$delayed/0/from", delay + b"twice", retain=True))
        node.advance(2)
        assert node.router.retained.count == before + 1
        return [topic for topic, _ in topics(reader)]

    assert play([Moves()], act) == ["fine"]


class OfATenant:
    """Accepts each client, as one of the tenant acme."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED, Identity(tenant="acme"))

    def exchange(self, credentials: Credentials, method: str) -> None:
        return None


def test_a_hook_moves_no_message_out_of_its_tenant() -> None:
    class Moves(Hooks):
        def publish(self, client: Client, message: Message) -> Message:
            assert (client.client_id, message.topic) == (
                "$tenant/acme/device",
                f"$tenant/acme/{message.payload.decode()}",
            )
            return message._replace(topic=message.payload.decode().replace("own", "$tenant/acme/moved"))

    def act(node: Node) -> list[tuple[str, bytes]]:
        watcher = client_of(node, "watcher", ("#", 1))
        device = client_of(node, "device")
        for topic in ("out", "$tenant/globex/a", "own"):
            device.send(Publish(topic, topic.encode(), qos=1, packet_id=3))
            assert len(device.take()) == 1
        return topics(watcher)

    assert play([Moves()], act, authenticator=OfATenant()) == [("moved", b"own")]


class Denies(Hooks):
    def authorize(self, client: Client, action: str, topic: str) -> bool | None:
        return not topic.startswith("secret")


class DeniesLater(Hooks):
    async def authorize(self, client: Client, action: str, topic: str) -> bool | None:
        return not topic.startswith("secret")


@pytest.mark.parametrize("hooks", [Denies(), DeniesLater()])
def test_authorize_is_asked_for_publish_subscribe_and_will(hooks: Hooks) -> None:
    async def act(node: Node) -> None:
        watcher = Connected(node, "watcher")
        await settle(node)
        watcher.connack()
        watcher.send(Subscribe(packet_id=1, topic_filters=[("secret/#", 1), ("+", 0)]))
        await settle(node)
        assert watcher.take_one(Suback).reason_codes == [0x80, 0]
        device = Connected(node, "device")
        await settle(node)
        device.connack()
        device.send(Publish("secret", b""), Publish("open", b""))
        await settle(node)
        assert topics(watcher) == [("open", b"")]
        will = Connected(node, "other", will_topic="secret/x", will_payload=b"")
        await settle(node)
        assert will.connack().reason_code == 5

    play([hooks], act)


def test_connect_refuses() -> None:
    class Refuses(Hooks):
        def connect(self, client: Client) -> bool:
            return client.client_id != "bad"

    def act(node: Node) -> list[int]:
        return [Connected(node, name).connack().reason_code for name in ("good", "bad")]

    assert play([Refuses()], act) == [0, 5]


def test_subscribe_grants_less() -> None:
    class Less(Hooks):
        async def subscribe(self, client: Client, topic_filter: str, qos: int) -> int | bool:
            return False if topic_filter == "no" else 0

    async def act(node: Node) -> list[Any]:
        client = client_of(node, "c")
        subscribe = Subscribe(packet_id=1, topic_filters=[("no", 1), ("yes", 1)])
        client.send(subscribe, Publish("yes", b"1", qos=1, packet_id=1))
        await settle(node)
        return client.take()

    suback, *others = play([Less()], act)
    assert suback.reason_codes == [0x80, 0]
    assert {type(packet) for packet in others} == {Puback, Publish}  # packets behind it were taken after it


@pytest.mark.parametrize("hook", ["subscribe", "authorize"])
def test_subscriptions_made_at_connect_are_decided_over(hook: str) -> None:
    """By hooks that wait, too: packets that came with CONNECT are served after the decision."""
    rules = tuple(AutoSubscription(name, qos=1) for name in ("no/%c", "yes/%c"))
    asked: list[tuple[str, str]] = []

    class Less(Hooks):
        async def subscribe(self, client: Client, topic_filter: str, qos: int) -> int | bool:
            asked.append((client.client_id, topic_filter))
            return False if topic_filter.startswith("no/") else 0

    class Denies(Hooks):
        async def authorize(self, client: Client, action: str, topic: str) -> bool | None:
            if action == "subscribe":
                asked.append((client.client_id, topic))
                return not topic.startswith("no/")
            return None

    async def act(node: Node) -> list[tuple[str, bytes]]:
        client = Connected(node)
        connect = encode(Connect("c", keep_alive=0), 4)
        packets = [Publish("no/c", b"1"), Publish("yes/c", b"2", qos=1, packet_id=1)]
        client.write(connect + b"".join(encode(packet, 4) for packet in packets))
        node.run()
        await settle(node)
        return topics(client)

    hooks: Hooks = Less() if hook == "subscribe" else Denies()
    assert play([hooks], act, mqtt={"auto_subscribe": rules}) == [("yes/c", b"2")]
    assert asked == [("c", "no/c"), ("c", "yes/c")]


def test_deliver_is_asked_for_each_receiver() -> None:
    class Keeps(Hooks):
        def deliver(self, client_id: str, message: Message) -> bool:
            return client_id != "blind"

    def act(node: Node) -> list[list[tuple[str, bytes]]]:
        readers = [client_of(node, name, ("t", 1)) for name in ("blind", "sees")]
        device = client_of(node, "device")
        device.send(Publish("t", b"0"), Publish("t", b"1", qos=1, packet_id=1), Publish("t", b"2", retain=True))
        late = client_of(node, "blind", clean_start=True)
        late.send(Subscribe(packet_id=1, topic_filters=[("t", 0)]))
        return [topics(readers[1]), topics(late)]

    assert play([Keeps()], act) == [[("t", b"0"), ("t", b"2"), ("t", b"1")], []]


class Chooses(Hooks):
    """Refuses with reason codes; the topic name is the method that refuses."""

    def connect(self, client: Client) -> Refusal | None:
        return Refusal(ReasonCode.SERVER_BUSY, "later") if client.client_id == "many" else None

    def authorize(self, client: Client, action: str, topic: str) -> bool | None:
        return topic != "authorize"

    def publish(self, client: Client, message: Message) -> Message | Refusal | bool:
        if message.topic == "publish":
            return Refusal(ReasonCode.QUOTA_EXCEEDED, message.properties["content_type"])
        return False if message.topic == "false" else Refusal(ReasonCode.SERVER_MOVED)

    async def subscribe(self, client: Client, topic_filter: str, qos: int) -> int | Refusal | bool:
        if topic_filter == "subscribe":
            return Refusal(ReasonCode.QUOTA_EXCEEDED, f"{client.level} {dict(client.properties)}")
        return False if topic_filter == "false" else Refusal(ReasonCode.SERVER_MOVED)


def test_hooks_see_the_properties_that_the_client_has_sent() -> None:
    """Not the identifier that the broker has given it."""
    seen: list[dict[str, Any]] = []

    class Watches(Hooks):
        def connect(self, client: Client) -> None:
            seen.append(dict(client.properties))

    connack = play([Watches()], lambda node: Connected(node, "", level=5, properties={"receive_maximum": 9}).connack())
    assert "assigned_client_identifier" in connack.properties
    assert seen == [{"receive_maximum": 9}]


@pytest.mark.parametrize("level", [4, 5])
def test_a_refusal_has_a_reason_code(level: int) -> None:
    """QUOTA_EXCEEDED is one of the packet, SERVER_MOVED is not."""

    async def act(node: Node) -> list[Any]:
        given = {"receive_maximum": 9} if level == 5 else {}
        client = client_of(node, "c", level=level, properties=given)
        filters = [(topic, 1) for topic in ("authorize", "subscribe", "false", "wrong")]
        client.send(Subscribe(1, filters))
        await settle(node)
        (suback,) = client.take()
        sent = [(topic, 1 + number % 2) for number, topic in enumerate(("authorize", "publish", "false", "wrong"))]
        for number, (topic, qos) in enumerate(sent, 1):
            client.send(Publish(topic, b"", qos, packet_id=number, properties={"content_type": "t"}))
        answers = client.take()
        assert [type(answer) for answer in answers] == [Puback, Pubrec, Puback, Pubrec]
        refused = Connected(node, "many", level=level)
        (connack,) = refused.take()
        return [suback, answers, connack]

    suback, answers, connack = play([Chooses()], act)
    codes = [answer.reason_code for answer in answers]
    if level == 4:
        assert (suback.reason_codes, codes, connack.reason_code) == ([0x80] * 4, [0] * 4, 3)
        return
    assert (suback.reason_codes, codes) == ([0x87, 0x97, 0x80, 0x80], [0x87, 0x97, 0x80, 0x80])
    reasons = dict(suback.properties["user_property"])
    assert reasons["filter 2"] == "5 {'receive_maximum': 9}"
    assert (connack.reason_code, connack.properties["reason_string"]) == (ReasonCode.SERVER_BUSY, "later")


@pytest.mark.parametrize("qos", [0, 1])
def test_deliver_sees_the_properties(qos: int) -> None:
    class Looks(Hooks):
        def deliver(self, client_id: str, message: Message) -> bool:
            return message.properties.get("content_type") == "good"

    def act(node: Node) -> list[tuple[str, bytes]]:
        reader = client_of(node, "reader", ("t", qos))
        device = client_of(node, "device", level=5)
        for number, properties in enumerate(({}, {"content_type": "bad"}, {"content_type": "good"})):
            device.send(Publish("t", b"%d" % number, qos, packet_id=number + 1 if qos else 0, properties=properties))
        return topics(reader)

    assert play([Looks()], act) == [("t", b"2")]


def test_events_are_told() -> None:
    class Hears(Hooks):
        def __init__(self) -> None:
            self.heard: list[tuple[Any, ...]] = []

        async def connected(self, client: Client) -> None:
            self.heard.append(("connected", client.client_id))

        def disconnected(self, client: Client, reason: str) -> None:
            self.heard.append(("disconnected", client.client_id, reason))

        def session_started(self, client_id: str, persistent: bool) -> None:
            self.heard.append(("started", client_id, persistent))

        def session_ended(self, client_id: str) -> None:
            self.heard.append(("ended", client_id))

    hooks = Hears()

    async def act(node: Node) -> None:
        client = client_of(node, "c", clean_start=False)
        await settle(node)
        client.close()
        client_of(node, "c", clean_start=True).close()

    play([hooks], act)
    assert [heard for heard in hooks.heard if heard[0] != "connected"] == [
        ("started", "c", True),
        ("disconnected", "c", "closed by the client"),
        ("ended", "c"),
        ("started", "c", False),
        ("disconnected", "c", "closed by the client"),
        ("ended", "c"),
    ]
    assert hooks.heard.count(("connected", "c")) == 2


def test_hooks_hear_of_subscriptions_and_refusals() -> None:
    class Hears(Hooks):
        def __init__(self) -> None:
            self.heard: list[tuple[Any, ...]] = []

        def connect(self, client: Client) -> bool:
            return client.client_id != "bad"

        def refused(self, client: Client, code: ReasonCode, reason: str) -> None:
            self.heard.append(("refused", client.client_id, code))

        async def subscribed(self, client: Client, topic_filters: Sequence[str]) -> None:
            self.heard.append(("subscribed", client.client_id, *topic_filters))

        def unsubscribed(self, client: Client, topic_filters: Sequence[str]) -> None:
            self.heard.append(("unsubscribed", client.client_id, *topic_filters))

    hooks = Hears()

    async def act(node: Node) -> None:
        Connected(node, "bad")
        client = client_of(node, "c", ("a/#", 1), ("b", 0), ("$SYS/x/#x", 0))
        await settle(node)
        client.send(Unsubscribe(packet_id=2, topic_filters=["a/#", "never"]))
        client.send(Unsubscribe(packet_id=3, topic_filters=["never"]))

    play([hooks], act)
    assert hooks.heard == [
        ("refused", "bad", ReasonCode.NOT_AUTHORIZED),
        ("subscribed", "c", "a/#", "b"),
        ("unsubscribed", "c", "a/#"),
    ]


def test_hooks_hear_of_messages_that_a_full_queue_has_dropped() -> None:
    class Hears(Hooks):
        def __init__(self) -> None:
            self.heard: list[tuple[str, int]] = []

        def messages_dropped(self, client_id: str, messages: int) -> None:
            self.heard.append((client_id, messages))

    hooks = Hears()

    def act(node: Node) -> None:
        client_of(node, "away", ("t", 1), clean_start=False).close()
        sender = client_of(node, "sender")
        most = node.broker.config.limits.max_queued_messages
        for number in range(most + 3):
            sender.send(Publish("t", b"", 1, packet_id=number % 60_000 + 1))
        assert node.broker.report_losses() == {b"away": 3}

    play([hooks], act)
    assert hooks.heard == [("away", 3)]


class Fails(Hooks):
    def publish(self, client: Client, message: Message) -> None:
        if client.client_id == "bad":
            raise RuntimeError("of the user's")


class Hangs(Hooks):
    async def publish(self, client: Client, message: Message) -> None:
        if client.client_id == "bad":
            await asyncio.Event().wait()


@pytest.mark.parametrize("hooks", [Fails(), Hangs()])
def test_a_hook_that_fails_or_hangs_harms_nobody_else(hooks: Hooks) -> None:
    async def act(node: Node) -> list[tuple[str, bytes]]:
        watcher = client_of(node, "watcher", ("#", 0))
        bad, good = client_of(node, "bad"), client_of(node, "good")
        bad.send(Publish("t", b"bad"))
        good.send(Publish("t", b"good"))
        await settle(node)
        assert node.sessions.get(b"bad") is not None
        return topics(watcher)

    assert play([hooks], act, timeout=0.05) == [("t", b"good")]


def test_a_client_that_leaves_while_a_hook_thinks() -> None:
    gate = asyncio.Event()

    class Thinks(Hooks):
        async def publish(self, client: Client, message: Message) -> None:
            await gate.wait()

    async def act(node: Node) -> None:
        device = client_of(node, "device")
        device.send(Publish("t", b""))
        await asyncio.sleep(0)
        device.close()
        gate.set()

    play([Thinks()], act)


def test_packets_that_wait_for_a_hook_are_handled_before_a_take_over() -> None:
    gate = asyncio.Event()

    class Thinks(Hooks):
        async def publish(self, client: Client, message: Message) -> None:
            if client.client_id == "device":
                await gate.wait()

    async def act(node: Node) -> list[tuple[str, bytes]]:
        watcher = client_of(node, "watcher", ("#", 0))
        first = client_of(node, "device", will_topic="will", will_payload=b"gone")
        first.send(Publish("t", b"1"), Publish("t", b"2"), Disconnect())
        second = Connected(node, "device")
        await pass_on(node)
        assert second.take() == []
        gate.set()
        await settle(node)
        second.connack()
        assert first.read().ended and not second.read().ended
        return topics(watcher)

    assert play([Thinks()], act) == [("t", b"1"), ("t", b"2")]


def test_the_last_connect_of_a_client_has_its_session_also_if_a_hook_decides_later_over_an_earlier_one() -> None:
    gate = asyncio.Event()

    class Thinks(Hooks):
        async def connect(self, client: Client) -> Any:
            if client.client_id == "device" and not self.later:
                self.later = True
                await gate.wait()

        later = False

    async def act(node: Node) -> None:
        watcher, first = Connected(node, "watcher"), Connected(node, "device", will_topic="will", will_payload=b"gone")
        second = Connected(node, "device")
        await pass_on(node)
        watcher.send(Subscribe(1, [("#", 0)]))
        second.connack()
        gate.set()
        await settle(node)
        assert first.read().ended and first.take() == [] and not second.read().ended
        assert topics(watcher) == []

    play([Thinks()], act)


def test_keep_alive_counts_from_connack_if_that_came_late() -> None:
    gate = asyncio.Event()

    class Thinks(Hooks):
        async def connect(self, client: Client) -> Any:
            await gate.wait()

    async def act(node: Node) -> None:
        device = Connected(node, "device", keep_alive=1)
        node.advance(8)
        gate.set()
        await settle(node)
        device.connack()
        node.advance(4)
        assert node.sessions.get(b"device") is not None
        node.advance(4)
        assert node.sessions.get(b"device") is None

    play([Thinks()], act)


def test_the_first_that_refuses_has_decided() -> None:
    asked: list[str] = []

    def hook(name: str, answer: object) -> Hooks:
        class One(Hooks):
            def connect(self, client: Client) -> Any:
                asked.append(name)
                return answer

        return One()

    chain = HookChain([hook("a", None), hook("b", False), hook("c", True)])
    client = Client("c", None, "")
    assert chain.filter(client, ("connect", lambda client: (client,))) is not client
    assert asked == ["a", "b"]


def test_load() -> None:
    assert isinstance(load(["tests.unit.broker.test_hooks:Stamps"])[0], Stamps)
    for wrong in (
        "no_such_module:x",
        "flockmq.broker.hooks.api:nothing",
        "flockmq.broker.hooks.api:Client",
        "flockmq.broker.hooks.api",
        "json:dumps",
    ):
        with pytest.raises(UsageError):
            load([wrong])


class TakesItsTime(Hooks):
    """Lets everything pass, later."""

    async def publish(self, client: Client, message: Message) -> None:
        await asyncio.sleep(0)


def test_a_client_that_waits_for_hooks_keeps_to_its_rate_too() -> None:
    async def act(node: Node) -> int:
        node.listener.set_limits(client_messages=10)
        node.reactor.apply_rate_limits()
        watcher, device = client_of(node, "watcher", ("t", 0)), client_of(node, "device")
        device.send(*[Publish("t", b"x")] * 100)
        await settle(node)
        return len(topics(watcher))

    assert play([TakesItsTime()], act) == 10


@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_that_waits_for_hooks_is_held_back_by_the_store_too(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flockmq.broker.core.data_plane.MAX_UNCOMMITTED_BYTES", 1000)

    async def act(node: Node) -> int:
        node.broker.configure(node.broker.config)
        device = client_of(node, "device")
        node.auto = False
        numbers = range(1, 101)
        device.send(*[Publish(f"t/{n}", bytes(100), qos, retain=True, packet_id=n * qos) for n in numbers])
        await settle(node)
        waiting = node.router.retained.count
        node.auto = True
        for _ in range(100):
            node.confirm()
            await settle(node)
        assert len(device.take()) == 100 * qos
        assert node.router.retained.count == 100
        return waiting

    assert play([TakesItsTime()], act) < 20


class MakesNoMessage(Hooks):
    """Returns what is no message."""

    def publish(self, client: Client, message: Message) -> Message:
        return message._replace(payload=None) if client.client_id == "device" else message  # type: ignore[arg-type]


class MakesNoMessageLater(Hooks):
    """The same, async."""

    async def publish(self, client: Client, message: Message) -> Message:
        return message._replace(topic=None) if client.client_id == "device" else message  # type: ignore[arg-type]


@pytest.mark.parametrize("hooks", [MakesNoMessage(), MakesNoMessageLater()])
def test_a_message_of_wrong_types_is_dropped_and_the_client_goes_on(hooks: Hooks) -> None:
    async def act(node: Node) -> list[Any]:
        device = client_of(node, "device")
        device.send(Publish("t", b"x", qos=1, packet_id=1), Publish("t", b"x", qos=1, packet_id=2))
        await settle(node)
        return device.take()

    assert play([hooks], act) == [Puback(packet_id=1), Puback(packet_id=2)]


class SaysZero(Hooks):
    """Answers with a value that is false, but not False."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def authorize(self, client: Client, action: str, topic: str) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [0, "", "no", 1])
def test_an_answer_of_a_wrong_type_refuses(answer: Any) -> None:
    def act(node: Node) -> tuple[Any, Any]:
        with_will = Connected(node, "will", will_topic="t", will_payload=b"x")
        client = client_of(node, "c")
        client.send(Subscribe(packet_id=1, topic_filters=[("a", 1)]))
        return with_will.connack().reason_code, client.take_one(Suback).reason_codes

    code, codes = play([SaysZero(answer)], act)
    assert code == 5
    assert list(codes) == [0x80]


class Listens(Hooks):
    """Notes by which listener a client came."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def connect(self, client: Client) -> None:
        self.heard.append(client.listener)

    def publish(self, client: Client, message: Message) -> None:
        self.heard.append(client.listener)


def test_hooks_know_the_listener() -> None:
    hooks = Listens()

    def act(node: Node) -> None:
        node.listener = Listener("public")
        node.broker.quotas["public"] = node.broker.quotas["default"]
        connection, ours = socket.socketpair()
        node.reactor.adopt(connection, Endpoint(node.listener))
        ours.send(encode(Connect(client_id="c", keep_alive=0), 4) + encode(Publish("t", b"x"), 4))
        node.run()

    play([hooks], act)
    assert hooks.heard == ["public", "public"]


class Waits(Hooks):
    """Lets clients in when the test asks for it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def connect(self, client: Client) -> None:
        await self.go_on.wait()


def test_a_client_that_is_banned_while_a_hook_thinks_does_not_come_in() -> None:
    hooks = Waits()

    async def act(node: Node) -> int:
        client = Connected(node, "device")
        await asyncio.sleep(0)
        ban = Ban("client_id", "device", "", 0.0, None, "test")
        HiddenMessages(node.broker.data_plane, "bans").put(ban.key, json.dumps(ban._asdict()).encode())
        node.broker.bans.refresh()
        hooks.go_on.set()
        await settle(node)
        return client.connack().reason_code

    assert play([hooks], act) == 5


class Named:
    """Lets everybody in by the user name shown."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED, Identity(credentials.username))


def test_clients_that_wait_for_hooks_at_once_are_no_more_than_their_user_may_have() -> None:
    hooks = Waits()

    async def act(node: Node) -> list[int]:
        node.broker.quotas["default"] = replace(node.broker.quotas["default"], max_connections_per_user=2)
        clients = [Connected(node, f"device-{n}", username="ada") for n in range(4)]
        await asyncio.sleep(0)
        hooks.go_on.set()
        await settle(node)
        return sorted(client.connack().reason_code for client in clients)

    assert play([hooks], act, authenticator=Named()) == [
        0,
        0,
        3,
        3,
    ]


class CountsDeliveries(Hooks):
    """Notes what is about to be sent."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def deliver(self, client_id: str, message: Message) -> None:
        self.heard.append(message.topic)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_shown_to_hooks_once(qos: int) -> None:
    hooks = CountsDeliveries()

    def act(node: Node) -> None:
        client_of(node, "device").send(Publish("t", b"x", qos=1, retain=True, packet_id=1))
        client_of(node, "reader", ("t", qos))

    play([hooks], act)
    assert hooks.heard == ["t"]
