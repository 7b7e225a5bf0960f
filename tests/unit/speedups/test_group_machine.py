"""Shared subscriptions against a plain model: after every step each message is at one place, and none is lost.

Subscribers with persistent and clean sessions join, leave, come, go and acknowledge; the node restarts and compacts.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flockmq._speedups.codec.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flockmq._speedups.session import session_view
from flockmq._speedups.session.group_settings import STRATEGIES, GroupSettings
from flockmq.broker.config.declared_group import declared
from flockmq.broker.core.group_settings import settings_of
from flockmq.broker.storage import compaction
from tests.harness.inprocess import Client, KeepingStore, Node

FILTER = "$share/g/+"
GRACE = 2  # seconds


@pytest.fixture(autouse=True)
def compaction_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE", 1)


@dataclass
class Worker:
    """A subscriber, and its acts."""

    persistent: bool
    client: Client | None = None
    session: int = 0  # counts its sessions
    qos: int | None = None  # subscribed with
    unanswered: list[Publish | Pubrel] = field(default_factory=list)
    level: int = 4
    own: set[bytes] = field(default_factory=set)  # sent to it before it left: they go to no other
    received: dict[int, bytes] = field(default_factory=dict)  # packet identifier -> payload, from PUBREC to PUBCOMP


def places_of(node: Node) -> Counter[bytes]:
    """Payload -> at how many places it is kept."""
    found: Counter[bytes] = Counter()
    for group in node.router.filters.groups.values():
        found.update(payload for _, _, payload in group.messages())
    for session in node.sessions:
        found.update(payload for *_, payload in session_view.entries(session) if payload is not None)
    return found


def counts_are_right(node: Node) -> None:
    """The totals are the sums of sessions and groups, and groups with room for a message let none wait."""
    groups = list(node.router.filters.groups.values())
    assert node.turn.queued == sum(session.queue_length for session in node.sessions) + sum(
        group.waiting for group in groups
    )
    assert node.turn.queued_bytes == sum(session.queue_bytes for session in node.sessions) + sum(
        group.waiting_size for group in groups
    )
    for group in groups:
        assert group.waiting_size == sum(1 + len(payload) for _, _, payload in group.messages())
        assert group.waiting == len(group.messages())
    given: Counter[bytes] = Counter()
    for group in groups:
        for found in group.subscribers:
            given[found.session.client_id] += found.given_now
    for session in node.sessions:
        assert given[session.client_id] <= session.queue_length, session.client_id


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.workers = {name: Worker(name.startswith("p")) for name in ("p1", "p2", "c1", "c2")}
        self.count = 0
        self.accepted: dict[bytes, int] = {}  # payload -> QoS
        self.done: set[bytes] = set()
        self.got: dict[bytes, set[tuple[str, int, int]]] = {}  # subscriber, which of its sessions, with which QoS
        self.keys: dict[str, list[bytes]] = {}  # key -> accepted payloads, in order
        self.key_of: dict[bytes, str] = {}
        self.last: dict[bytes, tuple[str, int]] = {}  # payload -> who got it last, in which of its sessions

    @initialize(
        durable=st.booleans(),
        window=st.sampled_from([1, 2, 32]),
        receive_maximum=st.sampled_from([0, 1, 2]),
        strategy=st.sampled_from(STRATEGIES),
        is_declared=st.booleans(),
    )
    def start(self, durable: bool, window: int, receive_maximum: int, strategy: str, is_declared: bool) -> None:
        self.strategy = strategy
        self.receive_maximum = receive_maximum
        for name in ("p2", "c2"):
            self.workers[name].level = 5 if receive_maximum else 4
        self.shared = {"window": window, "redispatch": GRACE}
        self.durable = durable
        self.node = self.made(KeepingStore())
        self.is_declared = False
        if is_declared:
            self.declare()

    def made(self, store: KeepingStore) -> Node:
        store.durable = self.durable
        node = Node(store, smallest=0, shared=self.shared)
        self.publishers = [Client(node, "publisher"), Client(node, "another")]
        for publisher in self.publishers:
            publisher.connack()
        self.configure(node)
        return node

    def configure(self, node: Node) -> None:
        for group in node.router.filters.groups.values():
            if group.settings.declared:
                continue
            group.configure(GroupSettings(window=self.shared["window"], strategy=self.strategy))

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        for name in self.workers:  # everybody is there, and reads all
            if self.workers[name].client is None:
                self.connect(name, clean_start=False)
        if self.is_declared and not any(worker.qos for worker in self.workers.values()):
            self.come_or_subscribe("c1", 1, True)
        if any(worker.qos is not None for worker in self.workers.values()):
            self.node.advance(4 * GRACE + 2)
            self.pump()
            while any(worker.unanswered for worker in self.workers.values()):
                for worker in self.workers.values():
                    while worker.unanswered:
                        self.answer(worker)
            assert self.accepted.keys() <= self.done, "not all have arrived"
        self.node.close()

    # ---- what is where ----

    def places(self) -> Counter[bytes]:
        return places_of(self.node)

    @invariant()
    def each_is_at_one_place(self) -> None:
        if not hasattr(self, "node"):
            return
        counts_are_right(self.node)
        if not any(worker.unanswered for worker in self.workers.values()):  # those there have room for all that waits
            ready = [worker for worker in self.workers.values() if worker.client is not None and worker.qos is not None]
            for group in self.node.router.filters.groups.values() if ready else ():
                for _, _, payload in group.messages():
                    assert self.waits_for_absent(payload), f"{payload!r} waits, and subscribers have room"
        places = self.places()
        assert not [payload for payload, count in places.items() if count > 1]
        for payload, qos in self.accepted.items():
            if payload in self.done:
                assert payload not in places, f"{payload!r} is done and still kept"
            else:
                assert payload in places, f"{payload!r} of QoS {qos} is lost"

    def waits_for_absent(self, payload: bytes) -> bool:
        """Whether another message with the key is with a subscriber without a connection."""
        if self.strategy == "rotation":
            return False
        of_key = self.keys[self.key_of[payload]]
        held = (self.last.get(other) for other in of_key if other not in self.done)
        absent = [worker for worker in self.workers.values() if worker.client is None]
        # A receiver may act on a message of QoS 2 only at PUBREL: the key is held until PUBCOMP.
        return any(one is not None and self.workers[one[0]].client is None for one in held) or any(
            other in of_key for worker in absent for other in worker.received.values()
        )

    def keeps_order(self, name: str, payload: bytes) -> None:
        """All earlier messages with the key are done, or this subscriber got them before."""
        who = (name, self.workers[name].session)
        key = self.key_of.get(payload)
        if self.strategy != "rotation" and key is not None and payload in self.accepted:
            for other in self.keys[key][self.keys[key].index(payload) + 1 :] if payload not in self.last else ():
                # another client's messages may have been sent later, and read before
                assert self.last.get(other) != who, f"{payload!r} is late"
            for other in self.keys[key][: self.keys[key].index(payload)]:
                own = any(other in worker.own for worker in self.workers.values())
                assert other in self.done or own or self.last.get(other) == who, f"{payload!r} passed {other!r}"
        self.last[payload] = who

    def pump(self) -> None:
        """Clients read all that has come."""
        taken = [(name, worker.client.take()) for name, worker in self.workers.items() if worker.client is not None]
        self.done |= {
            packet.payload
            for _, packets in taken
            for packet in packets
            if isinstance(packet, Publish) and packet.qos == 0
        }
        for name, packets in taken:
            worker = self.workers[name]
            for packet in packets:
                if isinstance(packet, Publish):
                    payload = packet.payload
                    who = (name, worker.session, packet.qos)
                    others = self.got.setdefault(payload, set()) - {who}
                    assert not any(qos == 2 for *_, qos in others), f"{payload!r} was sent to {others}, then to {who}"
                    self.got[payload].add(who)
                    self.keeps_order(name, payload)
                    if packet.qos:
                        worker.unanswered.append(packet)
                elif isinstance(packet, Pubrel):
                    worker.unanswered.append(packet)

    def gone(self, name: str) -> None:
        """The connection of a client has ended."""
        worker = self.workers[name]
        worker.client = None
        worker.unanswered.clear()
        if not worker.persistent:
            self.session_ended(name)

    def session_ended(self, name: str) -> None:
        worker = self.workers[name]
        for payload, who in self.got.items():
            if (name, worker.session, 2) in who:
                self.done.add(payload)  # QoS 2 that has begun goes to no other
        self.done |= worker.own
        worker.own.clear()
        worker.session += 1
        self.left(name)

    def left(self, name: str) -> None:
        self.workers[name].qos = None
        self.workers[name].received.clear()
        self.group_may_have_ended()

    def group_may_have_ended(self) -> None:
        if all(worker.qos is None for worker in self.workers.values()) and not self.is_declared:
            left = self.places()
            self.done |= {payload for payload in self.accepted if payload not in left}

    # ---- the declaration ----

    @rule()
    @precondition(lambda self: self.strategy == "rotation")  # a strategy has no publishers of the time before it
    def declare(self) -> None:
        self.is_declared = True
        settings = settings_of(declared(FILTER, {"strategy": self.strategy}).stored, self.node.turn.shared)
        self.node.router.filters.declare(self.node.turn, FILTER.encode(), settings)
        self.node.end_turn()
        self.node.run()
        self.pump()

    @rule()
    @precondition(lambda self: self.is_declared and self.strategy == "rotation")
    def declare_no_more(self) -> None:
        self.is_declared = False
        waited = self.node.router.filters.groups[FILTER.encode()].waiting
        dropped = self.node.router.filters.undeclare(FILTER.encode())
        subscribers = [worker for worker in self.workers.values() if worker.qos is not None]
        assert dropped == (0 if subscribers else waited)
        self.node.end_turn()
        self.node.run()
        self.pump()
        self.group_may_have_ended()

    # ---- clients ----

    def connect(self, name: str, *, clean_start: bool) -> None:
        worker = self.workers[name]
        if worker.persistent and clean_start:
            client = Client(self.node, name)
            client.connack()
            client.close()
            self.session_ended(name)
        properties: dict[str, Any] = {}
        if worker.level == 5:
            properties = {"receive_maximum": self.receive_maximum, "session_expiry_interval": 1000 * worker.persistent}
        worker.client = Client(
            self.node, name, level=worker.level, clean_start=not worker.persistent, properties=properties
        )
        worker.client.connack()
        self.pump()

    @rule(name=st.sampled_from(["p1", "p2", "c1", "c2"]), qos=st.integers(0, 2), clean=st.booleans())
    def come_or_subscribe(self, name: str, qos: int, clean: bool) -> None:
        worker = self.workers[name]
        if worker.client is None:
            self.connect(name, clean_start=clean)
        assert worker.client is not None
        worker.client.write(Subscribe(1, [(FILTER, qos)]))
        self.node.run()
        worker.client.read()
        assert any(isinstance(packet, Suback) for packet in worker.client.received)
        worker.qos = qos
        self.configure(self.node)
        self.pump()

    @rule(name=st.sampled_from(["p1", "p2", "c1", "c2"]), kindly=st.booleans())
    def go(self, name: str, kindly: bool) -> None:
        worker = self.workers[name]
        if worker.client is None:
            return
        if kindly:
            worker.client.send(Disconnect())
        worker.client.close()
        self.gone(name)
        self.pump()

    @rule(name=st.sampled_from(["p1", "p2", "c1", "c2"]))
    def unsubscribe(self, name: str) -> None:
        worker = self.workers[name]
        if worker.client is None or worker.qos is None:
            return
        worker.own |= {
            payload for payload, who in self.got.items() if any(one[:2] == (name, worker.session) for one in who)
        }
        worker.client.send(Unsubscribe(2, [FILTER]))
        self.left(name)
        self.pump()

    @rule(name=st.sampled_from(["p1", "p2", "c1", "c2"]), qos=st.integers(0, 2))
    def unsubscribe_and_subscribe(self, name: str, qos: int) -> None:
        worker = self.workers[name]
        if worker.client is not None and worker.qos is not None:
            self.unsubscribe(name)
            self.come_or_subscribe(name, qos, False)

    @rule(
        qos=st.integers(1, 2),
        count=st.sampled_from([1, 3, 8]),
        topic=st.sampled_from("tuv"),
        publisher=st.integers(0, 1),
        mixed=st.booleans(),
    )
    def publish(self, qos: int, count: int, topic: str, publisher: int, mixed: bool) -> None:
        client = self.publishers[publisher]
        for number in range(count):
            if mixed:
                qos = 1 + number % 2
                topic = "tuv"[number % 3]
            self.count += 1
            payload = b"%d" % self.count
            granted = [worker.qos for worker in self.workers.values() if worker.qos is not None]
            if self.is_declared or max(granted, default=0):
                self.accepted[payload] = qos
                key = topic if self.strategy == "topic" else str(publisher)
                self.keys.setdefault(key, []).append(payload)
                self.key_of[payload] = key
            client.send(Publish(topic, payload, qos, packet_id=1))
            if qos == 2:
                client.send(Pubrel(1))
            client.take()
        self.pump()

    def answer(self, worker: Worker) -> None:
        assert worker.client is not None
        packet = worker.unanswered.pop(0)
        if isinstance(packet, Pubrel):
            worker.received.pop(packet.packet_id, None)
            worker.client.send(Pubcomp(packet.packet_id))
        elif packet.qos == 1:
            self.done.add(packet.payload)
            worker.client.send(Puback(packet.packet_id))
        else:
            self.done.add(packet.payload)
            worker.received[packet.packet_id] = packet.payload
            worker.client.send(Pubrec(packet.packet_id))
        self.pump()

    @rule(name=st.sampled_from(["p1", "p2", "c1", "c2"]), times=st.sampled_from([1, 2, 10]))
    @precondition(lambda self: any(worker.unanswered for worker in self.workers.values()))
    def acknowledge(self, name: str, times: int) -> None:
        for _ in range(times):
            if self.workers[name].unanswered:
                self.answer(self.workers[name])

    # ---- the node ----

    @rule(seconds=st.sampled_from([1, GRACE]))
    def time_passes(self, seconds: int) -> None:
        self.node.advance(seconds * 4 + 1)
        self.pump()

    @rule()
    def compact_a_little(self) -> None:
        self.node.compaction.step()
        self.node.end_turn()
        self.node.run()

    @rule(back=st.integers(0, 30))
    @precondition(lambda self: self.durable and self.count > 3)
    def look_at_a_crash(self, back: int) -> None:
        """After any block the store has each message once, and the counts are right."""
        told = len(self.node.store.told) - back
        if told < 1:
            return
        copy = Node(KeepingStore(self.node.store.after(told)), smallest=0, shared=self.shared)
        places = places_of(copy)
        assert not [payload for payload, count in places.items() if count > 1]
        counts_are_right(copy)
        if not back:
            persistent = [name for name, worker in self.workers.items() if worker.persistent and worker.qos is not None]
            for payload in self.accepted.keys() - self.done if persistent or self.is_declared else ():
                # QoS 2 of a clean session that has begun ends with it
                begun = any(qos == 2 for _, _, qos in self.got.get(payload, ()))
                own = any(payload in worker.own for worker in self.workers.values())
                assert payload in places or begun or own, f"{payload!r} is lost in the store"
        for name in self.workers:
            if name.startswith("p"):
                Client(copy, name, clean_start=False).connack()
        counts_are_right(copy)
        copy.close()

    @rule()
    @precondition(lambda self: self.durable and self.count > 3)
    def restart(self) -> None:
        self.node.turn.seal()
        self.node.run()
        self.pump()
        store = self.node.store
        self.node.close()
        self.node = self.made(KeepingStore(store.after(len(store.told))))
        for name, worker in self.workers.items():
            if worker.client is not None:
                self.gone(name)
        for name, worker in self.workers.items():
            if worker.persistent and worker.qos is not None:
                assert (FILTER.encode(), worker.qos, 0) in self.node.router.filters.all_of(
                    self.node.sessions.get(name.encode())  # type: ignore[arg-type]
                )


class TestGroups(GroupMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck))


def test_subscribers_take_turns() -> None:
    node = Node()
    subscribers = [Client(node, f"m{number}") for number in range(3)]
    for subscriber in subscribers:
        subscriber.send(Subscribe(1, [("$share/g/t/#", 1)]))
        subscriber.take()
    publisher = Client(node, "p")
    for qos in (0, 1):
        for number in range(6):
            publisher.send(Publish("t/x", b"%d" % number, qos, packet_id=qos))
        found: list[list[Any]] = [[packet.payload for packet in subscriber.take()] for subscriber in subscribers]  # type: ignore[attr-defined]
        assert found == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]
        node.run()


def after_a_crash(node: Node) -> Node:
    """Another node with the content that the store has now."""
    return Node(KeepingStore(node.store.after(len(node.store.told))), shared={"window": 1})


def kept_group(**shared: Any) -> tuple[Node, Client]:
    """A node with a group that an absent persistent session keeps in the store, and a publisher."""
    node = Node(shared=shared)
    absent = Client(node, "absent", clean_start=False)
    absent.send(Subscribe(1, [(FILTER, 2)]))
    absent.close()
    return node, Client(node, "publisher")


def test_a_message_stays_with_the_group_while_receive_maximum_keeps_it_from_a_clean_session() -> None:
    """Also if the window is full of messages from another membership, or of no group."""
    node, publisher = kept_group(window=1)
    subscriber = Client(node, "subscriber", level=5, properties={"receive_maximum": 1})
    subscriber.send(Subscribe(1, [(FILTER, 1), ("own/#", 1)]))
    publisher.send(Publish("own/a", b"own", 1, packet_id=1))
    publisher.send(Publish("t", b"shared", 2, packet_id=2), Pubrel(2))
    assert places_of(after_a_crash(node))[b"shared"] == 1
    (own,) = [packet for packet in subscriber.take() if isinstance(packet, Publish)]
    subscriber.send(Puback(own.packet_id))
    assert [packet.payload for packet in subscriber.take() if isinstance(packet, Publish)] == [b"shared"]


def test_a_message_goes_back_to_the_group_if_the_window_is_full_once_the_store_has_that_it_was_given() -> None:
    node, publisher = kept_group(window=2)
    subscriber = Client(node, "subscriber", level=5, properties={"receive_maximum": 1})
    subscriber.send(Subscribe(1, [(FILTER, 2), ("own/#", 1)]))
    publisher.send(Publish("own/a", b"first", 1, packet_id=1))
    publisher.send(Publish("t", b"shared", 2, packet_id=2), Pubrel(2))
    node.auto = False
    subscriber.send(Puback(1))  # the group gives its message, and waits for the store
    publisher.send(Publish("own/a", b"second", 1, packet_id=1))
    assert node.unconfirmed
    node.auto = True
    node.confirm()
    node.run()
    assert places_of(after_a_crash(node))[b"shared"] == 1
    first, second = [packet for packet in subscriber.take() if isinstance(packet, Publish)]
    assert [first.payload, second.payload] == [b"first", b"second"]
    subscriber.send(Puback(second.packet_id))
    (shared,) = [packet for packet in subscriber.take() if isinstance(packet, Publish)]
    assert shared.payload == b"shared"
    subscriber.send(Pubrec(shared.packet_id))
    subscriber.send(Pubcomp(shared.packet_id))
    assert not places_of(after_a_crash(node))
    counts_are_right(node)


def test_a_client_that_reads_nothing_is_given_nothing_more() -> None:
    node, publisher = kept_group()
    slow = Client(node, "slow")
    slow.send(Subscribe(1, [(FILTER, 2)]))
    for number in range(20):
        publisher.send(Publish("t", b"%02d" % number + bytes(100_000), 2, packet_id=1), Pubrel(1))
    (group,) = node.router.filters.groups.values()
    assert 20 > group.waiting > 10
    assert places_of(after_a_crash(node)).total() == group.waiting
    quick = Client(node, "quick")
    quick.send(Subscribe(1, [(FILTER, 2)]))
    found = [packet.payload[:2] for packet in slow.take() + quick.take() if isinstance(packet, Publish)]
    assert sorted(found) == [b"%02d" % number for number in range(20)]
    counts_are_right(node)
