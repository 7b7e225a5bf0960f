"""Foreign sessions and routes against a plain model: the same receivers, whether they are records, or in the tree."""

from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flockmq._speedups.cluster.peer import Peer
from flockmq._speedups.routing.foreign import SEGMENTS
from flockmq._speedups.routing.router import Router
from flockmq._speedups.session import session_store
from flockmq._speedups.session.journal import Journal
from flockmq._speedups.session.turn import Turn
from flockmq.broker.core.sessions import Sessions
from flockmq.broker.core.subscription_options import MAXIMUM_QOS, NO_LOCAL
from flockmq.cluster.replication.changes import Changes
from tests.model.topics import matches
from tests.unit.speedups.test_subscriptions import LEVELS, TENANTS, filters, topics

CLIENTS = [b"a", b"b", b"$tenant/x/a", b"$tenant/y/b"]
NODES = [b"n1", b"n2", b"n3"]
DEEP = "/".join("a" * 65)  # no record can have it
prefixes = st.sampled_from(["", "", *TENANTS])
names = st.builds(str.__add__, prefixes, filters) | st.sampled_from(["a", "a/+", DEEP, "$share/g/a", "$share/g/+/b"])
options = st.sampled_from([0, 1, 2, 1 | NO_LOCAL])


def fits(name: str, topic: str) -> bool:
    """As `matches`; '$' behind the prefix of a tenant hides a level from wildcards, too."""
    prefix = next((each for each in TENANTS if topic.startswith(each)), "")
    return name.startswith(prefix) and matches(name.removeprefix(prefix), topic.removeprefix(prefix))


class ForeignMachine(RuleBasedStateMachine):
    """Changes of sessions and routes arrive; clients connect here, and go; plans that were kept are asked for again."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = Turn(Journal())
        self.router = Router(self.turn)
        self.foreign = self.router.foreign
        self.sessions = Sessions(self.turn, self.router)
        self.members: dict[bytes, Any] = {}
        plane: Any = SimpleNamespace(router=self.router, sessions=self.sessions, turn=self.turn)
        self.changes = Changes(plane, self.members, b"self", self.turn.journal)  # type: ignore[arg-type]
        self.number = 0
        self.held: dict[bytes, tuple[int, dict[str, tuple[int, int]]]] = {}
        self.routes: dict[bytes, dict[str, int]] = {}
        self.here: set[bytes] = set()  # clients that are connected here
        self.asked: list[str] = []

    def apply(self, origin: bytes, *record: Any) -> None:
        self.number += 1
        self.changes.apply(self.number, origin, [record])

    # ---- changes ----

    @rule(client=st.sampled_from(CLIENTS), name=names, options=options, identifier=st.sampled_from([0, 0, 7]))
    def subscribe(self, client: bytes, name: str, options: int, identifier: int) -> None:
        if name.startswith("$share"):
            options &= ~NO_LOCAL
        incarnation, held = self.held.setdefault(client, (self.number + 1, {}))
        held[name] = options, identifier
        self.apply(b"n1", "subscribed", client, incarnation, name.encode(), options, identifier)

    @rule(client=st.sampled_from(CLIENTS), back=st.integers(1, 5))
    def subscribe_of_an_earlier_incarnation(self, client: bytes, back: int) -> None:
        if client in self.held:
            number = max(0, self.held[client][0] - back)
            self.apply(b"n1", "subscribed", client, number, b"late", 1, 0)
            self.apply(b"n1", "unsubscribed", client, number, b"a")
            self.apply(b"n1", "ended", client, number)

    @rule(data=st.data())
    @precondition(lambda self: any(held for _, held in self.held.values()))
    def unsubscribe(self, data: Any) -> None:
        there = [(client, name) for client, (_, held) in sorted(self.held.items()) for name in held]
        client, name = data.draw(st.sampled_from(there))
        incarnation, held = self.held[client]
        del held[name]
        self.apply(b"n1", "unsubscribed", client, incarnation, name.encode())
        if not held and client not in self.here:
            del self.held[client]

    @rule(client=st.sampled_from(CLIENTS))
    def end(self, client: bytes) -> None:
        if client in self.held and client not in self.here:
            self.apply(b"n1", "ended", client, self.held.pop(client)[0])

    # ---- connections here ----

    @rule(client=st.sampled_from(CLIENTS), is_new=st.booleans())
    def connect(self, client: bytes, is_new: bool) -> None:
        if client in self.here:
            return
        self.number += 1
        if is_new or client not in self.held:  # Redis has ended the session; the change arrives later, or is lost
            self.held[client] = self.number, {}
        incarnation, held = self.held[client]
        session = self.sessions.get(client)
        if session is not None and session.session_id != incarnation:
            self.sessions.end(session)
            session = None
        if session is None:
            session = self.sessions.share(client, incarnation)
        session.owner = "a connection"
        self.here.add(client)
        assert dict(self.router.filters.subscriptions_of(session)) == {
            name.encode(): options for name, (options, _) in held.items()
        }

    @rule(client=st.sampled_from(CLIENTS), first=st.booleans())
    def connect_and_go_with_a_clean_session(self, client: bytes, first: bool) -> None:
        """Redis has ended the session; the change arrives before the node makes another one, or after that."""
        if client in self.here or self.sessions.get(client) is not None:
            return
        before, _ = self.held.pop(client, (0, {}))
        if first and before:
            self.apply(b"n1", "ended", client, before)
        session = self.sessions.create(client, persistent=False, level=4)
        assert self.sessions.find(client) is session
        if before and not first:
            self.apply(b"n1", "ended", client, before)
        assert self.sessions.find(client) is session
        self.sessions.end(session)

    @rule(client=st.sampled_from(CLIENTS))
    def disconnect(self, client: bytes) -> None:
        if client not in self.here:
            return
        self.here.remove(client)
        session = self.sessions.get(client)
        assert session is not None
        session.owner = None
        session_store.unload(session)
        self.sessions.put_away(session)
        if not self.held[client][1]:
            del self.held[client]

    # ---- nodes ----

    @rule(node=st.sampled_from(NODES))
    def node_joins_or_leaves(self, node: bytes) -> None:
        if node not in self.members:
            peer = Peer(self.turn, 0, node, lambda batch: True)
            self.foreign.receivers.add_node(peer)
            self.members[node] = SimpleNamespace(peer=peer)
            self.routes[node] = {}
        else:
            self.foreign.node_left(self.members.pop(node).peer)
            del self.routes[node]

    @rule(node=st.sampled_from(NODES), name=names, qos=st.integers(0, 2))
    def route(self, node: bytes, name: str, qos: int) -> None:
        if node in self.members and not name.startswith("$share"):
            self.apply(node, "route", name.encode(), qos, int(not qos), 0, 0)
            self.routes[node][name] = 2 if qos else 1 - int(not qos)

    @rule(data=st.data())
    @precondition(lambda self: any(self.routes.values()))
    def unroute(self, data: Any) -> None:
        node, name = data.draw(st.sampled_from([(n, each) for n, held in self.routes.items() for each in held]))
        del self.routes[node][name]
        self.apply(node, "unroute", name.encode())

    # ---- the table ----

    @rule(segments=st.sampled_from([1, 1000, SEGMENTS]))
    def sweep(self, segments: int) -> None:
        for _ in range(segments):
            if not self.foreign.sweep():
                break

    @rule()
    def retire(self) -> None:
        gone = self.foreign.retire()
        if gone is not None:
            self.turn.after_commit(gone)

    @rule(most=st.sampled_from([1, 100]))
    def leave_records(self, most: int) -> None:
        done = self.sessions.leave_records(most)
        assert done or most == 1
        assert not done or len(self.foreign) == 0

    @rule(topic=st.builds(str.__add__, prefixes, topics) | st.just(DEEP))
    def ask(self, topic: str) -> None:
        self.asked.append(topic)

    @rule(data=st.data())
    @precondition(lambda self: self.held or any(self.routes.values()))
    def ask_for_one_that_is_there(self, data: Any) -> None:
        known = [name for _, held in self.held.values() for name in held] + [n for h in self.routes.values() for n in h]
        if known:
            levels = data.draw(st.sampled_from(sorted(known))).removeprefix("$share/g/").split("/")
            plain = [data.draw(st.sampled_from(LEVELS)) if level in ("+", "#") else level for level in levels]
            self.asked.append("/".join(plain) or "a")

    @invariant()
    def plans_are_right(self) -> None:
        for topic in self.asked:
            found: dict[bytes, int] = {}
            for subscriber, qos in self.router.filters.receivers(topic.encode()):
                if not subscriber.client_id.startswith(b"$share"):
                    found[subscriber.client_id] = max(qos, found.get(subscriber.client_id, 0))
            wanted: dict[bytes, int] = {}
            for client, (_, held) in self.held.items():
                for name, (options, _) in held.items():
                    if not name.startswith("$share") and fits(name, topic):
                        qos = options & MAXIMUM_QOS
                        if qos or self.sessions.get(client) is not None:  # QoS 0 is not queued
                            wanted[client] = max(qos, wanted.get(client, 0))
            for node, routes in self.routes.items():
                for name, way in routes.items():
                    if fits(name, topic):
                        wanted[node] = max(way, wanted.get(node, 0))
            assert found == wanted, topic

    @invariant()
    def figures_are_right(self) -> None:
        known = {client: held for client, (_, held) in self.held.items() if held or client in self.here}
        assert {session.client_id for session in self.sessions.all()} == set(known)
        assert self.sessions.count == len(known)
        for client, held in known.items():
            session = self.sessions.find(client)
            assert session is not None
            assert {(n, o) for n, o, _ in self.sessions.subscriptions_of(session)} == {
                (name.encode(), options) for name, (options, _) in held.items()
            }
        for tenant in self.turn.tenants:
            of_tenant = [held for client, held in known.items() if client.startswith(tenant.prefix)]
            assert (tenant.sessions, tenant.subscriptions) == (len(of_tenant), sum(map(len, of_tenant)))
        assert self.router.filters.count == sum(map(len, known.values()))

    def teardown(self) -> None:
        for client in [*self.here]:
            self.disconnect(client)
        for client in [*self.held]:
            self.end(client)
        for node in [*self.members]:
            self.node_joins_or_leaves(node)
        self.sweep(SEGMENTS)
        filters = self.router.filters
        assert (self.sessions.count, filters.count, filters.size, filters.filters()) == (0, 0, 0, [])
        assert sum(tenant.subscription_bytes + tenant.sessions for tenant in self.turn.tenants) == 0


class TestForeign(ForeignMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=200, stateful_step_count=50)


def test_a_session_with_many_filters_is_no_record() -> None:
    node = ForeignMachine()
    for number in range(600):
        node.apply(b"n1", "subscribed", b"a", 1, b"f/%d" % number, 1, 0)
        assert (len(node.foreign), node.sessions.count) == (int(number < 500), 1)
    session = node.sessions.get(b"a")
    assert session is not None
    assert session.subscriptions_held == 600
    assert not node.foreign.go(session)
    assert session.subscriptions_held == 600
    assert len(node.router.filters.receivers(b"f/599")) == 1


def test_a_session_whose_filters_have_no_room_stays_whole() -> None:
    """Each filter alone would fit: the table has room for one more shape."""
    node = ForeignMachine()
    for number in range(63):
        name = "/".join("+" if number >> bit & 1 else "x" for bit in range(7)).encode()
        node.apply(b"n1", "subscribed", b"b", 1, name, 1, 0)
    session = node.sessions.share(b"a", 2)
    for name in (b"a/+/+", b"+/b/+", b"x/x/x/x/x/x/x"):
        node.router.filters.subscribe(session, name, 1)
    node.sessions.put_away(session)
    assert node.sessions.get(b"a") is session
    assert len(node.router.filters.subscriptions_of(session)) == 3
    assert node.foreign.subscriptions_of(b"a") == []
    assert {subscriber.client_id for subscriber, _ in node.router.filters.receivers(b"a/b/c")} == {b"a"}


def test_a_session_ends_at_its_next_incarnation() -> None:
    """Hooks are called, also if the change arrives when the client is connected here again."""
    node, ended = ForeignMachine(), []
    node.sessions.attach(ended.append)
    node.apply(b"n1", "subscribed", b"a", 1, b"t", 1, 0)
    node.sessions.share(b"a", 2)
    node.apply(b"n1", "ended", b"a", 1)
    assert ended == [b"a"]
