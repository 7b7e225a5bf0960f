"""The table of foreign sessions and routes, against the tree of topic filters that has the same subscriptions."""

import random
from itertools import product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flockmq._speedups.routing.foreign import SEGMENTS, ForeignTable
from flockmq._speedups.routing.subscriptions import SubscriptionTree
from flockmq._speedups.session.session import Session
from tests.unit.speedups.test_subscriptions import LEVELS, TENANTS, filters, new_session, topics

NODES = [0, 7, 65535]
CLIENTS = ["a", "", "$tenant/acme/a", "é" * 40, "long" * 200, "b"]
prefixes = st.sampled_from(["", "", "", *TENANTS])
own_topics = st.builds(str.__add__, prefixes, topics)
deep = st.sampled_from(["/".join("a" * 64), "/".join("a" * 63 + "#")])
own_filters = st.sampled_from(["a", "a/+", "#", "$tenant/acme/+"]) | st.builds(str.__add__, prefixes, filters) | deep


class TableMachine(RuleBasedStateMachine):
    """Sessions, filters and routes come and go; nodes end, and their routes leave in steps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ForeignTable()
        self.tree = SubscriptionTree()
        self.incarnations: dict[str, int] = {}
        self.held: dict[str, dict[str, int]] = {}
        self.routes: dict[int, dict[str, int]] = {node: {} for node in NODES}
        self.ended: set[int] = set()  # nodes whose routes are not swept yet
        self.in_tree: dict[str | int, Session] = {
            holder: new_session(number) for number, holder in enumerate([*CLIENTS, *NODES])
        }

    @rule(client=st.sampled_from(CLIENTS), incarnation=st.integers(0, 2**48 - 1))
    def add(self, client: str, incarnation: int) -> None:
        if client in self.incarnations:
            with pytest.raises(ValueError, match=r".*"):
                self.table.add(client.encode(), incarnation)
        else:
            self.table.add(client.encode(), incarnation)
            self.incarnations[client] = incarnation
            self.held[client] = {}

    @rule(client=st.sampled_from(CLIENTS))
    def remove(self, client: str) -> None:
        assert self.table.remove(client.encode()) == (client in self.incarnations)
        if self.incarnations.pop(client, None) is not None:
            for name in self.held.pop(client):
                self.tree.unsubscribe(self.in_tree[client], name.encode())

    @rule(client=st.sampled_from(CLIENTS), name=own_filters, options=st.integers(0, 2))
    def subscribe(self, client: str, name: str, options: int) -> None:
        if client not in self.incarnations:
            with pytest.raises(KeyError):
                self.table.subscribe(client.encode(), name.encode(), options)
            return
        assert self.table.subscribe(client.encode(), name.encode(), options) == (name not in self.held[client])
        self.held[client][name] = options
        self.tree.subscribe(self.in_tree[client], name.encode(), options)

    @rule(client=st.sampled_from(CLIENTS), name=own_filters)
    def unsubscribe(self, client: str, name: str) -> None:
        there = self.held.get(client, {}).pop(name, None) is not None
        assert self.table.unsubscribe(client.encode(), name.encode()) == there
        self.tree.unsubscribe(self.in_tree[client], name.encode())

    @rule(data=st.data())
    @precondition(lambda self: any(self.held.values()))
    def unsubscribe_from_one_of_its_own(self, data: Any) -> None:
        held = [(client, name) for client in self.held for name in self.held[client]]
        self.unsubscribe(*data.draw(st.sampled_from(held)))

    @rule(node=st.sampled_from(NODES), name=own_filters, options=st.integers(0, 2))
    def route(self, node: int, name: str, options: int) -> None:
        if node in self.ended:
            with pytest.raises(ValueError, match=str(node)):
                self.table.route(node, name.encode(), options)
            return
        assert self.table.route(node, name.encode(), options) == (name not in self.routes[node])
        self.routes[node][name] = options
        self.tree.subscribe(self.in_tree[node], name.encode(), options)

    @rule(node=st.sampled_from(NODES), name=own_filters)
    def unroute(self, node: int, name: str) -> None:
        there = self.routes[node].pop(name, None) is not None
        assert self.table.unroute(node, name.encode()) == there
        self.tree.unsubscribe(self.in_tree[node], name.encode())

    def names(self) -> list[str]:
        return sorted({name for held in (*self.held.values(), *self.routes.values()) for name in held})

    @rule(data=st.data(), node=st.sampled_from(NODES))
    @precondition(lambda self: self.names())
    def route_one_that_is_there(self, data: Any, node: int) -> None:
        self.route(node, data.draw(st.sampled_from(self.names())), 1)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    @precondition(lambda self: self.names())
    def subscribe_to_one_that_is_there(self, data: Any, client: str) -> None:
        self.subscribe(client, data.draw(st.sampled_from(self.names())), 1)

    @rule(data=st.data())
    @precondition(lambda self: any(self.routes.values()))
    def unroute_one_that_is_there(self, data: Any) -> None:
        there = [(node, name) for node, names in self.routes.items() for name in names]
        self.unroute(*data.draw(st.sampled_from(there)))

    @rule(node=st.sampled_from(NODES))
    def end_node(self, node: int) -> None:
        self.table.end_node(node)
        self.ended.add(node)
        for name in self.routes[node]:
            self.tree.unsubscribe(self.in_tree[node], name.encode())
        self.routes[node].clear()

    @rule(most=st.sampled_from([1, 1000, SEGMENTS]))
    @precondition(lambda self: self.ended)
    def sweep(self, most: int) -> None:
        for _ in range(most):
            if not self.table.remove_ended():
                self.ended.clear()
                assert not self.table.remove_ended()
                return

    @rule(topic=own_topics | st.just("/".join("a" * 64)) | st.just("/".join("a" * 70)))
    def match(self, topic: str) -> None:
        sessions, routes = self.table.match(topic.encode())
        found: dict[str | int, int] = {}
        for client_id, incarnation, options in sessions:
            assert self.incarnations[client_id.decode()] == incarnation
            found[client_id.decode()] = max(options, found.get(client_id.decode(), 0))
        for node, options in routes:
            found[node] = max(options, found.get(node, 0))
        names = {session.session_id: holder for holder, session in self.in_tree.items()}
        assert found == {names[session.session_id]: qos for session, qos in self.tree.receivers(topic.encode())}

    @rule(data=st.data())
    @precondition(lambda self: self.names())
    def match_one_that_is_there(self, data: Any) -> None:
        levels = data.draw(st.sampled_from(self.names())).split("/")
        plain = [data.draw(st.sampled_from(LEVELS)) if level in ("+", "#") else level for level in levels]
        self.match("/".join(plain) or "a")

    @rule()
    def walk(self) -> None:
        seen = [found for segment in range(SEGMENTS) for found in self.table.sessions_in(segment)]
        assert {
            client_id.decode(): (incarnation, {name.decode(): options for name, options in held})
            for client_id, incarnation, held in seen
        } == {client: (incarnation, self.held[client]) for client, incarnation in self.incarnations.items()}
        assert len(seen) == len(self.incarnations)
        routes = [found for segment in range(SEGMENTS) for found in self.table.routes_in(segment)]
        assert sorted((name.decode(), node, options) for name, node, options in routes) == sorted(
            (name, node, options) for node, names in self.routes.items() for name, options in names.items()
        )

    @invariant()
    def it_counts(self) -> None:
        assert self.table.sessions == len(self.incarnations)
        assert self.table.subscriptions == sum(map(len, self.held.values()))
        for client in CLIENTS:
            assert self.table.incarnation_of(client.encode()) == self.incarnations.get(client)
        if not self.ended:
            assert self.table.routes == sum(map(len, self.routes.values()))
            assert self.table.filters == len(self.names())

    def teardown(self) -> None:
        for client in list(self.incarnations):
            self.remove(client)
        for node in NODES:
            self.end_node(node)
        self.sweep(SEGMENTS)
        assert (self.table.filters, self.table.routes, self.table.subscriptions) == (0, 0, 0)


class TestTable(TableMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=150, stateful_step_count=50)


def test_each_short_filter_with_each_short_topic() -> None:
    """Wildcards, empty levels, '$' at the front and behind a tenant's prefix: as the tree of filters has it."""
    table, tree = ForeignTable(), SubscriptionTree()
    sessions: list[Session] = []
    prefixes = ["", "$tenant/acme/", "$tenant/", "$other/a/"]
    for prefix, depth in product(prefixes, range(4)):
        for levels, end in product(product(["a", "", "+", "$s"], repeat=depth), ([], ["#"])):
            if name := prefix + "/".join([*levels, *end]):
                sessions.append(new_session(len(sessions)))
                client_id = b"%d" % (len(sessions) - 1)
                table.add(client_id, 1)
                table.subscribe(client_id, name.encode(), 1)
                tree.subscribe(sessions[-1], name.encode(), 1)
    for prefix, depth in product(prefixes, range(1, 5)):
        for levels in product(["a", "", "$s"], repeat=depth):
            topic = (prefix + "/".join(levels)).encode()
            if topic:
                found = sorted(int(client_id) for client_id, _, _ in table.match(topic)[0])
                assert found == sorted(session.session_id for session, _ in tree.receivers(topic)), topic


@pytest.mark.parametrize("seed", range(3))
def test_many_sessions_come_and_go(seed: int) -> None:
    """Filters of a few and of thousands, sessions with one filter and with hundreds, and memory that stays."""
    rng = random.Random(seed)
    table = ForeignTable()
    empty = table.size
    held: dict[bytes, dict[bytes, int]] = {}
    holders: dict[bytes, set[bytes]] = {}
    sizes: list[int] = []
    for _ in range(4):
        while len(held) < 10_000:
            client_id = b"%x" % rng.getrandbits(rng.choice([20, 40, 300]))
            if client_id in held:
                continue
            table.add(client_id, len(client_id))
            held[client_id] = {}
            for number in range(rng.choice([0, 1, 1, 1, 2, 5, 100]) if len(held) % 20 else 300):
                names = [b"c/%s/%d" % (client_id, number), b"g/%d/+" % (number % 40), b"all/#", b"s/+/%d" % number]
                name = rng.choice(names)
                assert table.subscribe(client_id, name, number & 1) == (name not in held[client_id])
                held[client_id][name] = number & 1
                holders.setdefault(name, set()).add(client_id)
        sizes.append(table.size)
        for topic, name in (
            (b"g/7/x", b"g/7/+"),
            (b"all", b"all/#"),
            (b"s/y/1", b"s/+/1"),
            (b"all/x/y", b"all/#"),
            (b"c/no/1", b"none"),
        ):
            found, _ = table.match(topic)
            assert sorted(client_id for client_id, _, _ in found) == sorted(holders.get(name, ()))
        for client_id in rng.sample(list(held), 200):
            assert dict(table.subscriptions_of(client_id)) == held[client_id]
            for name in list(held[client_id])[::2]:
                assert table.unsubscribe(client_id, name)
                del held[client_id][name]
                holders[name].remove(client_id)
        for client_id in rng.sample(list(held), 9000):
            assert table.remove(client_id)
            for name in held.pop(client_id):
                holders[name].remove(client_id)
        assert table.sessions == len(held)
        assert table.subscriptions == sum(map(len, held.values()))
        assert table.filters == sum(map(bool, holders.values()))
    assert max(sizes) < 1.3 * sizes[0]
    for client_id in held:
        table.remove(client_id)
    assert table.size <= empty + (1 << 20), "one chunk is kept"


def test_filters_of_too_many_shapes_or_levels() -> None:
    table = ForeignTable()
    table.add(b"c", 1)
    deep = "/".join("a" * 65).encode()
    assert not table.has_room(deep)
    with pytest.raises(ValueError, match="a/a"):
        table.subscribe(b"c", deep, 0)
    names = ["/".join("+" if number >> bit & 1 else "x" for bit in range(7)).encode() for number in range(65)]
    for name in names[:64]:
        assert table.has_room(name)
        assert table.subscribe(b"c", name, 1)
    assert not table.has_room(names[64])
    with pytest.raises(ValueError, match="x"):
        table.route(1, names[64], 1)
    assert len(table.match(b"x/x/x/x/x/x/x")[0]) == 64
    assert table.unsubscribe(b"c", names[3])
    assert table.subscribe(b"c", names[64], 1)
    assert sorted(name for name, _ in table.subscriptions_of(b"c")) == sorted({*names} - {names[3]})


def test_wildcards_are_longer_than_empty_levels() -> None:
    """As many filters as are looked up at once, in which each empty level but one is '+': their texts need room."""
    table = ForeignTable()
    table.add(b"c", 1)
    for number in range(64):
        levels = ["+"] * 64
        levels[number] = ""
        assert table.subscribe(b"c", "/".join(levels).encode(), 1)
    for _ in range(100):
        assert len(table.match(b"/" * 63)[0]) == 64


def test_what_is_too_large() -> None:
    table = ForeignTable()
    with pytest.raises(OverflowError):
        table.add(b"c", 2**48)
    for call in (lambda: table.route(65536, b"a", 0), lambda: table.end_node(65536)):
        with pytest.raises(ValueError, match="65536"):
            call()
    for call in (lambda: table.sessions_in(-1), lambda: table.routes_in(SEGMENTS)):
        with pytest.raises(IndexError):
            call()
    table.add(b"c", 2**48 - 1)
    assert table.incarnation_of(b"c") == 2**48 - 1
    long = b"/".join([b"x" * 32767] * 2)
    table.subscribe(b"c", long, 2)
    assert table.match(long) == ([(b"c", 2**48 - 1, 2)], [])
