"""The subscribers that get a message, and its form, at level 5: random subscriptions against the standard's rules.

QoS, RETAIN and subscription identifiers for each pair of publisher and receiver; retained messages for each Retain
Handling. Plans that were kept from before a change are asked for again, since the topics are few.
"""

from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from flockmq._speedups.codec.packets import (
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
from tests.harness.inprocess import Client, Node
from tests.model.topics import matches

LEVELS = [5, 5, 5, 4]  # of the clients
FILTERS = ["a/b", "a/+", "a/#", "#", "+/b", "+", "$x/#"]
TOPICS = ["a/b", "a", "c/b", "$x/a"]
NO_MATCHING_SUBSCRIBERS, NO_SUBSCRIPTION_EXISTED = 0x10, 0x11
SENT_AS_IT_IS: list[dict[str, Any]] = [
    {},
    {"user_property": [("b", "1"), ("a", "2"), ("b", "1")]},
    {"payload_format_indicator": 1, "content_type": "t", "response_topic": "r", "correlation_data": b"\xff\0"},
]


class Subscription(NamedTuple):
    """The model of one."""

    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int


class Delivery(NamedTuple):
    """A message as a client gets it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    properties: str  # all others, in a form to compare


def delivery_of(packet: Publish) -> Delivery:
    properties = dict(packet.properties)
    identifiers = tuple(sorted(properties.pop("subscription_identifier", ())))
    return Delivery(packet.topic_name, packet.payload, packet.qos, packet.retain, identifiers, repr(properties))


class PlanMachine(RuleBasedStateMachine):
    """Clients subscribe with options and publish; each message is with each of them as the model has it."""

    @initialize()
    def begin(self) -> None:
        self.node = Node()
        self.clients = [Client(self.node, f"client {n}", level=level) for n, level in enumerate(LEVELS)]
        for client in self.clients:
            client.connack()
        self.subscriptions: list[dict[str, Subscription]] = [{} for _ in self.clients]
        self.aliases: list[dict[int, str]] = [{} for _ in self.clients]
        self.retained: dict[str, tuple[bytes, int, dict[str, Any]]] = {}
        self.count = 0

    # ---- the model ----

    def delivery(self, receiver: int, publisher: int, message: Publish) -> Delivery | None:
        """The form of a live message on its way."""
        matching = [one for name, one in self.subscriptions[receiver].items() if matches(name, message.topic_name)]
        if receiver == publisher:
            matching = [one for one in matching if not one.no_local]  # [5: MQTT-3.8.3-3]
        if not matching:
            return None
        qos = min(message.qos, max(one.qos for one in matching))  # [5: MQTT-3.3.4-2]
        if LEVELS[receiver] < 5:
            return Delivery(message.topic_name, message.payload, qos, False, (), "{}")
        retain = message.retain and any(one.retain_as_published for one in matching)  # [5: MQTT-3.3.1-12, 13]
        identifiers = tuple(sorted(one.identifier for one in matching if one.identifier))  # [5: MQTT-3.3.4-4]
        properties = {name: value for name, value in message.properties.items() if name != "topic_alias"}
        return Delivery(message.topic_name, message.payload, qos, retain, identifiers, repr(properties))

    def retained_delivery(self, receiver: int, topic: str, one: Subscription) -> Delivery:
        payload, qos, properties = self.retained[topic]
        if LEVELS[receiver] < 5:
            return Delivery(topic, payload, min(qos, one.qos), True, (), "{}")
        identifiers = (one.identifier,) if one.identifier else ()
        return Delivery(topic, payload, min(qos, one.qos), True, identifiers, repr(properties))

    def take(self, receiver: int) -> tuple[list[Delivery], list[Any]]:
        """All messages that a client has got, which it acknowledges, and all else."""
        client = self.clients[receiver]
        deliveries: list[Delivery] = []
        others: list[Any] = []
        for packet in client.take():
            if not isinstance(packet, Publish):
                others.append(packet)
                continue
            deliveries.append(delivery_of(packet))
            if packet.qos == 1:
                client.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                client.send(Pubrec(packet.packet_id))
                released = [other for other in client.take() if isinstance(other, Pubrel)]
                assert [one.packet_id for one in released] == [packet.packet_id]
                client.send(Pubcomp(packet.packet_id))
        assert not client.ended
        return deliveries, others

    # ---- what clients do ----

    @rule(
        n=st.integers(0, len(LEVELS) - 1),
        names=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        retain_as_published=st.booleans(),
        handling=st.integers(0, 2),
        identifier=st.sampled_from([0, 0, 1, 2, 127, 128, 268_435_455]),
    )
    def subscribe(
        self,
        n: int,
        names: list[str],
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        handling: int,
        identifier: int,
    ) -> None:
        if LEVELS[n] < 5:
            no_local, retain_as_published, handling, identifier = False, False, 0, 0
        one = Subscription(qos, no_local, retain_as_published, identifier)
        options = qos | no_local << 2 | retain_as_published << 3 | handling << 4
        wanted: list[Delivery] = []
        for name in names:
            is_new = name not in self.subscriptions[n]
            if handling == 0 or (handling == 1 and is_new):  # [5: MQTT-3.3.1-9..11]
                wanted += [self.retained_delivery(n, topic, one) for topic in self.retained if matches(name, topic)]
            self.subscriptions[n][name] = one
        properties = {"subscription_identifier": identifier} if identifier else {}
        self.clients[n].send(Subscribe(7, [(name, options) for name in names], properties))
        deliveries, others = self.take(n)
        assert others == [Suback(7, [qos] * len(names))]
        assert sorted(deliveries) == sorted(wanted)

    @rule(n=st.integers(0, len(LEVELS) - 1), name=st.sampled_from(FILTERS))
    def unsubscribe(self, n: int, name: str) -> None:
        known = self.subscriptions[n].pop(name, None) is not None
        self.clients[n].send(Unsubscribe(7, [name]))
        codes = [0 if known else NO_SUBSCRIPTION_EXISTED] if LEVELS[n] == 5 else []
        assert self.take(n) == ([], [Unsuback(7, codes)])

    @rule(
        n=st.integers(0, len(LEVELS) - 1),
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        retain=st.sampled_from([False, False, True]),
        empty=st.sampled_from([False, False, False, True]),
        properties=st.sampled_from(SENT_AS_IT_IS),
        alias=st.sampled_from([0, 0, 1, 2, 16]),
    )
    def publish(
        self, n: int, topic: str, qos: int, retain: bool, empty: bool, properties: dict[str, Any], alias: int
    ) -> None:
        self.count += 1
        payload = b"" if empty else b"message %d" % self.count
        if LEVELS[n] < 5:
            properties, alias = {}, 0
        message = Publish(topic, payload, qos, retain, False, 9 if qos else 0, properties)
        wire_topic, wire_properties = topic, dict(properties)
        if alias:
            wire_topic = "" if self.aliases[n].get(alias) == topic else topic
            self.aliases[n][alias] = topic
            wire_properties = {**properties, "topic_alias": alias}
        self.clients[n].send(Publish(wire_topic, payload, qos, retain, False, message.packet_id, wire_properties))
        if qos == 2:
            self.clients[n].send(Pubrel(9))
        wanted = [self.delivery(receiver, n, message) for receiver in range(len(LEVELS))]
        for receiver, delivery in enumerate(wanted):
            deliveries, others = self.take(receiver)
            assert deliveries == ([] if delivery is None else [delivery]), (receiver, n)
            answers: list[Any] = [Pubrec(9), Pubcomp(9)]
            if qos == 1:
                alone = LEVELS[n] == 5 and not any(wanted)
                answers = [Puback(9, NO_MATCHING_SUBSCRIBERS if alone else 0)]
            assert others == (answers if qos and receiver == n else [])
        if retain and empty:
            self.retained.pop(topic, None)
        elif retain:
            self.retained[topic] = (payload, qos, properties)

    def teardown(self) -> None:
        if hasattr(self, "node"):
            assert self.node.counted("malformed_packets") == 0
            self.node.close()


class TestPlans(PlanMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=150, stateful_step_count=40, suppress_health_check=list(HealthCheck))
