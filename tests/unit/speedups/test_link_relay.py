"""One direction of a link: topic names, levels, acknowledgements, and messages that may not go on."""

import random
from dataclasses import fields as fields_of
from typing import Any

import pytest

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.errors import MalformedPacket
from flockmq._speedups.codec.packets import Connack, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback
from flockmq._speedups.protocol.link_ends import LinkMarks, LinkSource, LinkTarget
from flockmq._speedups.protocol.link_relay import Echoes, LinkRelay, QuotaExceeded, TopicRule

LARGEST = 1_000_000
RULES = [TopicRule(b"a/#", b"a/", b"far/"), TopicRule(b"+/x", b"", b""), TopicRule(b"deep/#", b"", b"longer/")]
MARK = (b"hop", b"here")


def relay(source: int = 5, target: int = 5, rules: list[TopicRule] = RULES, **more: Any) -> LinkRelay:
    """A relay; `more` has fields of both ends and of the marks, and arguments of LinkRelay."""

    def taken(made: type) -> dict[str, Any]:
        return {field.name: more.pop(field.name) for field in fields_of(made) if field.name in more}

    size = more.pop("target_size", LARGEST)
    ends = LinkSource(source, LARGEST, **taken(LinkSource)), LinkTarget(target, size, **taken(LinkTarget))
    return LinkRelay(*ends, rules, marks=LinkMarks(**taken(LinkMarks)), **more)


def carried(found: LinkRelay, *packets: Packet, source: int = 5, target: int = 5) -> tuple[list[Packet], list[Packet]]:
    """Packets for the target, and for the source, when these have come."""
    assert found.feed(b"".join(encode(packet, source) for packet in packets)) == []
    return Decoder(target).feed(found.take_output()), Decoder(source).feed(found.take_replies())


def fields(packet: Packet) -> dict[str, Any]:
    return {name: getattr(packet, name) for name in packet.fields}


@pytest.mark.parametrize(
    ("topic", "there"), [("a/b/c", "far/b/c"), ("b/x", "b/x"), ("deep", "longer/deep"), ("a/", "far/")]
)
def test_the_first_rule_that_matches_names_the_topic(topic: str, there: str) -> None:
    (packet,), replies = carried(relay(), Publish(topic, b"m", qos=1, packet_id=7))
    assert isinstance(packet, Publish)
    assert (packet.topic_name, packet.payload, packet.packet_id, replies) == (there, b"m", 7, [])


@pytest.mark.parametrize(("qos", "reply"), [(0, []), (1, [Puback]), (2, [Pubrec])])
@pytest.mark.parametrize("topic", ["b/y", "a"])  # a matches a/#, and has no name without the prefix
def test_a_message_without_a_rule_ends_here(qos: int, reply: list[type], topic: str) -> None:
    found = relay()
    output, replies = carried(found, Publish(topic, b"", qos=qos, packet_id=9 if qos else 0))
    assert output == [] and [type(packet) for packet in replies] == reply
    assert found.unmatched == 1
    if qos == 2:  # its PUBREL ends here, too; another message's goes on
        output, replies = carried(found, Pubrel(9), Pubrel(8))
        assert [(type(packet), packet.packet_id) for packet in replies] == [(Pubcomp, 9)]  # type: ignore[attr-defined]
        assert [(type(packet), packet.packet_id) for packet in output] == [(Pubrel, 8)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", [3, 4, 5])
@pytest.mark.parametrize("target", [3, 4, 5])
def test_levels_are_translated(source: int, target: int) -> None:
    given = {"content_type": "x", "user_property": [("k", "v")]} if source == 5 else {}
    message = Publish("a/b", b"m", qos=2, retain=True, dup=True, packet_id=3, properties=given)
    acks = [Puback(1), Pubrec(2), Pubrel(3), Pubcomp(4)]
    output, _ = carried(relay(source, target), message, *acks, source=source, target=target)
    expected = Publish("far/b", b"m", qos=2, retain=True, dup=True, packet_id=3)
    expected.properties = given if target == 5 else {}
    assert [fields(packet) for packet in output] == [fields(packet) for packet in (expected, *acks)]


@pytest.mark.parametrize(("target", "code"), [(5, 0x97), (4, 0)])
def test_reason_codes_go_on_without_properties(target: int, code: int) -> None:
    found = relay(5, target)
    output, _ = carried(found, Puback(1, 0x97, {"reason_string": "full"}), target=target)
    assert [fields(packet) for packet in output] == [fields(Puback(1, code))]
    assert (found.refused, found.last_refusal) == (1, 0x97)


def test_messages_are_marked_and_end_where_they_have_been() -> None:
    (packet,), _ = carried(relay(added=MARK), Publish("a/b", b"", properties={"user_property": [("k", "v")]}))
    assert isinstance(packet, Publish)
    assert packet.properties["user_property"] == [("k", "v"), ("hop", "here")]
    found = relay(refused=[(b"hop", b"elsewhere"), MARK])
    output, replies = carried(found, Publish("a/b", b"", qos=1, packet_id=5, properties=packet.properties))
    assert output == [] and [fields(reply) for reply in replies] == [fields(Puback(5))]
    assert found.looped == 1


def test_each_echo_is_dropped_once() -> None:
    echoes = Echoes()
    out, back = relay(5, 4, to_remember=echoes), relay(4, 5, [TopicRule(b"far/#", b"far/", b"a/")], remembered=echoes)
    message = Publish("a/b", b"m")
    echo, _ = carried(out, message, target=4)
    assert carried(back, *echo, source=4)[0] == []
    assert len(carried(back, *echo, source=4)[0]) == 1  # a second one is another client's
    carried(out, message, target=4)
    echoes.forget()
    echoes.forget()
    assert len(carried(back, *echo, source=4)[0]) == 1
    assert back.echoed == 1


def test_names_and_sizes_that_the_target_does_not_take() -> None:
    found = relay(rules=[TopicRule(b"#", b"", b"p/")], max_topic_levels=3, target_size=100)
    output, replies = carried(found, Publish("a/b/c", b"", qos=1, packet_id=1), Publish("a", bytes(99)))
    assert output == [] and len(replies) == 1 and (found.invalid, found.too_large) == (1, 1)
    sys = relay(rules=[TopicRule(b"#", b"", b"")])
    assert carried(sys, Publish("$SYS/x", b""))[0] == [] and sys.invalid + sys.unmatched == 1
    control = relay(rules=[TopicRule(b"#", b"", b"")], control_characters=False)
    assert carried(control, Publish("a\x01", b""))[0] == [] and control.invalid == 1


def test_a_target_without_retained_messages_gets_none() -> None:
    (packet,), _ = carried(relay(retain_available=False), Publish("a/b", b"", retain=True))
    assert isinstance(packet, Publish) and not packet.retain


def test_a_qos_that_the_target_does_not_take_is_lowered() -> None:
    """The source gets the acknowledgements of the QoS that it has sent."""
    lowered: set[int] = set()
    out, back = relay(maximum_qos=1, lowered=lowered), relay(lowered=lowered)
    sent = [Publish("a/b", b"x", qos=qos, packet_id=7 * (qos > 0), dup=qos == 2) for qos in (0, 2)]
    output, replies = carried(out, *sent)
    assert [(packet.qos, packet.packet_id, packet.dup) for packet in output if isinstance(packet, Publish)] == [
        (0, 0, False),
        (1, 7, False),
    ]
    assert replies == []
    output, _ = carried(back, Puback(7), Puback(7))  # the second one is of a later message of QoS 1
    assert [fields(packet) for packet in output] == [fields(Pubrec(7)), fields(Puback(7))]
    output, replies = carried(out, Pubrel(7))
    assert output == [] and [fields(packet) for packet in replies] == [fields(Pubcomp(7))]
    none = relay(maximum_qos=0)
    output, replies = carried(none, *sent, Publish("a/b", b"x", qos=1, packet_id=8), Pubrel(7))
    assert [packet.qos for packet in output if isinstance(packet, Publish)] == [0, 0, 0]
    assert [fields(packet) for packet in replies] == [fields(Pubrec(7)), fields(Puback(8)), fields(Pubcomp(7))]


def test_messages_whose_sender_has_forgotten_them_are_released() -> None:
    found = relay()
    found.release([4, 9])
    assert [fields(packet) for packet in Decoder(5).feed(found.take_replies())] == [
        fields(Pubrel(4)),
        fields(Pubrel(9)),
    ]
    output, _ = carried(found, Pubcomp(9), Pubcomp(4), Pubcomp(4))
    assert [fields(packet) for packet in output] == [fields(Pubcomp(4))]  # of a later message


def test_other_packets_are_returned_and_bytes_may_come_in_pieces() -> None:
    found = relay()
    packets = [Connack(), Publish("a/b", bytes(300)), Suback(1, [0]), Puback(1)]
    data = b"".join(encode(packet, 5) for packet in packets)
    rng, others, at = random.Random(1), [], 0
    while at < len(data):
        size = rng.randrange(1, 9)
        others += found.feed(data[at : at + size])
        at += size
    assert [type(packet) for packet in others] == [Connack] and found.take_output() == b""
    others = found.begin()
    assert [type(packet) for packet in others] == [Suback]
    assert [type(packet) for packet in Decoder(5).feed(found.take_output())] == [Publish, Puback]


@pytest.mark.parametrize(
    "data",
    [
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\x01\x00",
        b"\x36\x05\x00\x01a\x00\x01",
        b"\x32\x03\x00\x01a",
        b"\x40\x01\x00",
        b"\x30\x04\x00\x01a\x05",
        b"\x30\xff\xff\x7f",
    ],
)
def test_malformed_packets_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedPacket):
        relay().feed(data)


def test_random_bytes_do_no_harm() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        found = relay(rng.choice((3, 4, 5)), rng.choice((3, 4, 5)), added=MARK, refused=[MARK])
        data = bytearray(
            encode(Publish("a/b", b"m", qos=2, packet_id=3, properties={"user_property": [("k", "v")]}), 5)
        )
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found.feed(bytes(data))
        except ValueError:
            continue
        found.take_output()


@pytest.mark.parametrize("refusal", [Puback(2, 0x97), Pubrec(2, 0x97)])
def test_a_refusal_that_will_pass_does_not_go_on(refusal: Packet) -> None:
    """The session that has sent the message would drop it."""
    found = relay(keeps_refused=True)
    with pytest.raises(QuotaExceeded):
        found.feed(encode(Pubrec(1), 5) + encode(refusal, 5) + encode(Puback(3), 5))
    assert [fields(packet) for packet in Decoder(5).feed(found.take_output())] == [fields(Pubrec(1))]
    assert found.refused == 0
