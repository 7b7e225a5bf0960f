"""A client of paho-mqtt with its thread, and exchanges of MQTT 5.0 that are the same over every transport."""

import queue
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.deadline import DEADLINE

paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

SECONDS = 1000  # that a session of level 5 outlives its connection


def properties(packet: str, **named: Any) -> Any:
    """Properties of a packet, by paho's names for them."""
    found = paho.Properties(getattr(paho.PacketTypes, packet))
    for name, value in named.items():
        setattr(found, name, value)
    return found


class Paho:
    """A client with its thread; its messages and answers come out of queues.

    Args:
        port: of the node.
        level: of the protocol: 3, 4 or 5.
        client_id: of the client.
        scheme: mqtt, mqtts, ws or wss.
        authority: PEM file of the authority to trust, with TLS.
        options: `will`, arguments of `will_set`; `connect`, properties of CONNECT; and the options of paho's Client.
    """

    def __init__(
        self, port: int, level: int, client_id: str, scheme: str = "mqtt", authority: str = "", **options: Any
    ) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        protocol = {3: paho.MQTTv31, 4: paho.MQTTv311, 5: paho.MQTTv5}[level]
        will = options.pop("will", None)
        connect = options.pop("connect", {})
        if level == 5:
            keeps = options.pop("clean_session", True) is False
            expiry = {"SessionExpiryInterval": SECONDS} if keeps else {}
            connect = {"clean_start": not keeps, "properties": properties("CONNECT", **expiry, **connect)}
        transport = "websockets" if scheme.startswith("ws") else "tcp"
        api = paho.CallbackAPIVersion.VERSION2
        self.client = paho.Client(api, client_id, protocol=protocol, transport=transport, **options)
        if scheme in ("mqtts", "wss"):
            self.client.tls_set(ca_certs=authority)
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


def request_and_response(client: Callable[..., Paho], prefix: str = "") -> None:
    """With all properties of a message, user properties in order, and an alias.

    Args:
        client: makes a client, of a level and a client id.
        prefix: of all names, so that a node can be used more than once.
    """
    asks, answers = client(5, f"{prefix}asks"), client(5, f"{prefix}answers")
    answers.client.subscribe(f"{prefix}requests/+", 1)
    assert answers.answer() == [1]
    asks.client.subscribe(f"{prefix}responses/asks", 1)
    assert asks.answer() == [1]
    request = properties(
        "PUBLISH",
        ResponseTopic=f"{prefix}responses/asks",
        CorrelationData=b"\0\1",
        ContentType="text/plain",
        PayloadFormatIndicator=1,
        MessageExpiryInterval=100,
        UserProperty=[("b", "1"), ("a", "2"), ("b", "3")],
        TopicAlias=2,
    )
    for qos in (0, 1, 2):
        asks.publish(f"{prefix}requests/1", b"?", qos, properties=request)
        given = answers.messages.get(timeout=DEADLINE).properties
        assert given.UserProperty == [("b", "1"), ("a", "2"), ("b", "3")]
        assert (given.ContentType, given.PayloadFormatIndicator) == ("text/plain", 1)
        assert 0 < given.MessageExpiryInterval <= 100
        back = properties("PUBLISH", CorrelationData=given.CorrelationData)
        answers.publish(given.ResponseTopic, b"!", qos, properties=back)
        assert asks.messages.get(timeout=DEADLINE).properties.CorrelationData == b"\0\1"
    asks.publish("", b"by alias", 1, properties=properties("PUBLISH", TopicAlias=2))
    assert answers.message() == (f"{prefix}requests/1", b"by alias", 1, False)


def limits_of_a_client(client: Callable[..., Paho], qos: int, prefix: str = "") -> None:
    """Receive Maximum 1 and a Maximum Packet Size: one message at a time, and none that is too large."""
    limits = {"ReceiveMaximum": 1, "MaximumPacketSize": 128}
    small, other = client(5, f"{prefix}small", connect=limits), client(5, f"{prefix}other")
    small.client.subscribe(f"{prefix}t", 2)
    assert small.answer() == [2]
    for n in range(100):
        other.client.publish(f"{prefix}t", b"%d" % n, qos)
        other.client.publish(f"{prefix}t", b"x" * 200, qos)
    assert [int(small.message()[1]) for _ in range(100)] == list(range(100))
