"""The protocol half of a simulated client, packet by packet, without a socket."""

import pytest

from _speedups.codec.decode import Decoder
from _speedups.codec.encode import encode
from _speedups.codec.packets import (
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
)
from loadtest.swarm.session import Accepted, Acknowledged, BrokenProtocol, Options, Refused, Session, Subscribed, Will


class Broker:
    """The other end: what the session sends, as packets."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.decoder = Decoder(4)

    def connect(self, *, session_present: bool = False) -> list[Packet]:
        """Begin a connection and accept it; returns what is sent after CONNECT."""
        self.decoder = Decoder(4)
        self.session.connect()
        assert isinstance(self.sent()[0], Connect)
        assert self.session.feed(encode(Connack(session_present), 4)) == [Accepted(session_present)]
        return self.sent()

    def sent(self) -> list[Packet]:
        """What has been sent since the last look."""
        return self.decoder.feed(self.session.take())

    def send(self, *packets: Packet) -> list[object]:
        """Send packets, a byte at a time; returns what happened."""
        data = b"".join(encode(packet, 4) for packet in packets)
        return [event for byte in data for event in self.session.feed(bytes([byte]))]


@pytest.fixture
def broker() -> Broker:
    return Broker(Session(Options("c", clean_session=False), lambda payload: payload + b"!"))


def test_connect_says_all_there_is_to_say() -> None:
    will = Will("w", b"gone", 1, True)
    session = Session(Options("id", clean_session=False, keep_alive=7, will=will, username="u", password=b"p"))
    session.connect()
    (packet,) = Decoder(4).feed(session.take())
    expected = Connect("id", False, 7, "u", b"p", "w", b"gone", 1, True)
    assert encode(packet, 4) == encode(expected, 4)


def test_refusal_in_words(broker: Broker) -> None:
    broker.session.connect()
    assert broker.send(Connack(False, 3)) == [Refused("server unavailable")]


@pytest.mark.parametrize(
    ("packets", "reason"),
    [
        ([Publish("a")], "PUBLISH before CONNACK"),
        ([Connack(), Connack()], "CONNACK after CONNACK"),
        ([Connack(), Subscribe(1, [("a", 0)])], "SUBSCRIBE from the broker"),
        ([Connack(), b"\xff\xff\xff\xff\xff"], "malformed packet"),
    ],
)
def test_what_a_broker_may_not_send(packets: list[Packet | bytes], reason: str) -> None:
    session = Session(Options("c"))
    session.connect()
    data = b"".join(packet if isinstance(packet, bytes) else encode(packet, 4) for packet in packets)
    with pytest.raises(BrokenProtocol, match=reason):
        session.feed(data)


def test_subscribe_and_ping(broker: Broker) -> None:
    broker.connect()
    broker.session.subscribe([("a/#", 2), ("b", 0)])
    (packet,) = broker.sent()
    assert isinstance(packet, Subscribe) and packet.topic_filters == [("a/#", 2), ("b", 0)]
    assert broker.send(Suback(packet.packet_id, [2, 0x80])) == [Subscribed([2, 0x80])]
    broker.session.ping()
    assert isinstance(broker.sent()[0], Pingreq) and broker.session.pings == 1
    assert broker.send(Pingresp()) == [] and broker.session.pings == 0
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
    assert [type(packet) for packet in again] == [Publish, Pubrel, Publish, Publish]
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]  # type: ignore[union-attr]
    publishes = [packet for packet in again if isinstance(packet, Publish)]
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
