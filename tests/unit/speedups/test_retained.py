"""Retained messages against the plain model, and searches in a tree that changes while they are under way."""

import gc
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flockmq._speedups.codec.packets import Puback, Publish, Pubrel, Suback, Subscribe, Unsuback, Unsubscribe
from flockmq._speedups.routing.retained import RetainedTree
from flockmq._speedups.session.tenant import Tenants
from tests.harness.inprocess import Client, Node
from tests.model.topics import matches, tree_bytes
from tests.unit.speedups.test_subscriptions import TENANTS, filters, topics

MESSAGE = 40  # bytes of a message besides topic name and payload


@settings(max_examples=1000)
@given(st.dictionaries(topics, st.binary(min_size=1, max_size=4), max_size=15), filters)
def test_what_matches_is_what_the_model_says(kept: dict[str, bytes], name: str) -> None:
    tree = RetainedTree()
    for topic, payload in kept.items():
        tree.set(topic.encode(), payload, 1)
    found = list(tree.matching(name.encode()))
    assert sorted(found) == sorted((topic.encode(), value, 1) for topic, value in kept.items() if matches(name, topic))
    assert (tree.search(name.encode()) is not None) >= bool(found)


def retained_bytes(kept: dict[str, bytes]) -> int:
    """The bytes that the messages count, with the nodes that they need."""
    return tree_bytes(kept) + sum(MESSAGE + len(topic.encode()) + len(payload) for topic, payload in kept.items())


class RetainedMachine(RuleBasedStateMachine):
    """Messages come, change and go between the steps of searches."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RetainedTree()
        self.kept: dict[str, bytes] = {}
        self.count = 0
        # Each search: its generator, its filter, messages from its begin on, names that changed, names that it found.
        self.searches: list[tuple[Any, str, dict[str, bytes], set[str], list[str]]] = []

    def changed(self, topic: str) -> None:
        for search in self.searches:
            search[3].add(topic)

    @rule(topic=topics)
    def put(self, topic: str) -> None:
        self.count += 1
        self.kept[topic] = b"%d" % self.count
        self.tree.set(topic.encode(), self.kept[topic], 1)
        self.changed(topic)

    @rule(data=st.data())
    @precondition(lambda self: self.kept)
    def remove(self, data: Any) -> None:
        topic = data.draw(st.sampled_from(sorted(self.kept)))
        del self.kept[topic]
        self.tree.set(topic.encode(), b"")
        self.changed(topic)

    @rule(topic=topics)
    def remove_what_may_not_be(self, topic: str) -> None:
        if self.kept.pop(topic, None) is not None:
            self.changed(topic)
        self.tree.set(topic.encode(), b"")

    @rule()
    def remove_all(self) -> None:
        for topic in self.kept:
            self.tree.set(topic.encode(), b"")
            self.changed(topic)
        self.kept.clear()

    @rule(name=filters)
    def search(self, name: str) -> None:
        there = {topic: value for topic, value in self.kept.items() if matches(name, topic)}
        self.searches.append((self.tree.matching(name.encode()), name, there, set(), []))

    @rule(data=st.data(), steps=st.integers(1, 3))
    @precondition(lambda self: self.searches)
    def go_on(self, data: Any, steps: int) -> None:
        index = data.draw(st.integers(0, len(self.searches) - 1))
        generator, name, there, changed, found = self.searches[index]
        for _ in range(steps):
            item = next(generator, None)
            if item is None:
                steady = there.keys() - changed
                assert sorted(topic for topic in found if topic in steady) == sorted(steady)
                del self.searches[index]
                return
            topic = item[0].decode()
            assert matches(name, topic)
            assert item[1] == self.kept[topic], "not the current value"
            assert topic not in found or topic in changed
            found.append(topic)

    @rule(data=st.data())
    @precondition(lambda self: self.searches)
    def give_up(self, data: Any) -> None:
        del self.searches[data.draw(st.integers(0, len(self.searches) - 1))]

    @invariant()
    def it_counts(self) -> None:
        assert self.tree.count == len(self.kept)
        size = retained_bytes(self.kept)
        assert self.tree.size >= size
        assert self.tree.size == size or self.searches, "only a node where a search stands is more"

    def teardown(self) -> None:
        self.remove_all()
        assert list(self.tree.matching(b"#")) == []
        self.searches.clear()
        assert self.tree.hidden() == [], "a node was left behind"
        assert self.tree.size == 0


class TestRetained(RetainedMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=150, stateful_step_count=50)


@pytest.mark.parametrize("window", [1, 5, 100])
def test_a_subscriber_gets_all_that_match_once_whatever_changes_meanwhile(window: int) -> None:
    rng = random.Random(window)
    node = Node(max_inflight=window)
    values: dict[str, bytes] = {}
    publisher = Client(node, "publisher")

    def put(topic: str, payload: bytes) -> None:
        publisher.send(Publish(topic, payload, qos=1, packet_id=1, retain=True))
        values[topic] = payload
        if not payload:
            del values[topic]

    for number in range(300):
        put(f"{rng.choice('abc')}/{number % 7}/{number}", b"old")
    subscriber = Client(node, "subscriber", clean_start=False)
    subscriber.connack()
    matching = [topic for topic in values if matches("a/+/#", topic)]
    subscriber.send(Subscribe(packet_id=1, topic_filters=[("a/+/#", 1)]))
    retained: list[str] = []
    changed: set[str] = set()
    first = True
    while packets := subscriber.take():
        for packet in packets:
            if isinstance(packet, Suback):
                assert first
                first = False
                continue
            assert isinstance(packet, Publish)
            if packet.retain:
                assert packet.payload == b"old" or packet.topic_name in changed
                retained.append(packet.topic_name)
            subscriber.write(Puback(packet_id=packet.packet_id))
            topic = rng.choice(matching)
            if topic in values and rng.random() < 0.3:
                changed.add(topic)
                put(topic, rng.choice((b"live", b"")))
        node.run()
    steady = [topic for topic in matching if topic not in changed]
    assert [retained.count(topic) for topic in steady] == [1] * len(steady)
    assert len(retained) == len(set(retained))
    assert set(retained) <= set(matching)


def test_retained_messages_go_out_at_the_lower_qos_with_retain_after_suback() -> None:
    node = Node()
    publisher = Client(node, "publisher")
    for qos in range(3):
        publisher.send(Publish(f"t/{qos}", b"x", qos=qos, packet_id=qos, retain=True))
    publisher.send(Pubrel(packet_id=2))
    for granted in range(3):
        client = Client(node, f"client {granted}")
        client.connack()
        client.send(Subscribe(packet_id=1, topic_filters=[("t/+", granted)]))
        suback, *messages = client.take()
        assert isinstance(suback, Suback)
        assert sorted((m.topic_name, m.qos, m.retain) for m in messages if isinstance(m, Publish)) == [
            (f"t/{qos}", min(qos, granted), True) for qos in range(3)
        ]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
def test_no_retained_message_follows_unsuback(clean: bool) -> None:
    """[MQTT-3.10.4-2] [5: MQTT-3.10.4-2]: its search went on for a client that reads slowly."""
    node = Node()
    publisher = Client(node, "publisher")
    for number in range(300):
        publisher.send(Publish(f"r/{number}", b"x" * 10_000, 1, retain=True, packet_id=1))
    client = Client(node, "slow", clean_start=clean)
    client.connack()
    client.write(Subscribe(1, [("r/#", 0)]))
    node.run()  # as much as its socket holds
    client.write(Unsubscribe(2, ["r/#"]))
    node.run()
    packets = client.take()
    kinds = [type(packet) for packet in packets]
    assert kinds[0] is Suback
    assert Publish in kinds
    end = kinds.index(Unsuback)
    assert Publish not in kinds[end:]


def test_nothing_begins_that_unsubscribe_has_ended_before_suback() -> None:
    node = Node(auto=False)
    publisher = Client(node, "publisher")
    publisher.send(Publish("r", b"x", 0, retain=True))
    client = Client(node, "hasty", clean_start=False)
    node.confirm()
    client.connack()
    client.send(Subscribe(1, [("r", 0)]), Unsubscribe(2, ["r"]))
    node.confirm()
    assert [type(packet) for packet in client.take()] == [Suback, Unsuback]


def notes_of(tree: RetainedTree) -> int:
    (notes,) = (each for each in gc.get_referents(tree) if isinstance(each, list))
    return len(notes)


def test_a_message_that_is_renewed_leaves_nothing_behind() -> None:
    """Each one left a note until its time: of messages that expire in years the node ran out of memory."""
    tree = RetainedTree()
    for number in range(20_000):
        tree.set(b"renewed", b"x", expires=1_000_000 + number)
    assert notes_of(tree) == 1
    for number in range(20_000):
        tree.set(b"sooner", b"x", expires=1_000_000 - number)
        tree.set(b"cleared", b"x", expires=1_000_000 + number)
        tree.set(b"cleared", b"")
    assert notes_of(tree) < 2000
    assert len(list(tree.matching(b"#"))) == 2


def test_a_renewed_message_expires_at_its_own_time() -> None:
    node = Node()
    publisher = Client(node, "publisher", level=5)
    publisher.connack()
    for seconds in (5, 100, 10):
        publisher.send(Publish("r", b"%d" % seconds, retain=True, properties={"message_expiry_interval": seconds}))
    node.advance(6 * 4)
    assert [payload for _, payload, _ in node.router.retained.matching(b"r")] == [b"10"]
    node.advance(6 * 4)
    assert list(node.router.retained.matching(b"r")) == []
    assert node.router.retained.count == 0


def test_a_filter_that_stands_twice_in_a_packet_gets_the_messages_twice() -> None:
    """As with two packets [MQTT-3.8.4-3] [MQTT-3.8.4-5]."""
    node = Node()
    Client(node, "publisher").send(Publish("r", b"x", retain=True))
    client = Client(node, "twice")
    client.connack()
    client.send(Subscribe(1, [("r", 0), ("r", 0)]))
    assert [type(packet) for packet in client.take()] == [Suback, Publish, Publish]


@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_of_each_tenant(seed: int) -> None:
    """A tenant's messages count for it alone, also while others come and go; and nothing is left at the end."""
    rng = random.Random(seed)
    tree, tenants = RetainedTree(), Tenants()
    tree.set_tenants(tenants)
    kept: dict[str, bytes] = {}
    for step in range(3000):
        topic = rng.choice(["", *TENANTS]) + "/".join(rng.choice("abc") for _ in range(rng.randrange(1, 6)))
        payload = bytes(rng.randrange(3 if step < 1500 else 1))
        tree.set(topic.encode(), payload)
        kept[topic] = payload
        if not payload:
            del kept[topic]
        assert tree.size == retained_bytes(kept)
        for prefix in TENANTS:
            own = {topic: payload for topic, payload in kept.items() if topic.startswith(prefix)}
            size = retained_bytes(own) - (tree_bytes(["$tenant"]) if own else 0)
            assert tenants.at(prefix.encode()).retained_bytes == size
    for topic in kept:
        tree.set(topic.encode(), b"")
    assert tree.size == 0 == sum(tenant.retained_bytes for tenant in tenants)


def test_a_search_that_ends_gives_back_the_node_of_its_tenant() -> None:
    tree, tenants = RetainedTree(), Tenants()
    tree.set_tenants(tenants)
    tree.set(b"$tenant/x/a/b", b"1")
    search = tree.matching(b"$tenant/x/a/b")
    next(search)
    tree.set(b"$tenant/x/a/b", b"")
    assert tenants.at(b"$tenant/x/").retained_bytes == tree_bytes(["$tenant/x/a/b"]) - tree_bytes(["$tenant"])
    search.close()
    del search
    assert tree.size == 0 == tenants.at(b"$tenant/x/").retained_bytes


def test_the_limit_holds_for_the_levels_of_topics() -> None:
    """A topic of 200 levels takes 16 KiB: only as many are kept as the limit has room for."""
    node = Node(max_retained_bytes=1_000_000)
    client = Client(node, "publisher")
    for number in range(200):
        client.send(Publish(f"{number}" + "/" * 199, b"x", retain=True))
    client.send(Publish("0" + "/" * 199, b"y", retain=True))
    each = 200 * 96 + MESSAGE + 202
    assert node.router.retained.count == 1_000_000 // each
    assert node.router.retained.size <= 1_000_000
    assert next(node.router.retained.matching(b"0/#"))[1] == b"y", "a value is replaced where there is no more room"
    client.send(Publish("1" + "/" * 199, b"", retain=True))
    client.send(Publish("new" + "/" * 199, b"x", retain=True))
    assert list(node.router.retained.matching(b"new/#"))
