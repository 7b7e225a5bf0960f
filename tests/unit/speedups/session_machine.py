"""The machine of test_session_machine.py: random clients of all levels, and the effects by the standard."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flockmq._speedups.base.tick import TICKS_PER_SECOND
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import (
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
from flockmq._speedups.codec.properties import encode_block
from flockmq._speedups.session import session_view
from flockmq._speedups.session.session import Session
from flockmq.broker.core.session_expiry import NEVER
from flockmq.broker.core.will import Will
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.model.topics import matches

NAMES = ["one", "two", "three"]
FILTERS = ["t/1", "t/+", "t/#", "#", "+/2", "t/2"]
TOPICS = ["t/1", "t/2", "u/2", "t"]
WILL_TOPICS = ["t/1", "kept/will"]
DISCONNECT_WITH_WILL = 0x04
PAYLOAD_FORMAT_INVALID = 0x99
DISTANT = 2_000_000_000_000  # milliseconds of the store's clock
WALL = [1_700_000_000_000]  # milliseconds of the wall clock, which goes with the clock of the node


def queue_of(session: Session) -> list[tuple[Any, ...]]:
    """The messages that the client has yet to acknowledge, without the fields that a restart may change."""
    return [
        (n, "pubrec" if state == "pubrec" else "publish", qos, retain, topic, payload)
        for n, state, qos, _, retain, topic, payload in session_view.entries(session)
    ]


def outlives(session: Session) -> bool:
    """Whether the session goes on without a connection."""
    return session.persistent and session.expiry != 0


def state_of(node: Node) -> dict[str, Any]:
    """All that must survive, in a form to compare."""
    router = node.router
    return {
        "sessions": {
            session.client_id: (
                queue_of(session),
                session.queue_length,
                session.queue_bytes,
                sorted(session_view.awaited(session)),
                sorted(router.filters.all_of(session)),
                session.expiry,
            )
            for session in node.sessions
            if outlives(session)
        },
        "retained": sorted(router.retained.matching(b"#")) + sorted(router.retained.matching(b"$x/#")),
    }


class LastWill(NamedTuple):
    """The will of a client."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay: int  # seconds


@dataclass
class Queued:
    """A message for a client."""

    number: int
    state: str  # "publish" or "pubrec"
    qos: int
    topic: str | None
    payload: bytes | None
    identifiers: list[int]
    properties: dict[str, Any]
    expires: int | None  # tick
    passed: bool = False  # sent on this connection, PUBLISH or PUBREL
    begun: bool = False  # may have been sent on any

    @property
    def size(self) -> int:
        """Bytes that count in the queue."""
        if self.topic is None or self.payload is None:
            return 0
        return len(self.topic) + len(self.payload) + len(encode_block(self.properties))


@dataclass
class Expected:
    """The model of one client and its session."""

    exists: bool = False
    interval: int = 0  # seconds that the session outlives its connection
    deadline: int | None = None  # tick at which the session ends, while it has no connection
    client: Client | None = None
    receive_maximum: int = 65_535
    largest: int = 1 << 30
    will: LastWill | None = None
    waiting_will: tuple[int, LastWill] | None = None  # of the connection before: due tick
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)  # QoS, identifier
    queue: list[Queued] = field(default_factory=list)
    next_number: int = 1
    received: set[int] = field(default_factory=set)  # on this connection
    last_received: int = 0  # of the PUBLISH packets
    awaited: dict[int, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def level(self) -> int:
        return 4 if self.client is None else self.client.level

    def entry(self, number: int) -> Queued:
        return next(entry for entry in self.queue if entry.number == number)


class SessionMachine(RuleBasedStateMachine):
    """Random clients do random correct things; after each, node and model hold the same, and so does a restart."""

    @initialize(window=st.sampled_from([1, 3, 100]))
    def begin(self, window: int) -> None:
        WALL[0] = 1_700_000_000_000
        self.clock = 0
        self.limits = {"max_inflight": window}
        self.node = Node(smallest=0, **self.limits)
        self.publisher = Client(self.node, "publisher", level=5)
        self.publisher.take()
        self.clients = {name: Expected() for name in NAMES}
        self.retained: dict[str, bytes] = {}
        self.count = 0
        for name, granted in (("one", 1), ("two", 2)):  # so that little of a run is spent on getting somewhere
            self.connect(name, False, 5 - granted, None, NEVER, 65_535, 0)
            self.subscribe_one(self.clients[name], "t/#", granted, 0)

    # ---- the model ----

    def publish_to_model(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: dict[str, Any] | None = None,
        expiry: int | None = None,
    ) -> None:
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        expires = None if expiry is None else self.clock + expiry * TICKS_PER_SECOND + 1
        for one in self.clients.values():
            matching = [found for name, found in one.subscriptions.items() if matches(name, topic)]
            granted = min(qos, max((found[0] for found in matching), default=0))
            if one.exists and granted:
                identifiers = sorted(identifier for _, identifier in matching if identifier)
                one.queue.append(
                    Queued(one.next_number, "publish", granted, topic, payload, identifiers, properties or {}, expires)
                )
                one.next_number += 1
        self.pump_all()

    def packet_size(self, entry: Queued) -> int:
        """Bytes of the message as a PUBLISH of level 5."""
        properties = dict(entry.properties)
        if entry.expires is not None:
            properties["message_expiry_interval"] = 1
        if entry.identifiers:
            properties["subscription_identifier"] = entry.identifiers
        assert entry.topic is not None and entry.payload is not None
        return len(encode(Publish(entry.topic, entry.payload, entry.qos, False, False, 1, properties), 5))

    def pump_all(self) -> None:
        """The messages that the node sends by itself: as many as the windows allow, in order."""
        for one in self.clients.values():
            if one.client is None:
                continue
            window = min(self.limits["max_inflight"], one.receive_maximum)
            if one.level == 5:
                for entry in one.queue:
                    entry.passed |= entry.state == "pubrec"  # PUBREL doesn't wait [5: MQTT-3.3.4-10]
            for entry in list(one.queue):
                if entry.passed:
                    continue
                if sum(other.passed for other in one.queue) >= window:
                    break
                expired = entry.expires is not None and entry.expires <= self.clock and not entry.begun
                large = one.level == 5 and entry.state == "publish" and self.packet_size(entry) > one.largest
                if entry.state == "publish" and (expired or large):
                    one.queue.remove(entry)  # [5: MQTT-3.3.2-5] [5: MQTT-3.1.2-25]
                else:
                    entry.passed = entry.begun = True

    def read(self, one: Expected) -> list[Any]:
        """Take what has come to a client, hold it against the model; returns what is not PUBLISH or PUBREL."""
        others: list[Any] = []
        assert one.client is not None
        for packet in one.client.take():
            if isinstance(packet, Publish):
                if packet.qos:
                    self.check_message(one, packet)
            elif isinstance(packet, Pubrel):
                assert one.entry(packet.packet_id).state == "pubrec"
                one.received.add(packet.packet_id)
            else:
                others.append(packet)
        assert not one.client.ended
        return others

    def check_message(self, one: Expected, packet: Publish) -> None:
        entry = one.entry(packet.packet_id)
        assert (entry.state, entry.qos) == ("publish", packet.qos)
        assert (entry.topic, entry.payload) == (packet.topic_name, packet.payload)
        assert one.client is not None
        properties = dict(packet.properties)
        if one.level == 5:
            assert sorted(properties.pop("subscription_identifier", [])) == entry.identifiers
            interval = properties.pop("message_expiry_interval", None)
            assert (interval is None) == (entry.expires is None)
            if interval is not None and entry.expires is not None:
                least = max(1, (entry.expires + 1 - self.clock) // TICKS_PER_SECOND)
                assert interval == least
            assert properties == entry.properties
            assert len(encode(packet, 5)) <= one.largest
        else:
            assert properties == {}
        if packet.packet_id in one.received:  # after a while level 3 sends all again
            assert one.level == 3
            assert packet.dup
            one.received = {number for number in one.received if number < packet.packet_id}
            one.last_received = packet.packet_id - 1
        assert packet.packet_id > one.last_received  # in order
        assert packet.dup or packet.packet_id not in self.sent_before[one.client], "redelivered without DUP"
        one.received.add(packet.packet_id)
        one.last_received = packet.packet_id

    def ended(self, one: Expected) -> None:
        """The connection of a client is gone."""
        one.client = None
        one.received, one.last_received = set(), 0
        for entry in one.queue:
            entry.passed = False
        if one.interval == 0:
            self.forget(one)
        else:
            one.deadline = self.after(one.interval)
        found, one.will = one.will, None
        if found is None:
            return
        if found.delay and one.exists:
            one.waiting_will = self.after(min(found.delay, one.interval)) or 0, found
        else:
            self.publish_to_model(*found[:4])

    def after(self, seconds: int) -> int | None:
        return None if seconds == NEVER else self.clock + seconds * TICKS_PER_SECOND + 1

    def forget(self, one: Expected) -> None:
        """The session ends; a will that waits for that is published."""
        one.exists, one.deadline = False, None
        one.subscriptions, one.queue, one.next_number, one.awaited = {}, [], 1, {}
        self.publish_waiting_will(one)

    def publish_waiting_will(self, one: Expected) -> None:
        found, one.waiting_will = one.waiting_will, None
        if found is not None:
            self.publish_to_model(*found[1][:4])

    # ---- what clients do ----

    @rule(
        name=st.sampled_from(NAMES),
        clean=st.booleans(),
        level=st.sampled_from([3, 4, 5, 5]),
        will=st.none()
        | st.tuples(st.sampled_from(WILL_TOPICS), st.integers(0, 2), st.booleans(), st.sampled_from([0, 0, 3])),
        interval=st.sampled_from([0, 2, 100, NEVER, NEVER]),
        receive_maximum=st.sampled_from([1, 2, 65_535]),
        largest=st.sampled_from([0, 0, 35]),
    )
    def connect(
        self,
        name: str,
        clean: bool,
        level: int,
        will: tuple[str, int, bool, int] | None,
        interval: int,
        receive_maximum: int,
        largest: int,
    ) -> None:
        one = self.clients[name]
        fields: dict[str, Any] = {}
        if level < 5:
            interval, receive_maximum, largest = 0 if clean else NEVER, 65_535, 0
            will = will and (*will[:3], 0)
        else:
            fields["properties"] = {"session_expiry_interval": interval, "receive_maximum": receive_maximum}
            if largest:
                fields["properties"]["maximum_packet_size"] = largest
        last_will = None
        if will is not None:
            self.count += 1
            last_will = LastWill(will[0], b"will %d" % self.count, *will[1:])
            fields |= {"will_topic": will[0], "will_qos": will[1], "will_retain": will[2]}
            fields |= {"will_payload": last_will.payload}
            fields |= {"will_properties": {"will_delay_interval": last_will.delay} if last_will.delay else {}}
        client = Client(self.node, name, level=level, clean_start=clean, **fields)
        if one.client is not None:  # taken over
            self.ended(one)
        if clean:
            self.forget(one)
        one.waiting_will = None  # [5: MQTT-3.1.3-9]
        answer = client.connack()
        assert answer.reason_code == 0
        assert answer.session_present == (one.exists and level > 3)
        one.client, one.exists, one.interval, one.deadline, one.will = client, True, interval, None, last_will
        one.receive_maximum, one.largest = receive_maximum, largest or 1 << 30
        self.sent_before = getattr(self, "sent_before", {})
        self.sent_before[client] = {entry.number for entry in one.queue if entry.begun}
        self.pump_all()
        assert self.read(one) == []

    def pick(self, data: Any, condition: Any) -> Expected | None:
        some = [one for one in self.clients.values() if one.client is not None and condition(one)]
        return data.draw(st.sampled_from(some)) if some else None

    def connected(self) -> bool:
        return any(one.client is not None for one in self.clients.values())

    @rule(data=st.data(), politely=st.booleans(), with_will=st.booleans(), interval=st.sampled_from([None, 0, 1, 50]))
    @precondition(connected)
    def disconnect(self, data: Any, politely: bool, with_will: bool, interval: int | None) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        if politely:
            code, properties = 0, {}
            if one.level == 5 and with_will:
                code = DISCONNECT_WITH_WILL
            if one.level == 5 and interval is not None and (one.interval or not interval):
                properties = {"session_expiry_interval": interval}
                one.interval = interval
            one.client.send(Disconnect(code, properties))
            if code == 0:
                one.will = None
        one.client.close()
        self.ended(one)

    @rule(
        data=st.data(),
        name=st.sampled_from(FILTERS),
        qos=st.integers(0, 2),
        identifier=st.sampled_from([0, 0, 1, 128]),
    )
    @precondition(connected)
    def subscribe(self, data: Any, name: str, qos: int, identifier: int) -> None:
        one = self.pick(data, lambda one: True)
        # Retained messages would come in an order of the tree's: they are tested elsewhere.
        if one is not None and not any(matches(name, topic) for topic in self.retained):
            self.subscribe_one(one, name, qos, identifier)

    def subscribe_one(self, one: Expected, name: str, qos: int, identifier: int) -> None:
        assert one.client is not None
        identifier = identifier if one.level == 5 else 0
        properties = {"subscription_identifier": identifier} if identifier else {}
        one.client.send(Subscribe(9, [(name, qos)], properties))
        assert [type(packet) for packet in self.read(one)] == [Suback]
        one.subscriptions[name] = qos, identifier

    @rule(data=st.data(), name=st.sampled_from(FILTERS))
    @precondition(connected)
    def unsubscribe(self, data: Any, name: str) -> None:
        one = self.pick(data, lambda one: True)
        if one is None or one.client is None:
            return
        one.client.send(Unsubscribe(packet_id=9, topic_filters=[name]))
        assert [type(packet) for packet in self.read(one)] == [Unsuback]
        one.subscriptions.pop(name, None)

    @rule(
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 1),
        times=st.sampled_from([1, 1, 5]),
        expiry=st.sampled_from([None, None, 1, 30]),
        properties=st.sampled_from([{}, {"user_property": [("k", "v")]}, {"content_type": "rather long"}]),
    )
    def publish(self, topic: str, qos: int, times: int, expiry: int | None, properties: dict[str, Any]) -> None:
        sent = properties if expiry is None else {**properties, "message_expiry_interval": expiry}
        for _ in range(times):
            self.count += 1
            payload = b"message %d" % self.count
            self.publisher.send(Publish(topic, payload, qos, packet_id=1 if qos else 0, properties=sent))
            assert len(self.publisher.take()) == qos
            self.publish_to_model(topic, payload, qos, False, properties, expiry)

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
        known = packet_id in one.awaited
        if known:
            topic, payload = one.awaited.pop(packet_id)
            self.publish_to_model(topic, payload, 2, False)
        (answer,) = self.read(one)
        assert answer == Pubcomp(packet_id, 0 if known or one.level < 5 else 0x92)

    @rule(data=st.data(), times=st.sampled_from([1, 2, 10]), newest=st.booleans(), refused=st.booleans())
    @precondition(lambda self: any(one.client is not None and one.received for one in self.clients.values()))
    def acknowledge(self, data: Any, times: int, newest: bool, refused: bool) -> None:
        one = self.pick(data, lambda one: one.received)
        assert one is not None
        assert one.client is not None
        code = PAYLOAD_FORMAT_INVALID if refused and one.level == 5 else 0
        for _ in range(times):
            if not one.received:
                return
            entry = one.entry(max(one.received) if newest else min(one.received))
            number = entry.number
            if entry.state == "publish" and entry.qos == 2 and not code:
                one.client.send(Pubrec(number))
                entry.state, entry.topic, entry.payload, entry.expires = "pubrec", None, None, None
            else:
                kind: Any = Pubcomp if entry.state == "pubrec" else Puback if entry.qos == 1 else Pubrec
                one.client.send(kind(number, 0 if entry.state == "pubrec" else code))
                one.queue.remove(entry)
                one.received.discard(number)
            self.pump_all()
            assert self.read(one) == []

    # ---- what the node goes through ----

    @rule()
    def compact_a_little(self) -> None:
        self.node.compaction.step()
        self.node.end_turn()
        self.node.run()

    @rule(ticks=st.sampled_from([1, 4, 25]))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.clock += 1
            WALL[0] += 1000 // TICKS_PER_SECOND
            self.node.advance(1)
            due = [(one.waiting_will[0], name) for name, one in self.clients.items() if one.waiting_will]
            for deadline, name in sorted(due):
                if deadline <= self.clock:
                    self.publish_waiting_will(self.clients[name])
            over = [(one.deadline, name) for name, one in self.clients.items() if one.deadline is not None]
            for deadline, name in sorted(over):
                if deadline <= self.clock:
                    self.forget(self.clients[name])

    @rule()
    @precondition(lambda self: self.count > 3)
    def restart(self) -> None:
        for one in self.clients.values():
            if one.client is not None:
                self.read(one)
        self.node.turn.seal()
        self.node.run()
        before = state_of(self.node)
        store, left = self.node.store, self.ticks_to(DISTANT)
        self.node.close()
        self.node = Node(KeepingStore(store.after(len(store.told))), smallest=0, **self.limits)
        self.delay_all(self.ticks_to(DISTANT) - left)
        if not any(one.will for one in self.clients.values()):
            assert state_of(self.node) == before
        wills = {}
        for name, one in self.clients.items():
            if one.will is not None or one.waiting_will is not None:
                wills[name] = one
            if one.client is None:
                continue
            one.client.socket.close()
            for entry in one.queue:
                entry.begun = True  # acknowledgements that are stored late may have released any
            one.will, kept = None, one.will
            self.ended(one)
            one.will = kept
        assert self.node.wills.keys() == {name.encode() for name in wills}
        for client_id in self.node.wills:  # in the order of the store
            one = wills[client_id.decode()]
            found, one.will = one.will, None
            if found is not None and found.delay and one.exists:
                one.waiting_will = self.after(min(found.delay, one.interval)) or 0, found
            elif found is not None:
                self.publish_to_model(*found[:4])
        self.publisher = Client(self.node, "publisher", level=5)
        self.publisher.take()

    def ticks_to(self, deadline: int) -> int:
        """Until this time of the store's clock, in milliseconds."""
        return self.node.turn.journal.clock_of(deadline) - self.node.turn.clock

    def delay_all(self, ticks: int) -> None:
        """A restart has taken no time here; the store's clock may lose a tick by it, so that nothing ends early."""
        assert ticks in (0, 1)
        for one in self.clients.values():
            if one.deadline is not None:
                one.deadline += ticks
            if one.waiting_will and one.waiting_will[0]:
                one.waiting_will = one.waiting_will[0] + ticks, one.waiting_will[1]
            for entry in one.queue:
                if entry.expires is not None:
                    entry.expires += ticks

    # ---- what always holds ----

    @invariant()
    def node_and_model_hold_the_same(self) -> None:
        if not hasattr(self, "node"):
            return
        turn = self.node.turn
        sessions = list(self.node.sessions)
        assert turn.queued == sum(session.queue_length for session in sessions)
        assert turn.queued_bytes == sum(session.queue_bytes for session in sessions)
        sent = sum(entry[1] != "waiting" for session in sessions for entry in session_view.entries(session))
        assert 0 <= turn.inflight <= sent
        for name, one in self.clients.items():
            session = self.node.sessions.get(name.encode())
            assert (session is not None) == one.exists
            if session is not None:
                self.check_session(one, session)
        router = self.node.router
        retained = [*router.retained.matching(b"#"), *router.retained.matching(b"$x/#")]
        assert {topic.decode(): payload for topic, payload, _ in retained} == self.retained

    def check_session(self, one: Expected, session: Session) -> None:
        if one.client is not None:
            self.read(one)
            # The window is used, and no more: all that may be with the client is.
            assert one.received == {entry.number for entry in one.queue if entry.passed}
        wanted = [
            (entry.number, entry.state, entry.qos, False, entry.topic and entry.topic.encode(), entry.payload)
            for entry in one.queue
        ]
        assert queue_of(session) == wanted
        assert session.queue_length == len(wanted)
        assert session.queue_bytes == sum(entry.size for entry in one.queue)
        assert sorted(session_view.awaited(session)) == sorted(
            (packet_id, topic.encode(), payload) for packet_id, (topic, payload) in one.awaited.items()
        )
        assert sorted(self.node.router.filters.all_of(session)) == sorted(
            (name.encode(), qos, identifier) for name, (qos, identifier) in one.subscriptions.items()
        )

    @invariant()
    def a_restart_now_would_give_the_same(self) -> None:
        if not hasattr(self, "node"):
            return
        self.node.turn.seal()
        self.node.run()
        store = self.node.store
        copy = Node(KeepingStore(store.after(len(store.told))), **self.limits)
        copy.close()
        wills = {}
        for name, one in self.clients.items():
            found = one.will or (one.waiting_will and one.waiting_will[1])
            if found:
                wills[name.encode()] = Will(
                    found.topic.encode(), found.payload, found.qos, found.retain, delay=found.delay
                )
        assert copy.wills == wills
        if not wills:
            assert state_of(copy) == state_of(self.node)
        for name, one in self.clients.items():
            session = copy.sessions.get(name.encode())
            if session is not None:
                begun = {entry.number for entry in one.queue if entry.begun}
                for number, state, _, dup, *_ in session_view.entries(session):
                    if state != "pubrec" and number in begun:
                        assert dup, "it would be redelivered without DUP"

    def teardown(self) -> None:
        if hasattr(self, "node"):
            assert self.node.counted("malformed_packets") == 0
            self.node.close()
