"""Sessions against a plain model: queues, packet identifiers, DUP, QoS 2 states, and what a restart makes of them."""

import gc
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from _speedups.codec.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from _speedups.session.session import Session
from broker.core.will import Will
from broker.storage import compaction
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.model.topics import matches

NAMES = ["one", "two", "three"]
FILTERS = ["t/1", "t/+", "t/#", "#", "+/2", "t/2"]
TOPICS = ["t/1", "t/2", "u/2", "t"]
WILL_TOPICS = ["t/1", "kept/will"]


def queue_of(session: Session) -> list[tuple[Any, ...]]:
    """What the client has yet to acknowledge, without what a restart may change."""
    return [
        (n, "pubrec" if state == "pubrec" else "publish", qos, retain, topic, payload)
        for n, state, qos, _, retain, topic, payload in session.entries()
    ]


def state_of(node: Node) -> dict[str, Any]:
    """All that must survive, in a form to compare."""
    router = node.router
    persistent = [session for session in node.sessions if session.persistent]
    return {
        "sessions": {
            session.client_id: (
                queue_of(session),
                session.queue_length,
                session.queue_bytes,
                sorted(session.awaited()),
                sorted(router.filters.subscriptions_of(session)),
            )
            for session in persistent
        },
        "retained": sorted(router.retained.matching(b"#")) + sorted(router.retained.matching(b"$x/#")),
    }


@dataclass
class Expected:
    """The model of one client and its session."""

    persistent: bool = False
    exists: bool = False
    client: Client | None = None
    will: tuple[str, bytes, int, bool] | None = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    queue: list[list[Any]] = field(default_factory=list)  # [number, "publish" or "pubrec", QoS, topic, payload]
    next_number: int = 1
    sent: set[int] = field(default_factory=set)  # numbers that have ever been received by the client
    received: set[int] = field(default_factory=set)  # on this connection
    awaited: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class SessionMachine(RuleBasedStateMachine):
    """Random clients do random correct things; after each, node and model hold the same, and so does a restart."""

    @initialize(window=st.sampled_from([1, 3, 100]))
    def begin(self, window: int) -> None:
        self.limits = {"max_inflight": window}
        self.node = Node(smallest=0, **self.limits)
        self.publisher = Client(self.node, "publisher")
        self.publisher.take()
        self.clients = {name: Expected() for name in NAMES}
        self.retained: dict[str, bytes] = {}
        self.count = 0
        for name, granted in (("one", 1), ("two", 2)):  # so that little of a run is spent on getting somewhere
            self.connect(name, False, 5 - granted, None)
            one = self.clients[name]
            assert one.client is not None
            one.client.send(Subscribe(packet_id=9, topic_filters=[("t/#", granted)]))
            assert [type(packet) for packet in self.read(one)] == [Suback]
            one.subscriptions["t/#"] = granted

    # ---- the model ----

    def publish_to_model(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        for one in self.clients.values():
            granted = [qos for name, qos in one.subscriptions.items() if matches(name, topic)]
            if one.exists and granted and min(qos, max(granted)):
                one.queue.append([one.next_number, "publish", min(qos, max(granted)), topic, payload])
                one.next_number += 1

    def number_of(self, one: Expected, packet_id: int) -> int:
        """The queue number that a packet identifier stands for; tests have fewer than 65536 messages."""
        return next(entry[0] for entry in one.queue if entry[0] == packet_id)

    def read(self, one: Expected) -> list[Any]:
        """Take what has come to a client, hold it against the model; returns what is not PUBLISH or PUBREL."""
        others: list[Any] = []
        assert one.client is not None
        for packet in one.client.take():
            if isinstance(packet, Publish):
                if packet.qos == 0:
                    continue
                entry = next(entry for entry in one.queue if entry[0] == packet.packet_id)
                assert entry[1:] == ["publish", packet.qos, packet.topic_name, packet.payload]
                if packet.packet_id in one.received:  # after a while level 3 sends all again
                    assert one.client.level == 3
                    assert packet.dup
                    one.received = {number for number in one.received if number < packet.packet_id}
                assert not one.received or packet.packet_id > max(one.received)  # in order
                if packet.packet_id in one.sent:
                    assert packet.dup, "redelivered without DUP"
                one.received.add(packet.packet_id)
                one.sent.add(packet.packet_id)
            elif isinstance(packet, Pubrel):
                entry = next(entry for entry in one.queue if entry[0] == packet.packet_id)
                assert entry[1] == "pubrec"
                one.received.add(packet.packet_id)
            else:
                others.append(packet)
        assert not one.client.ended
        return others

    def ended(self, one: Expected) -> None:
        """The connection of a client is gone."""
        one.client = None
        one.received = set()
        if not one.persistent:
            one.exists = False
            self.forget(one)
        if one.will is not None:
            payload = one.will
            one.will = None
            self.publish_to_model(*payload)

    def forget(self, one: Expected) -> None:
        one.subscriptions, one.queue, one.next_number, one.sent, one.awaited = {}, [], 1, set(), {}

    # ---- what clients do ----

    @rule(
        name=st.sampled_from(NAMES),
        clean=st.booleans(),
        level=st.sampled_from([3, 4]),
        will=st.none() | st.tuples(st.sampled_from(WILL_TOPICS), st.integers(0, 2), st.booleans()),
    )
    def connect(self, name: str, clean: bool, level: int, will: tuple[str, int, bool] | None) -> None:
        one = self.clients[name]
        fields: dict[str, Any] = {}
        if will is not None:
            self.count += 1
            fields = {
                "will_topic": will[0],
                "will_qos": will[1],
                "will_retain": will[2],
                "will_payload": b"will %d" % self.count,
            }
        client = Client(self.node, name, level=level, clean_start=clean, **fields)
        if one.client is not None:  # taken over
            self.ended(one)
        if clean:
            self.forget(one)
            one.exists = False
        answer = client.connack()
        assert answer.reason_code == 0
        assert answer.session_present == (one.exists and level == 4)
        one.client, one.exists, one.persistent = client, True, not clean
        if will is not None:
            one.will = (will[0], fields["will_payload"], will[1], will[2])
        assert self.read(one) == []

    def pick(self, data: Any, condition: Any) -> Expected | None:
        some = [one for one in self.clients.values() if one.client is not None and condition(one)]
        return data.draw(st.sampled_from(some)) if some else None

    def connected(self) -> bool:
        return any(one.client is not None for one in self.clients.values())

    @rule(data=st.data(), politely=st.booleans())
    @precondition(connected)
    def disconnect(self, data: Any, politely: bool) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        if politely:
            one.client.send(Disconnect())
            one.will = None
        one.client.close()
        self.ended(one)

    @rule(data=st.data(), name=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    @precondition(connected)
    def subscribe(self, data: Any, name: str, qos: int) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        # Retained messages would come in an order of the tree's: they are tested elsewhere.
        if any(matches(name, topic) for topic in self.retained):
            return
        one.client.send(Subscribe(packet_id=9, topic_filters=[(name, qos)]))
        assert [type(packet) for packet in self.read(one)] == [Suback]
        one.subscriptions[name] = qos

    @rule(data=st.data(), name=st.sampled_from(FILTERS))
    @precondition(connected)
    def unsubscribe(self, data: Any, name: str) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        one.client.send(Unsubscribe(packet_id=9, topic_filters=[name]))
        assert [type(packet) for packet in self.read(one)] == [Unsuback]
        one.subscriptions.pop(name, None)

    @rule(topic=st.sampled_from(TOPICS), qos=st.integers(0, 1), times=st.sampled_from([1, 1, 5]))
    def publish(self, topic: str, qos: int, times: int) -> None:
        for _ in range(times):
            self.count += 1
            payload = b"message %d" % self.count
            self.publisher.send(Publish(topic_name=topic, payload=payload, qos=qos, packet_id=1 if qos else 0))
            assert len(self.publisher.take()) == qos
            self.publish_to_model(topic, payload, qos, False)

    @rule(topic=st.sampled_from(["kept/a", "kept/b", "$x/c"]), qos=st.integers(0, 1), clear=st.booleans())
    def retain(self, topic: str, qos: int, clear: bool) -> None:
        self.count += 1
        payload = b"" if clear else b"value %d" % self.count
        self.publisher.send(Publish(topic_name=topic, payload=payload, qos=qos, packet_id=1 if qos else 0, retain=True))
        assert len(self.publisher.take()) == qos
        self.publish_to_model(topic, payload, qos, True)

    @rule(data=st.data(), packet_id=st.integers(1, 3), topic=st.sampled_from(TOPICS))
    @precondition(connected)
    def publish_exactly_once(self, data: Any, packet_id: int, topic: str) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        self.count += 1
        payload = b"exactly %d" % self.count
        one.client.send(Publish(topic_name=topic, payload=payload, qos=2, packet_id=packet_id))
        assert [type(packet) for packet in self.read(one)] == [Pubrec]
        one.awaited.setdefault(packet_id, (topic, payload))

    @rule(data=st.data(), packet_id=st.integers(1, 3))
    @precondition(connected)
    def release(self, data: Any, packet_id: int) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        one.client.send(Pubrel(packet_id=packet_id))
        if packet_id in one.awaited:
            topic, payload = one.awaited.pop(packet_id)
            self.publish_to_model(topic, payload, 2, False)
        assert [type(packet) for packet in self.read(one)] == [Pubcomp]

    @rule(data=st.data(), times=st.sampled_from([1, 2, 10]), newest=st.booleans())
    @precondition(lambda self: any(one.client is not None and one.received for one in self.clients.values()))
    def acknowledge(self, data: Any, times: int, newest: bool) -> None:
        one = self.pick(data, lambda one: one.received)
        assert one is not None
        assert one.client is not None
        for _ in range(times):
            if not one.received:
                return
            number = max(one.received) if newest else min(one.received)
            entry = next(entry for entry in one.queue if entry[0] == number)
            if entry[1] == "publish" and entry[2] == 2:
                one.client.send(Pubrec(packet_id=number))
                entry[1:] = ["pubrec", 2, None, None]
            else:
                one.client.send((Pubcomp if entry[1] == "pubrec" else Puback)(packet_id=number))
                one.queue.remove(entry)
                one.received.discard(number)
            assert self.read(one) == []

    # ---- what the node goes through ----

    @rule()
    def compact_a_little(self) -> None:
        self.node.compaction.step()
        self.node.end_turn()
        self.node.run()

    @rule(ticks=st.sampled_from([1, 25]))
    def time_passes(self, ticks: int) -> None:
        self.node.advance(ticks)

    @rule()
    @precondition(lambda self: self.count > 3)
    def restart(self) -> None:
        for one in self.clients.values():
            if one.client is not None:
                self.read(one)
        self.node.turn.seal()
        self.node.run()
        before = state_of(self.node)
        store = self.node.store
        self.node.close()
        self.node = Node(KeepingStore(store.after(len(store.told))), smallest=0, **self.limits)
        if not any(one.will for one in self.clients.values()):
            assert state_of(self.node) == before
        for one in self.clients.values():  # in the order of the store, which is that of the model for one will
            if one.client is not None:
                one.client.socket.close()
                one.client = None
                one.received = set()
                if not one.persistent:
                    one.exists = False
                    self.forget(one)
        wills = {name: one.will for name, one in self.clients.items() if one.will is not None}
        assert self.node.wills.keys() == {name.encode() for name in wills}
        for client_id in self.node.wills:
            self.publish_to_model(*wills[client_id.decode()])
        for one in self.clients.values():
            one.will = None
        self.publisher = Client(self.node, "publisher")
        self.publisher.take()

    # ---- what always holds ----

    @invariant()
    def node_and_model_hold_the_same(self) -> None:
        if not hasattr(self, "node"):
            return
        router, turn = self.node.router, self.node.turn
        sessions = list(self.node.sessions)
        assert turn.queued == sum(session.queue_length for session in sessions)
        assert turn.queued_bytes == sum(session.queue_bytes for session in sessions)
        sent = sum(entry[1] != "waiting" for session in sessions for entry in session.entries())
        assert 0 <= turn.inflight <= sent
        for name, one in self.clients.items():
            session = self.node.sessions.get(name.encode())
            assert (session is not None) == one.exists
            if session is None:
                continue
            if one.client is not None:
                self.read(one)
            wanted = [
                (number, state, qos, False, topic and topic.encode(), payload)
                for number, state, qos, topic, payload in one.queue
            ]
            assert queue_of(session) == wanted
            assert session.queue_length == len(wanted)
            assert session.queue_bytes == sum(len(entry[4] or b"") + len(entry[5] or b"") for entry in wanted)
            assert sorted(session.awaited()) == sorted(
                (packet_id, topic.encode(), payload) for packet_id, (topic, payload) in one.awaited.items()
            )
            assert dict(router.filters.subscriptions_of(session)) == {
                name.encode(): qos for name, qos in one.subscriptions.items()
            }
            if one.client is not None:  # the window is used: everything that may be with the client is
                window = self.limits["max_inflight"]
                assert one.received >= {entry[0] for entry in one.queue[:window]}
        retained = [*router.retained.matching(b"#"), *router.retained.matching(b"$x/#")]
        assert {topic.decode(): payload for topic, payload, _ in retained} == self.retained

    @invariant()
    def a_restart_now_would_give_the_same(self) -> None:
        if not hasattr(self, "node"):
            return
        self.node.turn.seal()
        self.node.run()
        store = self.node.store
        copy = Node(KeepingStore(store.after(len(store.told))), **self.limits)
        copy.close()
        wills = {name.encode(): one.will for name, one in self.clients.items() if one.will is not None}
        assert copy.wills == {
            name: Will(topic.encode(), payload, qos, retain) for name, (topic, payload, qos, retain) in wills.items()
        }
        if not wills:
            assert state_of(copy) == state_of(self.node)
        for name, one in self.clients.items():
            session = copy.sessions.get(name.encode())
            if session is not None:
                for number, state, _, dup, *_ in session.entries():
                    if state != "pubrec" and number in one.sent:
                        assert dup, "it would be redelivered without DUP"

    def teardown(self) -> None:
        if hasattr(self, "node"):
            assert self.node.counted("malformed_packets") == 0
            self.node.close()


@pytest.fixture(autouse=True)
def compaction_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE", 1)
    monkeypatch.setattr(compaction, "RETAINED_BATCH", 1)


class TestSessions(SessionMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck))


# ---- particular cases ----


def subscribed(node: Node, qos: int = 2, **connect: Any) -> Client:
    client = Client(node, "subscriber", **{"clean_start": False, **connect})
    client.connack()
    client.send(Subscribe(packet_id=1, topic_filters=[("t/#", qos), ("live", 0)]))
    client.take_one(Suback)
    return client


def publish(node: Node, payload: bytes, qos: int = 1, topic: str = "t/1") -> None:
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(Publish(topic, payload, qos=qos, packet_id=1 if qos else 0))
    if qos == 2:
        publisher.send(Pubrel(packet_id=1))
    assert len(publisher.take()) == qos
    publisher.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_that_comes_before_the_message_is_sent_again(qos: int) -> None:
    """A client that has done with a QoS 2 message would take it for a new one."""
    node = Node(max_inflight=2)
    client = subscribed(node)
    publish(node, b"one", qos)
    publish(node, b"two", qos)
    one, two = client.take()
    assert isinstance(one, Publish)
    assert isinstance(two, Publish)
    client.close()
    config = node.broker.config
    node.broker.configure(replace(config, limits=replace(config.limits, max_inflight=1)))  # "two" has to wait
    client = Client(node, "subscriber", clean_start=False)
    client.connack()
    for message in (two, one):
        if qos == 1:
            client.send(Puback(packet_id=message.packet_id))
        else:
            client.send(Pubrec(packet_id=message.packet_id), Pubcomp(packet_id=message.packet_id))
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [b"one"]


@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
def test_a_full_queue_keeps_to_its_limit_and_policy(policy: str) -> None:
    node = Node(queue_policy=policy, max_queued_messages=10)
    subscribed(node).close()
    for number in range(30):
        publish(node, b"%d" % number)
    session = node.sessions.get(b"subscriber")
    assert session is not None
    wanted = range(10) if policy == "drop-new" else range(20, 30)
    assert [entry[-1] for entry in session.entries()] == [b"%d" % number for number in wanted]
    assert node.counted("dropped_queue_full") == 20
    node.turn.seal()
    assert state_of(Node(KeepingStore(node.store.after(len(node.store.told))), **node.limits)) == state_of(node)


@pytest.mark.parametrize("connected", [True, False])
def test_dropping_the_oldest_costs_no_memory_when_the_first_is_never_acknowledged(connected: bool) -> None:
    """The numbers between what is in flight and what is not were kept for ever, and searched for each message."""
    node = Node(queue_policy="drop-old", max_queued_messages=20, max_inflight=2)
    client = subscribed(node)
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(Publish("t/1", b"first", qos=1, packet_id=1))
    assert client.take_one(Publish).payload == b"first"
    if not connected:
        client.close()
    count = 200_000
    for begin in range(0, count, 500):
        publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(begin, begin + 500)))
        publisher.take()
        node.store.told.clear()  # nobody reads it back
        node.store.done = 0
    session = node.sessions.get(b"subscriber")
    assert session is not None
    newest = [entry[-1] for entry in session.entries()][-18:]
    assert newest == [b"%d" % number for number in range(count - 18, count)]
    assert session.queue_length <= 20
    assert session.queue_capacity <= 131_072


def test_memory_of_a_long_queue_is_returned() -> None:
    node = Node()
    subscribed(node).close()
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(*(Publish("t/1", b"x", qos=1, packet_id=1) for _ in range(9000)))
    publisher.take()
    session = node.sessions.get(b"subscriber")
    assert session is not None
    assert session.queue_length == 9000
    client = Client(node, "subscriber", clean_start=False)
    while session.queue_length:
        for packet in client.take():
            if isinstance(packet, Publish):
                client.write(Puback(packet_id=packet.packet_id))
        node.run()
    assert session.queue_capacity <= 1024
    publish(node, b"goes on")
    goes_on = client.take_one(Publish)
    assert goes_on.payload == b"goes on"
    client.send(Puback(packet_id=goes_on.packet_id))
    node.turn.seal()
    again = Node(KeepingStore(node.store.after(len(node.store.told))))  # a store that tells of all and of all acks
    session = again.sessions.get(b"subscriber")
    assert session is not None
    assert session.entries() == []
    assert session.queue_capacity <= 1024
    publish(again, b"after")
    assert [entry[0] for entry in session.entries()] == [9002]


def test_the_node_s_totals_follow_a_session_that_the_collector_finds() -> None:
    node = Node()
    turn, sessions = node.turn, node.sessions
    session = sessions.create(b"lamp", persistent=False, level=4)
    node.router.filters.subscribe(session, b"t", 1)
    node.router.publish(b"t", b"hello", 1, False)
    assert (turn.queued, turn.queued_bytes) == (1, 6)
    session.owner = [session]
    sessions.end(session)
    del session
    gc.collect()
    assert (turn.queued, turn.queued_bytes) == (0, 0)
    node.close()


def test_messages_that_await_release_are_bounded_in_bytes() -> None:
    node = Node(max_queued_bytes=100_000)
    client = Client(node, "client", clean_start=False)
    client.connack()
    client.send(*(Publish("t/1", bytes(10_000), qos=2, packet_id=number) for number in range(1, 15)))
    assert len(client.take()) <= 10
    assert client.ended


def test_after_a_kill_all_that_may_have_been_sent_has_dup() -> None:
    """Acknowledgements are stored lazily: far more than a window may have been sent since the last that was stored."""
    node = Node(max_inflight=2)
    client = subscribed(node, 1)
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(10)))
    seen: list[bytes] = []
    while packets := client.take():
        for packet in packets:
            assert isinstance(packet, Publish)
            seen.append(packet.payload)
            client.send(Puback(packet_id=packet.packet_id))
    assert len(seen) == 10
    node.close()
    node = Node(KeepingStore(node.store.after(len(node.store.told))), max_inflight=2)
    client = Client(node, "subscriber", clean_start=False)
    client.connack()
    again: list[Publish] = []
    while packets := client.take():
        again += [packet for packet in packets if isinstance(packet, Publish)]
        client.send(*(Puback(packet_id=packet.packet_id) for packet in packets if isinstance(packet, Publish)))
    assert len(again) == 10
    assert all(packet.dup for packet in again)


def test_the_packet_identifier_after_65535_is_1() -> None:
    node = Node()
    session = node.sessions.create(b"subscriber", persistent=True, level=4)
    session.load()
    session.restore(65_534, 65_534)  # as if so many messages had been acknowledged before a restart
    session.restored(False)
    client = subscribed(node)
    for number in range(4):
        publish(node, b"%d" % number)
    identifiers = [packet.packet_id for packet in client.take() if isinstance(packet, Publish)]
    assert identifiers == [65_534, 65_535, 1, 2]
    client.send(*(Puback(packet_id=identifier) for identifier in identifiers))
    assert session.entries() == []


def test_a_compaction_keeps_all_that_is_live() -> None:
    node = Node(smallest=0)
    subscribed(node).close()
    publish(node, b"queued")
    for topic in ("kept/a", "$x/c"):  # `#` does not find the second
        node.router.publish(topic.encode(), b"kept", 0, True)
    told = len(node.store.told)
    while sum(isinstance(thing, int) for thing in node.store.told[told:]) < 2:  # the first may have been under way
        node.compaction.step()
        node.end_turn()
        node.run()
    state = state_of(node)
    assert len(state["retained"]) == 2 and state["sessions"][b"subscriber"][1] == 1
    assert state_of(Node(KeepingStore(node.store.after(len(node.store.told))))) == state
