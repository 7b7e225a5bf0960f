"""paho-mqtt against a node, at all protocol levels."""

import queue
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE

# A client of another maker sees no difference between a store in memory and one on disk.
pytestmark = pytest.mark.parametrize("store", ["sqlite", "cluster"])

paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

LEVELS = pytest.mark.parametrize("level", [3, 4, 5])
SECONDS = 1000  # that a session of level 5 outlives its connection


def properties(packet: str, **named: Any) -> Any:
    """Properties of a packet, by paho's names for them."""
    found = paho.Properties(getattr(paho.PacketTypes, packet))
    for name, value in named.items():
        setattr(found, name, value)
    return found


class Paho:
    """A client with a thread of its own; what it is told comes out of queues."""

    def __init__(self, port: int, level: int, client_id: str, **options: Any) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        protocol = {3: paho.MQTTv31, 4: paho.MQTTv311, 5: paho.MQTTv5}[level]
        will = options.pop("will", None)
        connect = options.pop("connect", {})
        if level == 5:
            keeps = options.pop("clean_session", True) is False
            expiry = {"SessionExpiryInterval": SECONDS} if keeps else {}
            connect = {"clean_start": not keeps, "properties": properties("CONNECT", **expiry, **connect)}
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **options)
        if will:
            self.client.will_set(*will)
        self.client.on_connect = lambda _, __, flags, code, ___: self.answers.put((flags.session_present, code.value))
        self.client.on_subscribe = lambda _, __, ___, codes, ____: self.answers.put([code.value for code in codes])
        self.client.on_unsubscribe = lambda *_: self.answers.put("unsubscribed")
        self.client.on_message = lambda _, __, message: self.messages.put(message)
        self.client.connect("127.0.0.1", port, 60, **connect)
        self.client.loop_start()

    def answer(self) -> Any:
        return self.answers.get(timeout=DEADLINE)

    def message(self) -> tuple[str, bytes, int, bool]:
        message = self.messages.get(timeout=DEADLINE)
        return message.topic, message.payload, message.qos, message.retain

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False, **more: Any) -> None:
        self.client.publish(topic, payload, qos, retain, **more).wait_for_publish(DEADLINE)

    def die(self) -> None:
        """The connection goes without DISCONNECT."""
        self.client.socket().shutdown(2)
        self.client.loop_stop()

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def client(broker: Broker) -> Any:
    """Makes clients, which have connected when they are returned."""
    made: list[Paho] = []

    def make(level: int, client_id: str, present: bool = False, **options: Any) -> Paho:
        one = Paho(broker.port, level, client_id, **options)
        made.append(one)
        assert one.answer() == (present, 0)
        return one

    yield make
    for one in made:
        one.leave()


@LEVELS
def test_publish_and_subscribe_at_each_qos(client: Callable[..., Paho], level: int) -> None:
    one = client(level, "one")
    for granted in (0, 1, 2):
        one.client.subscribe([("t/+", granted), ("other", 0)])
        assert one.answer() == [granted, 0]
        for qos in (0, 1, 2):
            one.publish("t/a", b"%d" % qos, qos)
            assert one.message() == ("t/a", b"%d" % qos, min(qos, granted), False)
    one.client.unsubscribe("t/+")
    assert one.answer() == "unsubscribed"
    one.publish("t/a", b"unseen", 1)
    one.publish("other", b"seen", 1)
    assert one.message()[1] == b"seen"


@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_many_in_order(client: Callable[..., Paho], level: int, qos: int) -> None:
    one, two = client(level, "one"), client(level, "two")
    two.client.subscribe("many", qos)
    assert two.answer() == [qos]
    sent = [one.client.publish("many", b"%d" % n, qos) for n in range(2000)]
    assert [int(two.message()[1]) for _ in range(2000)] == list(range(2000))
    for each in sent:
        each.wait_for_publish(DEADLINE)


@LEVELS
def test_will_and_retained(client: Callable[..., Paho], level: int) -> None:
    watcher = client(level, "watcher")
    watcher.client.subscribe("will/#", 2)
    assert watcher.answer() == [2]
    client(level, "dies", will=("will/dies", b"gone", 2, True)).die()
    assert watcher.message() == ("will/dies", b"gone", 2, False)
    late = client(level, "late")
    late.client.subscribe("will/#", 1)
    assert late.answer() == [1]
    assert late.message() == ("will/dies", b"gone", 1, True)


@LEVELS
def test_a_persistent_session(client: Callable[..., Paho], level: int) -> None:
    first = client(level, "keeps", clean_session=False)
    first.client.subscribe("later", 2)
    assert first.answer() == [2]
    first.leave()
    other = client(level, "other")
    for n in range(50):
        other.publish("later", b"%d" % n, 2)
    second = client(level, "keeps", present=level > 3, clean_session=False)
    assert [int(second.message()[1]) for _ in range(50)] == list(range(50))


@LEVELS
def test_a_restart_of_the_node(broker: Broker, client: Callable[..., Paho], level: int, store: str) -> None:
    """The client comes back by itself; what the node had acknowledged is there."""
    if store == "memory":
        pytest.skip("keeps nothing")
    one = client(level, "one", clean_session=False)
    one.client.reconnect_delay_set(0.05, 0.1)
    one.client.subscribe("t", 2)
    assert one.answer() == [2]
    broker.kill()
    broker.start()
    assert one.answer() == (level > 3, 0)
    one.publish("t", b"still", 2)
    assert one.message() == ("t", b"still", 2, False)


def test_a_refused_client_id(broker: Broker) -> None:
    one = Paho(broker.port, 3, "x" * 24)
    try:
        assert one.answer()[1] != 0
        until(lambda: not one.client.is_connected())
    finally:
        one.leave()


def test_a_request_and_its_response(client: Callable[..., Paho]) -> None:
    """At level 5, with all properties of a message, user properties in order, and an alias."""
    asks, answers = client(5, "asks"), client(5, "answers")
    answers.client.subscribe("requests/+", 1)
    assert answers.answer() == [1]
    asks.client.subscribe("responses/asks", 1)
    assert asks.answer() == [1]
    request = properties(
        "PUBLISH",
        ResponseTopic="responses/asks",
        CorrelationData=b"\0\1",
        ContentType="text/plain",
        PayloadFormatIndicator=1,
        MessageExpiryInterval=100,
        UserProperty=[("b", "1"), ("a", "2"), ("b", "3")],
        TopicAlias=2,
    )
    for qos in (0, 1, 2):
        asks.publish("requests/1", b"?", qos, properties=request)
        found = answers.messages.get(timeout=DEADLINE)
        given = found.properties
        assert given.UserProperty == [("b", "1"), ("a", "2"), ("b", "3")]
        assert (given.ContentType, given.PayloadFormatIndicator) == ("text/plain", 1)
        assert 0 < given.MessageExpiryInterval <= 100
        back = properties("PUBLISH", CorrelationData=given.CorrelationData)
        answers.publish(given.ResponseTopic, b"!", qos, properties=back)
        assert asks.messages.get(timeout=DEADLINE).properties.CorrelationData == b"\0\1"
    asks.publish("", b"by alias", 1, properties=properties("PUBLISH", TopicAlias=2))
    assert answers.message() == ("requests/1", b"by alias", 1, False)


@pytest.mark.parametrize("qos", [1, 2])
def test_limits_of_a_client(client: Callable[..., Paho], qos: int) -> None:
    """Receive Maximum 1 and a Maximum Packet Size: one message at a time, and none that is too large."""
    small = client(5, "small", connect={"ReceiveMaximum": 1, "MaximumPacketSize": 128})
    small.client.subscribe("t", 2)
    assert small.answer() == [2]
    other = client(5, "other")
    for n in range(100):
        other.client.publish("t", b"%d" % n, qos)
        other.client.publish("t", b"x" * 200, qos)
    assert [int(small.message()[1]) for _ in range(100)] == list(range(100))
