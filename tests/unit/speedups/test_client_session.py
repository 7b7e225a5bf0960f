"""The client's side of a session, packet by packet, without a socket."""

import pytest

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.errors import InvalidPacket
from flockmq._speedups.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
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
from flockmq._speedups.protocol.client_events import (
    PACKET_TOO_LARGE,
    Accepted,
    Acknowledged,
    Disconnected,
    PacketIdsExhausted,
    ProtocolViolation,
    Refused,
    Subscribed,
    Unsubscribed,
)
from flockmq._speedups.protocol.client_session import ClientSession, ConnectOptions, Will


class Broker:
    """The other end: the session's bytes, as packets."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.level = session.options.level
        self.decoder = Decoder(self.level)
        self.now = 0.0

    def connect(self, *, session_present: bool = False, **properties: int) -> list[Packet]:
        """Begin a connection and accept it; returns what is sent after CONNECT."""
        self.decoder = Decoder(self.level)
        self.session.connect()
        assert isinstance(self.sent()[0], Connect)
        connack = Connack(session_present, properties=properties)
        assert self.session.feed(encode(connack, self.level))[0] == Accepted(session_present, properties)
        return self.sent()

    def sent(self) -> list[Packet]:
        """The packets that have been sent since the last look."""
        return self.decoder.feed(self.session.take_output(self.now))

    def publishes(self) -> list[Publish]:
        """The same, where it is nothing but PUBLISH."""
        sent = self.sent()
        assert all(isinstance(packet, Publish) for packet in sent)
        return sent  # type: ignore[return-value]

    def send(self, *packets: Packet) -> list[object]:
        """Send packets, a byte at a time; returns what happened."""
        data = b"".join(encode(packet, self.level) for packet in packets)
        return [event for byte in data for event in self.session.feed(bytes([byte]))]


@pytest.fixture
def broker() -> Broker:
    return Broker(ClientSession(ConnectOptions("c", clean_start=False), mark_resent=lambda payload: payload + b"!"))


def test_connect_says_all_there_is_to_say() -> None:
    will = Will("w", b"gone", 1, True)
    options = ConnectOptions("id", clean_start=False, keep_alive=7, will=will, username="u", password=b"p")
    session = ClientSession(options)
    session.connect()
    (packet,) = Decoder(4).feed(session.take_output(0.0))
    expected = Connect("id", False, 7, "u", b"p", "w", b"gone", 1, True)
    assert encode(packet, 4) == encode(expected, 4)


def test_refusal_in_words(broker: Broker) -> None:
    broker.session.connect()
    assert broker.send(Connack(False, 3)) == [Refused(3, "server unavailable")]


@pytest.mark.parametrize(
    ("packets", "reason"),
    [
        ([Publish("a")], "PUBLISH before CONNACK"),
        ([Connack(), Connack()], "CONNACK after CONNACK"),
        ([Connack(), Disconnect()], "sent DISCONNECT"),
        ([Connack(), Subscribe(1, [("a", 0)])], "sent SUBSCRIBE"),
        ([Connack(), b"\xff\xff\xff\xff\xff"], "broke the protocol"),
    ],
)
def test_what_a_broker_may_not_send(packets: list[Packet | bytes], reason: str) -> None:
    session = ClientSession(ConnectOptions("c"))
    session.connect()
    data = b"".join(packet if isinstance(packet, bytes) else encode(packet, 4) for packet in packets)
    with pytest.raises(ProtocolViolation, match=reason):
        session.feed(data)


def test_subscribe_and_ping(broker: Broker) -> None:
    broker.connect()
    broker.session.subscribe([("a/#", 2), ("b", 0)], "token")
    (packet,) = broker.sent()
    assert isinstance(packet, Subscribe) and packet.topic_filters == [("a/#", 2), ("b", 0)]
    assert broker.send(Suback(packet.packet_id, [2, 0x80])) == [Subscribed([2, 0x80], "token")]
    broker.session.unsubscribe(["b"], "other")
    (unsubscribe,) = broker.sent()
    assert isinstance(unsubscribe, Unsubscribe) and unsubscribe.topic_filters == ["b"]
    assert broker.send(Unsuback(unsubscribe.packet_id)) == [Unsubscribed([], "other")]
    broker.session.ping(0.0)
    assert isinstance(broker.sent()[0], Pingreq)
    assert broker.send(Pingresp()) == []
    broker.session.disconnect()
    assert isinstance(broker.sent()[0], Disconnect)


def test_publications_end_with_their_acknowledgement(broker: Broker) -> None:
    broker.connect()
    for qos in (0, 1, 2):
        broker.session.publish("t", b"x", qos, token=qos)
    at_0, at_1, at_2 = broker.sent()
    assert isinstance(at_0, Publish) and isinstance(at_1, Publish) and isinstance(at_2, Publish)
    assert at_1.packet_id != at_2.packet_id
    assert broker.send(Puback(at_1.packet_id)) == [Acknowledged(1)]
    assert broker.send(Puback(at_1.packet_id)) == [], "once"
    assert broker.send(Pubrec(at_2.packet_id)) == []
    (release,) = broker.sent()
    assert isinstance(release, Pubrel) and release.packet_id == at_2.packet_id
    assert broker.send(Pubcomp(at_2.packet_id)) == [Acknowledged(2)]
    assert not broker.session.unacknowledged


def test_what_is_unacknowledged_is_sent_again_in_order(broker: Broker) -> None:
    broker.connect()
    for number, qos in enumerate((1, 2, 2, 1)):
        broker.session.publish("t", bytes([number]), qos, token=number)
    sent = broker.sent()
    broker.send(Pubrec(sent[1].packet_id))  # type: ignore[union-attr]
    again = broker.connect(session_present=True)
    release, *publishes = again
    assert isinstance(release, Pubrel) and release.packet_id == sent.pop(1).packet_id  # type: ignore[union-attr]
    assert [packet.packet_id for packet in publishes] == [packet.packet_id for packet in sent]  # type: ignore[union-attr]
    assert all(packet.dup for packet in publishes)
    # Only of QoS 1 may two be made, while the broker has the session; of QoS 2 when it has not.
    assert [packet.payload for packet in publishes] == [b"\0!", b"\2", b"\3!"]
    forgotten = [packet for packet in broker.connect() if isinstance(packet, Publish)]
    assert [packet.payload for packet in forgotten] == [b"\0!!", b"\2!", b"\3!!"]


def test_messages_are_received_once_and_acknowledged(broker: Broker) -> None:
    broker.connect()
    messages = [Publish("t", b"0"), Publish("t", b"1", 1, packet_id=9), Publish("t", b"2", 2, packet_id=10)]
    assert [event.payload for event in broker.send(*messages)] == [b"0", b"1", b"2"]  # type: ignore[attr-defined]
    assert [(type(packet), packet.packet_id) for packet in broker.sent()] == [(Puback, 9), (Pubrec, 10)]  # type: ignore[union-attr]
    broker.connect(session_present=True)
    assert broker.send(Publish("t", b"2", 2, dup=True, packet_id=10)) == [], "it has been handed out"
    assert isinstance(broker.sent()[0], Pubrec)
    assert broker.send(Pubrel(10)) == []
    assert isinstance(broker.sent()[0], Pubcomp)
    assert len(broker.send(Publish("t", b"3", 2, packet_id=10))) == 1, "the identifier is free again"
    broker.connect(session_present=False)
    assert len(broker.send(Publish("t", b"4", 2, packet_id=10))) == 1, "another session"


def test_identifiers_in_use_are_not_given_out_again(broker: Broker) -> None:
    broker.connect()
    broker.session.publish("t", b"", 1, token="kept")
    for _ in range(70_000):
        broker.session.publish("t", b"", 1)
        packet = broker.sent()[-1]
        assert isinstance(packet, Publish) and packet.packet_id != 1
        broker.send(Puback(packet.packet_id))
    assert broker.send(Puback(1)) == [Acknowledged("kept")]


def test_identifiers_run_out() -> None:
    session = ClientSession(ConnectOptions("c"))
    for _ in range(65535):
        session.publish("t", b"", 1)
    with pytest.raises(PacketIdsExhausted, match="65535 packets"):
        session.publish("t", b"", 1)


def test_pings_keep_the_connection_alive() -> None:
    broker = Broker(ClientSession(ConnectOptions("c"), ping_after=30.0, ping_timeout=5.0))
    session = broker.session
    assert session.next_due == float("inf"), "there is no connection"
    broker.connect()
    assert session.next_due == 30.0
    broker.now = 10.0
    session.publish("t", b"")
    broker.sent()
    assert session.next_due == 40.0
    assert session.on_time(39.0) and broker.sent() == []
    assert session.on_time(40.0) and isinstance(broker.sent()[0], Pingreq)
    assert session.next_due == 45.0 and session.on_time(44.0)
    assert not session.on_time(45.0), "PINGRESP is overdue"
    broker.now = 46.0
    broker.send(Pingresp())
    assert session.next_due == 40.0, "of the last packet sent"
    session.connection_lost()
    assert session.next_due == float("inf")


def test_what_was_never_sent_is_sent_without_dup(broker: Broker) -> None:
    broker.session.publish("t", b"0", 0)
    broker.session.publish("t", b"1", 1)
    assert broker.sent() == []
    (packet,) = broker.connect(session_present=True)
    assert isinstance(packet, Publish) and packet.payload == b"1" and not packet.dup
    (packet,) = broker.connect(session_present=True)
    assert isinstance(packet, Publish) and packet.payload == b"1!" and packet.dup
    broker.session.forget_outgoing()
    assert broker.connect(session_present=True) == []


def test_requests_end_with_their_connection(broker: Broker) -> None:
    broker.connect()
    broker.session.subscribe([("a", 0)], "one")
    broker.session.unsubscribe(["a"], "two")
    assert broker.session.connection_lost() == ["one", "two"]
    assert broker.session.connection_lost() == [] and not broker.session.accepted


def test_acknowledging_later() -> None:
    broker = Broker(ClientSession(ConnectOptions("c", clean_start=False), acknowledge_at_once=False))
    broker.connect()
    at_1, at_2 = broker.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 2, packet_id=2))
    assert isinstance(at_1, Publish) and isinstance(at_2, Publish) and broker.sent() == []
    assert broker.send(Publish("t", b"2", 2, dup=True, packet_id=2)) == [], "it has been handed out"
    assert broker.sent() == []
    broker.session.acknowledge(at_1)
    broker.session.acknowledge(at_2)
    assert [type(packet) for packet in broker.sent()] == [Puback, Pubrec]
    assert broker.send(Publish("t", b"2", 2, dup=True, packet_id=2)) == []
    assert isinstance(broker.sent()[0], Pubrec)


def test_events_before_a_fault_are_kept(broker: Broker) -> None:
    broker.connect()
    with pytest.raises(ProtocolViolation, match="broke the protocol") as caught:
        broker.session.feed(encode(Publish("t", b"x"), 4) + b"\xff\xff\xff\xff\xff")
    assert [event.payload for event in caught.value.events] == [b"x"]  # type: ignore[union-attr]


def test_a_session_of_mqtt_3_1_is_assumed_to_continue() -> None:
    session = ClientSession(ConnectOptions("c", level=3, clean_start=False))
    session.connect()
    session.feed(encode(Connack(), 3))
    session.feed(encode(Publish("t", b"1", 2, packet_id=5), 3))
    session.connect()
    session.feed(encode(Connack(), 3))
    assert session.feed(encode(Publish("t", b"1", 2, dup=True, packet_id=5), 3)) == []


def test_level_5() -> None:
    seen: list[tuple[str, str]] = []
    options = ConnectOptions("c", level=5, properties={"receive_maximum": 10})
    session = ClientSession(options, on_packet=lambda way, packet: seen.append((way, type(packet).__name__)))
    session.connect()
    decoder = Decoder(5)
    (connect,) = decoder.feed(session.take_output(0.0))
    assert isinstance(connect, Connect) and connect.properties == {"receive_maximum": 10}
    assert session.feed(encode(Connack(), 5)) == [Accepted(False)]
    session.publish("t", b"x", 2, token=1, properties={"content_type": "text"})
    (publish,) = decoder.feed(session.take_output(0.0))
    assert isinstance(publish, Publish) and publish.properties == {"content_type": "text"}
    assert session.feed(encode(Pubrec(publish.packet_id, 0x87), 5)) == [Acknowledged(1, 0x87)]
    assert seen == [("sending", "Connect"), ("received", "Connack"), ("sending", "Publish"), ("received", "Pubrec")]
    session.connect()
    assert session.feed(encode(Connack(False, 0x8A), 5)) == [Refused(0x8A, "Banned")]


def level_5(**properties: int) -> Broker:
    """A broker whose CONNACK has these properties, connected."""
    broker = Broker(ClientSession(ConnectOptions("c", level=5, clean_start=False)))
    broker.connect(**properties)
    return broker


def test_the_window_of_the_broker() -> None:
    broker = level_5(receive_maximum=2)
    for number in range(7):
        broker.session.publish("t", b"%d" % number, 1 + number % 2, token=number)
    first, second = broker.publishes()
    broker.session.publish("t", b"at once", 0)
    assert [packet.payload for packet in broker.publishes()] == [b"at once"], "QoS 0 needs no room"
    assert broker.send(Puback(first.packet_id, 0x97)) == [Acknowledged(0, 0x97)]
    (third,) = broker.publishes()
    assert third.payload == b"2"
    assert broker.send(Pubrec(second.packet_id)) == []
    assert isinstance(broker.sent()[0], Pubrel), "and still in flight"
    assert broker.send(Pubcomp(second.packet_id)) == [Acknowledged(1)]
    (fourth,) = broker.publishes()
    assert broker.send(Pubrec(fourth.packet_id, 0x87)) == [Acknowledged(3, 0x87)]
    (fifth,) = broker.publishes()
    assert [third.payload, fourth.payload, fifth.payload] == [b"2", b"3", b"4"]
    # Another connection with a smaller window: in order, DUP on what was sent, none on the rest.
    assert [packet.payload for packet in broker.connect(session_present=True, receive_maximum=1)] == [b"2"]  # type: ignore[union-attr]
    payloads = []
    for packet in (third, fifth):
        broker.send(Puback(packet.packet_id))
        payloads += [(packet.payload, packet.dup) for packet in broker.publishes()]
    assert payloads == [(b"4", True), (b"5", False)]
    assert len(broker.connect(session_present=True)) == 2, "all that is left"


def test_every_pubrel_is_sent_again_whatever_the_window() -> None:
    broker = level_5()
    for _ in range(3):
        broker.session.publish("t", b"", 2)
    broker.session.publish("t", b"", 1)
    *first, last = broker.publishes()
    broker.send(*(Pubrec(packet.packet_id) for packet in first))
    assert [type(packet) for packet in broker.connect(session_present=True, receive_maximum=1)] == [Pubrel] * 3
    broker.send(Pubcomp(first[0].packet_id), Pubcomp(first[1].packet_id))
    assert broker.sent() == []
    broker.send(Pubcomp(first[2].packet_id))
    assert [packet.packet_id for packet in broker.publishes()] == [last.packet_id]


def test_the_packet_size_of_the_broker() -> None:
    broker = level_5(maximum_packet_size=20)
    session = broker.session
    session.publish("t", bytes(12), 1, token="fits")
    assert len(broker.sent()) == 1
    for qos in (0, 1):
        with pytest.raises(InvalidPacket, match="PUBLISH: 21 bytes; the broker accepts 20"):
            session.publish("t", bytes(15 - 2 * qos), qos)
    with pytest.raises(InvalidPacket, match="SUBSCRIBE"):
        session.subscribe([("a/long/topic/filter", 0)])
    assert broker.sent() == [] and len(session.unacknowledged) == 1
    session.connection_lost()
    session.publish("t", bytes(50), 1, token="waits")
    session.publish("t", b"", 1, token="fits, too")
    session.connect()
    broker.sent()
    connack = Connack(True, properties={"maximum_packet_size": 10, "receive_maximum": 1})
    (_, *ended) = session.feed(encode(connack, 5))
    assert ended == [Acknowledged("fits", PACKET_TOO_LARGE), Acknowledged("waits", PACKET_TOO_LARGE)]
    assert len(broker.sent()) == 1


def test_disconnect_of_the_broker() -> None:
    broker = level_5()
    broker.session.subscribe([("t", 0)], "token")
    properties = {"reason_string": "by node 2", "server_reference": "other"}
    data = b"".join(encode(packet, 5) for packet in (Publish("t"), Disconnect(0x8E, properties), Publish("t")))
    message, end = broker.session.feed(data)
    assert isinstance(message, Publish)
    assert end == Disconnected(0x8E, "Session taken over: by node 2", properties)
    assert not broker.session.accepted and broker.session.next_due == float("inf")
    broker.session.disconnect()
    assert broker.session.take_output(0.0) == b""
    assert broker.session.connection_lost() == ["token"]
    with pytest.raises(ProtocolViolation, match="without a CONNECT"):
        broker.session.feed(data)


def test_the_answers_of_connack() -> None:
    session = ClientSession(ConnectOptions(level=5), ping_after=30.0)
    session.connect()
    session.take_output(0.0)
    answers = {"server_keep_alive": 10, "assigned_client_identifier": "given", "maximum_qos": 1}
    session.feed(encode(Connack(properties=answers), 5))
    assert session.next_due == 5.0 and session.client_id == "given"
    with pytest.raises(InvalidPacket, match="QoS 1 at most"):
        session.publish("t", b"", 2)
    with pytest.raises(InvalidPacket, match="no topic alias above 0"):
        session.publish("t", b"", properties={"topic_alias": 1})
    session.connect()
    (connect,) = Decoder(5).feed(session.take_output(0.0))
    assert isinstance(connect, Connect) and connect.client_id == "given", "the same session again"
    session.feed(encode(Connack(properties={"server_keep_alive": 0}), 5))
    assert session.next_due == float("inf")


def with_limits(**properties: int) -> Broker:
    """A broker whose client has sent these limits, connected."""
    broker = Broker(ClientSession(ConnectOptions("c", level=5, properties=properties), acknowledge_at_once=False))
    broker.connect()
    return broker


def test_our_receive_maximum() -> None:
    broker = with_limits(receive_maximum=2)
    at_1, at_2 = Publish("t", b"", 1, packet_id=1), Publish("t", b"", 2, packet_id=2)
    for _ in range(3):
        broker.send(at_1, at_2)
        broker.session.acknowledge(at_1)
        broker.session.acknowledge(at_2)
        broker.send(Publish("t", b"", 1, packet_id=3))
        broker.session.acknowledge(Publish("t", b"", 1, packet_id=3))
        broker.send(Pubrel(2))
    broker.sent()
    broker.send(at_1, at_2)
    with pytest.raises(ProtocolViolation, match="Receive Maximum"):
        broker.send(Publish("t", b"", 1, packet_id=3))
    assert broker.sent() == [Disconnect(0x93)]


def test_aliases_of_the_broker() -> None:
    broker = with_limits(topic_alias_maximum=2)
    first, second = broker.send(Publish("a", properties={"topic_alias": 2}), Publish("", properties={"topic_alias": 2}))
    assert isinstance(first, Publish) and isinstance(second, Publish)
    assert first.topic_name == second.topic_name == "a"
    for alias, code in ((1, 0x82), (3, 0x94)):
        broker.connect()
        with pytest.raises(ProtocolViolation):
            broker.send(Publish("" if alias == 1 else "a", properties={"topic_alias": alias}))
        assert broker.sent() == [Disconnect(code)]
    broker.connect()
    with pytest.raises(ProtocolViolation):  # the aliases of an earlier connection
        broker.send(Publish("", properties={"topic_alias": 2}))
    broker.connect()
    with pytest.raises(ProtocolViolation, match="broke the protocol"):
        broker.session.feed(b"\xff\xff\xff\xff\xff")
    assert broker.sent() == [Disconnect(0x81)]
