"""A full queue first drops what has expired, wherever it stands [5: MQTT-3.3.2-5]."""

from collections.abc import Iterable
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from flockmq._speedups.session import session_view
from flockmq.broker.config.declared_group import declared
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.unit.speedups.session_machine import state_of

FOREVER = {"session_expiry_interval": 0xFFFFFFFF}
SECOND = 4  # ticks
MAX_QUEUED = 500  # messages in a queue


def subscribed(node: Node, topic_filter: str = "t", **connect: Any) -> Client:
    client = Client(node, "subscriber", level=5, clean_start=False, properties=FOREVER, **connect)
    if not client.connack().session_present:
        client.send(Subscribe(packet_id=1, topic_filters=[(topic_filter, 2)]))
        client.take()
    return client


class Publisher:
    """Publishes with QoS 1."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = Client(node, "publisher", level=5)
        self.client.connack()

    def publish(self, payload: bytes, expiry: int = 0) -> None:
        properties = {"message_expiry_interval": expiry} if expiry else {}
        self.client.send(Publish("t", payload, qos=1, packet_id=1, properties=properties))
        assert isinstance(self.client.take_one(Puback), Puback)


def queued(node: Node) -> list[bytes]:
    session = node.sessions.get(b"subscriber")
    assert session is not None
    return [entry[-1] for entry in session_view.entries(session)]


def mixed(publisher: Publisher, texts: Iterable[str]) -> None:
    """Messages that expire after a second are in small letters."""
    for text in texts:
        publisher.publish(text.encode(), 1 if text.islower() else 0)


@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
@pytest.mark.parametrize(
    ("before", "after"), [("Ko", "KN"), ("oK", "KN"), ("oo", "N"), ("KoL", "KLN"), ("KoLo", "KLN")]
)
def test_a_session(policy: str, before: str, after: str) -> None:
    node = Node(queue_policy=policy, max_queued_messages=len(before))
    subscribed(node).close()
    publisher = Publisher(node)
    mixed(publisher, before)
    node.advance(3 * SECOND)
    mixed(publisher, "N")
    assert b"".join(queued(node)).decode() == after
    assert node.counted("expired") == before.count("o")
    assert node.counted("dropped_queue_full") == 0
    node.turn.seal()
    assert state_of(Node(KeepingStore(node.store.after(len(node.store.told))), **node.limits)) == state_of(node)


def test_bytes_likewise() -> None:
    node = Node(max_queued_bytes=300)
    subscribed(node).close()
    publisher = Publisher(node)
    publisher.publish(b"K" * 100)
    publisher.publish(b"o" * 150, 1)
    node.advance(3 * SECOND)
    publisher.publish(b"N" * 150)
    assert [payload[:1] for payload in queued(node)] == [b"K", b"N"]


def test_a_message_that_may_have_been_sent_stays() -> None:
    node = Node(max_queued_messages=2)
    client = subscribed(node)
    publisher = Publisher(node)
    mixed(publisher, "o")
    assert client.take_one(Publish).payload == b"o"
    client.close()
    mixed(publisher, "K")
    node.advance(3 * SECOND)
    mixed(publisher, "N")
    assert queued(node) == [b"o", b"K"]


def expire_many(publisher: Publisher, count: int) -> None:
    """Let so many messages expire again and again, until more have than there are packet identifiers."""
    properties = {"message_expiry_interval": 1}
    for _ in range(70_000 // count):
        publisher.client.send(*(Publish("t", b"o", qos=1, packet_id=1, properties=properties) for _ in range(count)))
        publisher.client.take()
        publisher.node.turn.advance(2 * SECOND)
        publisher.node.store.told.clear()  # no restart follows
        publisher.node.store.done = 0


@pytest.mark.parametrize(("connected", "is_sent"), [(False, False), (False, True), (True, True)])
def test_one_that_stays_at_the_head_costs_no_memory(connected: bool, is_sent: bool) -> None:
    """Behind it messages expire one after the other, more than there are packet identifiers."""
    node = Node(max_queued_messages=MAX_QUEUED, max_inflight=1)
    client = subscribed(node)
    publisher = Publisher(node)
    if not is_sent:
        client.close()
    mixed(publisher, "K")
    if is_sent:
        held = client.take_one(Publish)
    mixed(publisher, "L")
    if is_sent and not connected:
        client.close()
    expire_many(publisher, MAX_QUEUED - 2)
    session = node.sessions.get(b"subscriber")
    assert session is not None
    assert session_view.capacity(session) <= 131_072
    assert queued(node) == [b"K", b"L"] + [b"o"] * (MAX_QUEUED - 2)
    mixed(publisher, "N")
    assert queued(node) == [b"K", b"L", b"N"]
    if not connected:
        client = subscribed(node)
        held = client.take_one(Publish)
    got = []
    for _ in range(3):
        got.append(held.payload)
        client.send(Puback(held.packet_id))
        if len(got) < 3:
            held = client.take_one(Publish)
    assert got == [b"K", b"L", b"N"]


def test_numbers_are_given_again_only_when_the_store_has_that() -> None:
    """The gaps of dropped messages are closed: a message with a number that is given again waits for its block."""
    node = Node(max_queued_messages=MAX_QUEUED, max_inflight=1)
    client = subscribed(node)
    publisher = Publisher(node)
    mixed(publisher, "K")
    held = client.take_one(Publish)
    mixed(publisher, "L")
    expire_many(publisher, MAX_QUEUED - 2)
    node.auto = False
    publisher.client.send(Publish("t", b"N", qos=1, packet_id=1))
    client.send(Puback(held.packet_id))
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [b"L"]
    client.send(Puback(held.packet_id + 1))
    assert client.take() == []  # the store has not confirmed it
    node.confirm()
    assert client.take_one(Publish).payload == b"N"


@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
@pytest.mark.parametrize(("before", "after"), [("Ko", "KN"), ("oK", "KN"), ("oo", "N"), ("KoLo", "KLN")])
@pytest.mark.parametrize("strategy", ["rotation", "topic"])
def test_a_group(policy: str, before: str, after: str, strategy: str) -> None:
    options = {"max_queued_messages": len(before), "when_full": policy, "strategy": strategy}
    groups = (declared("$share/g/t", options),)
    node = Node(shared={"groups": groups})
    publisher = Publisher(node)
    mixed(publisher, before)
    node.advance(3 * SECOND)
    mixed(publisher, "N")
    assert waiting(node) == after
    assert node.counted("expired") == before.count("o")
    assert node.counted("dropped_queue_full") == 0
    node.turn.seal()
    again = Node(KeepingStore(node.store.after(len(node.store.told))), shared={"groups": groups})
    assert waiting(again) == after
    worker = Client(again, "worker")
    worker.connack()
    worker.write(Subscribe(1, [("$share/g/t", 1)]))
    again.run()
    assert "".join(packet.payload.decode() for packet in worker.take() if isinstance(packet, Publish)) == after


def waiting(node: Node) -> str:
    group = node.router.filters.groups[b"$share/g/t"]
    return b"".join(payload for _, _, payload in group.messages()).decode()
