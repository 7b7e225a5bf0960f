"""Retained messages against the plain model, and searches in a tree that changes while they are under way."""

import gc
import random
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flockmq._speedups.codec.packets import Puback, Publish, Pubrel, Suback, Subscribe, Unsuback, Unsubscribe
from flockmq._speedups.routing.retained import RetainedTree
from flockmq._speedups.session.tenant import Tenants
from tests.harness.inprocess import Client, Node
from tests.model.topics import joined_tree_bytes, matches
from tests.unit.speedups.test_subscriptions import TENANTS, filters, topics

MESSAGE = 40  # bytes of a message besides topic name and payload
PLACE = 140  # bytes that a message counts for its tenant besides: a place in the tree and a branch


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
    """The bytes that the messages count, with the tree that they need."""
    return joined_tree_bytes(kept) + sum(message_bytes(topic, payload) for topic, payload in kept.items())


def message_bytes(topic: str, payload: bytes) -> int:
    return MESSAGE + len(topic.encode()) + len(payload)


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
        if step % 50 == 0:
            assert tree.size == retained_bytes(kept)
        for prefix in TENANTS:
            own = {topic: payload for topic, payload in kept.items() if topic.startswith(prefix)}
            size = sum(message_bytes(topic, payload) + PLACE for topic, payload in own.items())
            assert tenants.at(prefix.encode()).retained_bytes == size
    for topic in kept:
        tree.set(topic.encode(), b"")
    assert tree.size == 0 == sum(tenant.retained_bytes for tenant in tenants)


def test_a_search_that_ends_gives_back_its_branch() -> None:
    tree = RetainedTree()
    tree.set(b"a/b/1", b"x")
    tree.set(b"a/b/2", b"x")
    search = tree.matching(b"a/b/+")
    next(search)
    tree.set(b"a/b/1", b"")
    tree.set(b"a/b/2", b"")
    assert tree.size == joined_tree_bytes(["a/b/1", "a/b/2"]) - 2 * joined_tree_bytes(["a"]), "the branch is left"
    search.close()
    del search
    assert tree.size == 0


def test_the_limit_holds_for_the_branches_of_topics() -> None:
    """Each topic is a part of the next, so that each one needs a branch: only as many are kept as there is room for."""
    node = Node(max_retained_bytes=100_000)
    client = Client(node, "publisher")
    kept: dict[str, bytes] = {}
    for number in range(190):
        topic = "/".join(["level"] * (number + 1))
        client.send(Publish(topic, b"x", retain=True))
        if node.router.retained.count > number:
            kept[topic] = b"x"
    assert 100 < len(kept) < 190
    assert 97_000 < retained_bytes(kept) == node.router.retained.size <= 100_000
    client.send(Publish("level", b"y", retain=True))
    assert next(node.router.retained.matching(b"level/#"))[1] == b"y", "a value is replaced where there is no more room"
    client.send(Publish(list(kept)[-1], b"", retain=True))
    client.send(Publish("new", b"x", retain=True))
    assert list(node.router.retained.matching(b"new/#"))


def test_topics_of_the_most_levels() -> None:
    tree = RetainedTree()
    slashes = b"/" * 65535
    topics = [slashes, slashes[:-1] + b"a", slashes[:-1], slashes[:30_000], b"/"]
    for topic in topics:
        tree.set(topic, b"x")
    assert sorted(topic for topic, _, _ in tree.matching(b"#")) == sorted(topics)
    for topic in (slashes[:30_000], b"/", slashes, slashes[:-1]):
        tree.set(topic, b"")
    assert list(tree.matching(b"#")) == list(tree.matching(slashes[:-1] + b"a")) == [(slashes[:-1] + b"a", b"x", 0)]


def browsed(kept: dict[str, bytes], parent: str | None) -> dict[str, tuple[int, int]]:
    """Each level below the parent: bytes of its own message, or -1; the messages further below."""
    prefix = "" if parent is None else parent + "/"
    found: dict[str, tuple[int, int]] = {}
    for topic, payload in kept.items():
        if topic.startswith(prefix):
            level, *further = topic.removeprefix(prefix).split("/")
            own, below = found.get(level, (-1, 0))
            found[level] = (own, below + 1) if further else (len(payload), below)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_many_topics_come_and_go_while_searches_go_on(seed: int) -> None:
    """Tables grow and shrink, and holes are closed below searches that pause."""
    rng = random.Random(seed)
    tree = RetainedTree()
    kept: dict[str, bytes] = {}
    searches: list[tuple[Any, str, set[str], set[str], set[str]]] = []  # ... steady, changed, found
    sizes = (*(40, 3, 12)[seed % 3 :], 5)

    def name() -> str:
        return "/".join(f"{rng.randrange(size):x}" for size in sizes[: rng.randrange(1, len(sizes) + 1)])

    for step in range(20_000):
        topic = name()
        grows = step // 2000 % 2 == 0
        payload = b"%d" % step if rng.random() < (0.8 if grows else 0.1) else b""
        if not grows and kept and rng.random() < 0.5:
            topic = rng.choice(list(kept))
        if payload or topic in kept:
            for _, _, _, changed, _ in searches:
                changed.add(topic)
        tree.set(topic.encode(), payload, 1)
        kept[topic] = payload
        if not payload:
            del kept[topic]
        if rng.random() < 0.01:
            wanted = rng.choice(
                ["#", "+", "+/#", "+/+", "+/+/1/#", topic, f"{topic}/#", f"+/{topic.partition('/')[2]}/+"]
            )
            there = {topic for topic in kept if matches(wanted, topic)}
            searches.append((tree.matching(wanted.encode()), wanted, there, set(), set()))
        for search in rng.sample(searches, min(len(searches), 2)):
            generator, wanted, there, changed, found = search
            for topic_name, value, _ in islice(generator, rng.randrange(20)):
                topic = topic_name.decode()
                assert matches(wanted, topic)
                assert value == kept[topic]
                assert topic not in found or topic in changed
                found.add(topic)
            if rng.random() < 0.02:
                found.update(topic.decode() for topic, _, _ in generator)
                assert there - changed <= found
                searches.remove(search)
        if step % 500 == 0:
            assert {topic.decode(): value for topic, value, _ in tree.matching(b"#")} == kept
            assert tree.size >= retained_bytes(kept)
            parent = rng.choice([None, topic, topic.rpartition("/")[0] or None])
            expected = browsed(kept, parent)
            found_levels = levels_of(tree, parent, rng.randrange(1, 9)) if expected or parent in kept else {}
            assert found_levels == {level: (own, min(below, 7)) for level, (own, below) in expected.items()}
    searches.clear()
    gc.collect()
    assert tree.size == retained_bytes(kept)
    for topic in kept:
        tree.set(topic.encode(), b"")
    assert tree.size == 0


def levels_of(tree: RetainedTree, parent: str | None, limit: int) -> dict[str, tuple[int, int]]:
    """All levels below the parent, read a few at a time."""
    after: bytes | None = None
    found: dict[str, tuple[int, int]] = {}
    while part := tree.children(None if parent is None else parent.encode(), after, limit, 7):
        assert len(part) <= limit
        after = part[-1][0]
        found.update((level.decode(), (own, below)) for level, own, below in part)
    return found


def test_there_is_no_such_level() -> None:
    tree = RetainedTree()
    tree.set(b"a/b/c", b"x")
    for parent, after in (
        (b"b", None),
        (b"a/bc", None),
        (b"a/b/c/d", None),
        (b"a", b"c"),
        (b"a/b/c", b"c"),
        (None, b"b"),
    ):
        with pytest.raises(KeyError):
            tree.children(parent, after, 9, 9)
    assert tree.children(b"a/b/c", None, 9, 9) == tree.children(b"a", b"b", 9, 9) == []


class ExpiryMachine(RuleBasedStateMachine):
    """Messages that expire, those that replace them, and the sweep, against their times."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.expires: dict[str, int] = {}

    @rule(topic=topics, ticks=st.integers(0, 5))
    def put(self, topic: str, ticks: int) -> None:
        expires = self.node.turn.clock + ticks if ticks else 0
        self.node.router.retained.set(topic.encode(), b"x", expires=expires)
        self.expires[topic] = expires

    @rule(topic=topics)
    def remove(self, topic: str) -> None:
        self.node.router.retained.set(topic.encode(), b"")
        self.expires.pop(topic, None)

    @rule(ticks=st.integers(0, 3))
    def sweep(self, ticks: int) -> None:
        self.node.reactor.advance(ticks)
        gone = [topic for topic, expires in self.expires.items() if 0 < expires <= self.node.turn.clock]
        assert sorted(self.node.router.expire_retained()) == sorted(topic.encode() for topic in gone)
        for topic in gone:
            del self.expires[topic]

    @invariant()
    def all_others_are_there(self) -> None:
        assert {topic.decode() for topic, _, _ in self.node.router.retained.matching(b"#")} == {
            topic for topic in self.expires if topic[0] != "$"
        }


class TestExpiry(ExpiryMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=50, stateful_step_count=40)
