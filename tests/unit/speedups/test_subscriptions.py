"""The filter tree against the plain model: the same receivers with the same QoS, right after any change."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flockmq._speedups.codec.topics import filter_weight
from flockmq._speedups.routing.subscriptions import SubscriptionTree
from flockmq._speedups.session.journal import Journal
from flockmq._speedups.session.session import Session
from flockmq._speedups.session.turn import Turn
from tests.model.topics import matches, tree_bytes

TENANTS = ("$tenant/x/", "$tenant/y/", "$tenant//")
ENTRY = 32  # bytes of a subscription besides its node
LEVELS = ["a", "b", "", "c", "$s", "long" * 20]
topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=4),
    st.sampled_from([[], [], ["#"]]),
).filter(bool) | st.just("#")


def new_session(number: int) -> Session:
    return Session(Turn(Journal()), number, b"client %d" % number, persistent=False)


def receivers(tree: SubscriptionTree, topic: str) -> dict[int, int]:
    found = [(session.session_id, qos) for session, qos in tree.receivers(topic.encode())]
    assert len({number for number, _ in found}) == len(found), "a session is in the plan twice"
    return dict(found)


def expected(subscriptions: dict[tuple[int, str], int], topic: str) -> dict[int, int]:
    wanted: dict[int, int] = {}
    for (number, name), qos in subscriptions.items():
        if matches(name, topic):
            wanted[number] = max(qos, wanted.get(number, 0))
    return wanted


class FilterMachine(RuleBasedStateMachine):
    """Subscriptions change, and plans that were kept from before are asked for again."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = SubscriptionTree()
        self.sessions = [new_session(number) for number in range(4)]
        self.subscriptions: dict[tuple[int, str], int] = {}
        self.asked: list[str] = []

    @rule(number=st.integers(0, 3), name=filters, qos=st.integers(0, 2))
    def subscribe(self, number: int, name: str, qos: int) -> None:
        new = self.tree.subscribe(self.sessions[number], name.encode(), qos)
        assert new == ((number, name) not in self.subscriptions)
        self.subscriptions[number, name] = qos

    @rule(data=st.data())
    @precondition(lambda self: self.subscriptions)
    def unsubscribe(self, data: Any) -> None:
        number, name = data.draw(st.sampled_from(sorted(self.subscriptions)))
        assert self.tree.unsubscribe(self.sessions[number], name.encode()) is True
        del self.subscriptions[number, name]

    @rule(number=st.integers(0, 3), name=filters)
    def unsubscribe_what_may_not_be(self, number: int, name: str) -> None:
        known = self.subscriptions.pop((number, name), None) is not None
        assert self.tree.unsubscribe(self.sessions[number], name.encode()) is known

    @rule(number=st.integers(0, 3))
    def unsubscribe_all(self, number: int) -> None:
        self.tree.unsubscribe_all(self.sessions[number])
        self.subscriptions = {key: qos for key, qos in self.subscriptions.items() if key[0] != number}

    @rule(topic=topics)
    def ask(self, topic: str) -> None:
        self.asked.append(topic)

    @invariant()
    def plans_are_right(self) -> None:
        for topic in self.asked:
            assert receivers(self.tree, topic) == expected(self.subscriptions, topic), topic

    @invariant()
    def both_ends_agree(self) -> None:
        assert self.tree.count == len(self.subscriptions)
        assert self.tree.size == tree_bytes({name for _, name in self.subscriptions}) + ENTRY * len(self.subscriptions)
        names = [name for _, name in self.subscriptions]
        assert sorted(self.tree.filters()) == sorted((name.encode(), names.count(name)) for name in set(names))
        for number, session in enumerate(self.sessions):
            mine = {name.encode(): qos for (n, name), qos in self.subscriptions.items() if n == number}
            assert dict(self.tree.subscriptions_of(session)) == mine
            assert session.subscriptions_held == len(mine)
            assert session.subscription_weight == sum(map(filter_weight, mine))

    def teardown(self) -> None:
        for session in self.sessions:
            self.tree.unsubscribe_all(session)
        assert self.tree.filters() == []
        assert self.tree.count == 0 == self.tree.size


class TestFilters(FilterMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=150, stateful_step_count=40)


@settings(max_examples=1000)
@given(st.lists(st.tuples(st.integers(0, 3), filters, st.integers(0, 2)), max_size=12), topics)
def test_a_match_without_any_plan_is_that_of_the_model(made: list[tuple[int, str, int]], topic: str) -> None:
    tree = SubscriptionTree()
    sessions = [new_session(number) for number in range(4)]
    subscriptions: dict[tuple[int, str], int] = {}
    for number, name, qos in made:
        tree.subscribe(sessions[number], name.encode(), qos)
        subscriptions[number, name] = qos
    assert receivers(tree, topic) == expected(subscriptions, topic)
    for session in sessions:
        tree.unsubscribe_all(session)


@pytest.mark.parametrize("seed", range(3))
def test_many_children_come_and_go(seed: int) -> None:
    """A node with many children has a hash table over them, which grows and from which things are removed."""
    rng = random.Random(seed)
    tree = SubscriptionTree()
    sessions = [new_session(number) for number in range(3)]
    subscriptions: dict[tuple[int, str], int] = {}
    for step in range(6000):
        number = rng.randrange(3)
        name = rng.choice(("x/%d", "x/%d/y", "%d", "x/%d/+", "%d/#")) % rng.randrange(400)
        if rng.random() < (0.7 if step < 4000 else 0.2):
            subscriptions[number, name] = qos = rng.randrange(3)
            tree.subscribe(sessions[number], name.encode(), qos)
        else:
            known = subscriptions.pop((number, name), None) is not None
            assert tree.unsubscribe(sessions[number], name.encode()) is known
        if step % 20 == 0:
            topic = rng.choice(("x/%d", "x/%d/y", "%d", "%d/z")) % rng.randrange(400)
            assert receivers(tree, topic) == expected(subscriptions, topic)
    for session in sessions:
        tree.unsubscribe_all(session)
    assert tree.filters() == []


def test_more_topics_than_slots_for_plans() -> None:
    tree = SubscriptionTree()
    session = new_session(1)
    tree.subscribe(session, b"t/+", 1)
    for number in range(20_000):
        assert receivers(tree, f"t/{number}") == {1: 1}
    tree.subscribe(session, b"t/7", 2)
    assert receivers(tree, "t/7") == {1: 2}
    tree.unsubscribe(session, b"t/+")
    for number in range(20_000):
        assert receivers(tree, f"t/{number}") == ({1: 2} if number == 7 else {})
    tree.unsubscribe_all(session)


def test_plans_larger_than_what_is_kept() -> None:
    tree = SubscriptionTree()
    sessions = [new_session(number) for number in range(70_000)]
    for session in sessions:
        tree.subscribe(session, b"all", session.session_id % 3)
    for _ in range(2):
        assert receivers(tree, "all") == {number: number % 3 for number in range(70_000)}
    tree.unsubscribe(sessions[5], b"all")
    assert 5 not in receivers(tree, "all")
    for session in sessions:
        tree.unsubscribe_all(session)
    assert tree.filters() == []


def test_names_as_long_and_deep_as_can_be() -> None:
    tree = SubscriptionTree()
    session = new_session(1)
    deep = "/".join("x" * 32768)
    for name in (deep, "+/" * 32767 + "+", deep[:-1] + "#", "y" * 65535):
        tree.subscribe(session, name.encode(), 1)
    assert receivers(tree, deep) == {1: 1}
    assert receivers(tree, deep[:-2]) == {1: 1}
    assert receivers(tree, "y" * 65535) == {1: 1}
    assert receivers(tree, "y" * 65534) == {}
    tree.unsubscribe_all(session)
    assert tree.filters() == []


def test_the_weight_of_a_filter() -> None:
    """As many as a session may have take about as much memory, whatever their filters are."""
    assert [filter_weight(b"/" * (levels - 1) + b"a") for levels in (1, 8, 9, 16, 17, 200)] == [1, 1, 2, 2, 3, 25]
    assert [filter_weight(b"a" * size) for size in (1, 1023, 1024, 65535)] == [1, 1, 2, 64]
    tree = SubscriptionTree()
    session = new_session(1)
    for name in (b"a", b"/" * 8, b"$share/g/" + b"/" * 8):
        tree.subscribe(session, name, 1)
        tree.subscribe(session, name, 2)
    assert session.subscription_weight == 1 + 2 + 2
    tree.unsubscribe(session, b"/" * 8)
    assert session.subscription_weight == 3
    tree.unsubscribe_all(session)
    assert session.subscription_weight == 0 == tree.size


def test_the_bytes_of_one_more_subscription() -> None:
    tree = SubscriptionTree()
    session, other = new_session(1), new_session(2)
    for name in (b"a/b", b"a/c", b"a/b/c", b"$share/g/a/b", b"$share/g/x", b"$share/h/x", b"+/#"):
        for subscriber in (session, other):
            before, wanted = tree.size, tree.bytes_of(name)
            tree.subscribe(subscriber, name, 1)
            shared = name.startswith(b"$share") and subscriber is other
            assert tree.size == before + wanted - ENTRY * shared, "the group has its entry"
    for subscriber in (session, other):
        tree.unsubscribe_all(subscriber)
    assert tree.size == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_of_each_tenant(seed: int) -> None:
    """Subscriptions of a tenant's sessions count for it alone, also while others come and go; and nothing is left."""
    rng = random.Random(seed)
    turn, tree = Turn(Journal()), SubscriptionTree()
    tree.set_tenants(turn.tenants)
    sessions = {
        prefix: [Session(turn, n, f"{prefix}{n}".encode(), persistent=False) for n in range(2)]
        for prefix in ("", *TENANTS)
    }
    held: set[tuple[str, int, str]] = set()
    for step in range(3000):
        prefix, number = rng.choice(list(sessions)), rng.randrange(2)
        session = sessions[prefix][number]
        name = prefix + "/".join(rng.choice("abc+") for _ in range(rng.randrange(1, 6)))
        if rng.random() < 0.001:
            tree.unsubscribe_all(session)
            held = {each for each in held if each[:2] != (prefix, number)}
        elif rng.random() < (0.7 if step < 1500 else 0.3):
            tree.subscribe(session, name.encode(), 1)
            held.add((prefix, number, name))
        else:
            tree.unsubscribe(session, name.encode())
            held.discard((prefix, number, name))
        assert tree.size == tree_bytes({name for _, _, name in held}) + ENTRY * len(held)
        for tenant in TENANTS:
            own = {each for each in held if each[0] == tenant}
            size = tree_bytes({name for _, _, name in own}) + ENTRY * len(own)
            found = turn.tenants.at(tenant.encode())
            assert found.subscription_bytes == size - (tree_bytes(["$tenant"]) if own else 0)
            assert found.subscriptions == len(own)
    for session in (each for some in sessions.values() for each in some):
        tree.unsubscribe_all(session)
    assert tree.size == 0 == sum(tenant.subscription_bytes for tenant in turn.tenants)


def test_a_filter_of_all_tenants_is_of_none() -> None:
    turn, tree = Turn(Journal()), SubscriptionTree()
    tree.set_tenants(turn.tenants)
    session = Session(turn, 1, b"all", persistent=False)
    for name in (b"$tenant/+/a", b"$tenant/#"):
        tree.subscribe(session, name, 1)
    tree.unsubscribe_all(session)
    assert list(turn.tenants) == []


def test_many_subscriptions_of_one_that_has_ended_leave_in_slices() -> None:
    """They match nothing from the first moment on, and a new session may have the same filters at once."""
    turn, tree = Turn(Journal()), SubscriptionTree()
    tree.set_tenants(turn.tenants)
    slices: list[Callable[[], object]] = []
    tree.set_later(slices.append)
    ended, stays, new = (Session(turn, number, b"$tenant/x/c", persistent=False) for number in (1, 2, 3))
    names = [f"$tenant/x/{number}/+/{number % 7}" for number in range(3000)]
    removed: list[tuple[bytes, int]] = []
    for name in names:
        tree.subscribe(ended, name.encode(), 1)
    for name in names[::3]:
        tree.subscribe(stays, name.encode(), 2)
    assert receivers(tree, "$tenant/x/0/a/0") == {1: 1, 2: 2}
    tree.unsubscribe_all(ended, removed.extend)
    assert (receivers(tree, "$tenant/x/0/a/0"), receivers(tree, "$tenant/x/1/a/1")) == ({2: 2}, {})
    assert tree.count == 1000 == turn.tenants.at(b"$tenant/x/").subscriptions
    assert len(tree.filters()) == 3000, "nothing was removed in the turn in which it ended"
    turns, left = 0, 3000
    while slices:
        slices.pop()()
        turns += 1
        assert left - ended.subscriptions_held <= 500
        left = ended.subscriptions_held
        tree.subscribe(new, names[-turns].encode(), 0)  # one that has just left
        tree.subscribe(new, names[turns].encode(), 0)  # and one that has not
        assert receivers(tree, f"$tenant/x/{turns}/a/{turns % 7}") == {3: 0} | ({2: 2} if turns % 3 == 0 else {})
    assert turns == 6
    assert sorted(removed) == sorted((name.encode(), 1) for name in names)
    assert tree.count == 1000 + 2 * turns == turn.tenants.at(b"$tenant/x/").subscriptions
    held = {*names[::3], *names[1 : turns + 1], *names[-turns:]}
    assert sorted(name for name, _ in tree.filters()) == sorted(name.encode() for name in held)
    assert tree.size == tree_bytes(held) + ENTRY * tree.count
    tree.unsubscribe_all(stays)
    tree.unsubscribe_all(new)
    while slices:
        slices.pop()()
    assert tree.size == 0 == tree.count == turn.tenants.at(b"$tenant/x/").subscription_bytes


def test_slices_of_filters_with_many_levels_are_smaller() -> None:
    tree, session = SubscriptionTree(), new_session(1)
    slices: list[Callable[[], object]] = []
    tree.set_later(slices.append)
    for number in range(600):
        tree.subscribe(session, b"%d" % number + b"/" * 199, 1)
    tree.unsubscribe_all(session)
    before = tree.size
    while slices:
        slices.pop()()
        assert before - tree.size < 2**21 + 200 * 96 + 200
        before = tree.size
    assert tree.size == 0


def test_subscribers_end_one_after_another_in_slices() -> None:
    """A failing function of one stops neither its own slices nor the next one's."""
    tree = SubscriptionTree()
    slices: list[Callable[[], object]] = []
    tree.set_later(slices.append)

    def fail(_: object) -> None:
        raise ValueError("the caller's")

    for number in range(2):
        session = new_session(number)
        for name in range(1200):
            tree.subscribe(session, b"%d" % name, 1)
        tree.unsubscribe_all(session, fail if number == 0 else None)
    del session
    failed = 0
    while slices:
        try:
            slices.pop()()
        except ValueError:
            failed += 1
        assert len(slices) <= 1
    assert failed == 3
    assert tree.filters() == []
