"""Holds packets.pyx against the table of tests/cases and against the plain model.

Every case is decoded, encoded, cut at every byte and split at every byte; generated and mutated frames get the same
answer from the compiled code and from the model.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flockmq._speedups.codec.packets as packets
from flockmq._speedups.codec.decode import Decoder, decode
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.errors import (
    InvalidPacket,
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    UnacceptableProtocol,
)
from flockmq._speedups.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flockmq._speedups.codec.tables import PACKET_TYPES, PROPERTIES, REASON_CODES
from tests.cases.packets import CASES, INVALID, PROPERTY_CASES, VALID, Case
from tests.model import codec as model

BOUNDED = settings(max_examples=400)
USUAL_CODE = {MalformedPacket: 0x81, ProtocolError: 0x82, UnacceptableProtocol: 0x84}
LEVELS = st.sampled_from([3, 4, 5])


def expand(cases: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(case, level, id=f"{case.name} [{level}]") for case in cases for level in case.levels]


def as_model(packet: Any) -> dict[str, Any]:
    return {"type": type(packet).__name__} | {name: getattr(packet, name) for name in packet.fields}


def as_packet(fields: dict[str, Any]) -> Any:
    return getattr(packets, fields["type"])(**{name: value for name, value in fields.items() if name != "type"})


def answer(data: bytes, level: int) -> dict[str, Any] | None:
    """The result of the compiled code: the packet, or None for a refusal that is as documented."""
    try:
        return as_model(decode(data, level))
    except MalformedPacket as error:
        assert error.reason
        assert any(row.code == error.code and row.packets >> 14 & 1 for row in REASON_CODES) or error.code == 0x84
        return None


def model_answer(data: bytes, level: int) -> dict[str, Any] | None:
    try:
        return model.decode(data, level)
    except model.Refused:
        return None


# ---- the table ------------------------------------------------------------------------------------------------------


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "level"), expand(VALID))
def test_valid(case: Case, level: int) -> None:
    assert decode(case.data, level) == case.packet
    assert model.decode(case.data, level) == as_model(case.packet)
    encoded = encode(case.packet, level)
    assert decode(encoded, level) == case.packet
    assert encoded == model.encode(as_model(case.packet), level)
    if case.canonical:
        assert encoded == case.data


@pytest.mark.parametrize(("case", "level"), expand(INVALID))
def test_invalid(case: Case, level: int) -> None:
    with pytest.raises(case.packet) as raised:
        decode(case.data, level)
    assert type(raised.value) is case.packet
    assert raised.value.code == (case.code or USUAL_CODE[case.packet])
    if "MQTT-" in case.statement:
        assert case.statement.removeprefix("5: ") in raised.value.reason or raised.value.code == 0x94
    with pytest.raises(model.Refused):
        model.decode(case.data, level)


@pytest.mark.parametrize(("case", "level"), expand(VALID))
def test_every_truncation(case: Case, level: int) -> None:
    """Cut as it came from the network, and cut with a Remaining Length that matches."""
    for n in range(len(case.data)):
        with pytest.raises(MalformedPacket):
            decode(case.data[:n], level)
    for n in range(min(len(case.data) - 2, 120)):
        shorter = case.data[:1] + bytes([n]) + case.data[2 : 2 + n]
        assert answer(shorter, level) == model_answer(shorter, level)


@pytest.mark.parametrize(("case", "level"), expand(VALID))
def test_every_split(case: Case, level: int) -> None:
    for n in range(1, len(case.data)):
        decoder = Decoder(level)
        assert decoder.feed(case.data[:n]) == []
        assert decoder.feed(case.data[n:]) == [case.packet]
    decoder = Decoder(level)
    found = []
    for n in range(len(case.data)):
        found += decoder.feed(case.data[n : n + 1])
    assert found == [case.packet]


@pytest.mark.parametrize("level", [3, 4, 5])
def test_the_whole_table_as_one_stream(level: int) -> None:
    cases = [case for case in VALID if level in case.levels]
    stream = b"".join(case.data for case in cases)
    for size in (1, 2, 7, 100, len(stream)):
        decoder = Decoder(level)
        found = []
        for n in range(0, len(stream), size):
            found += decoder.feed(stream[n : n + size])
        assert found == [case.packet for case in cases]


# ---- Decoder --------------------------------------------------------------------------------------------------------


def test_decoder_hands_out_what_came_before_an_error_and_stays_failed() -> None:
    decoder = Decoder()
    with pytest.raises(MalformedPacket, match=r"MQTT-3\.3\.1-4") as raised:
        decoder.feed(b"\xc0\x00\x36\x05\x00\x01a\x00\x01\xc0\x00")
    assert raised.value.packets == [Pingreq()]
    with pytest.raises(MalformedPacket, match=r"MQTT-3\.3\.1-4") as raised:
        decoder.feed(b"\xc0\x00")
    assert raised.value.packets == ()


def test_decoder_refuses_a_large_packet_at_its_header() -> None:
    frame = encode(Publish("a", bytes(100)))
    assert Decoder(max_packet_size=len(frame)).feed(frame) == [Publish("a", bytes(100))]
    with pytest.raises(PacketTooLarge) as raised:
        Decoder(max_packet_size=len(frame) - 1).feed(frame[:2])
    assert raised.value.code == 0x95


def test_decoder_refuses_a_fifth_length_byte_at_once() -> None:
    with pytest.raises(MalformedPacket, match=r"four bytes"):
        Decoder().feed(b"\x30\xff\xff\xff\xff")


def test_decoder_takes_the_level_of_a_connect() -> None:
    decoder = Decoder(4)
    publish = Publish("a", properties={"topic_alias": 1})
    assert decoder.feed(encode(Connect("c", protocol_level=5)) + encode(publish, 5))[1] == publish
    assert decoder.level == 5


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_like(kind: Callable[[bytes], Any]) -> None:
    assert decode(kind(b"\xc0\x00")) == Pingreq()
    decoder = Decoder()
    assert decoder.feed(kind(b"\xc0")) == []
    assert decoder.feed(kind(b"\x00\xc0")) == [Pingreq()]
    assert decoder.feed(kind(b"\x00")) == [Pingreq()]


def test_a_large_packet_in_small_pieces_is_read_in_linear_time() -> None:
    frame = encode(Publish("a", bytes(4_000_000)))
    decoder = Decoder()
    found = [packet for n in range(0, len(frame), 1000) for packet in decoder.feed(frame[n : n + 1000])]
    assert found == [Publish("a", bytes(4_000_000))]


# ---- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2097151, 2097152])
def test_remaining_length_at_its_steps(size: int) -> None:
    if size < 3:
        return
    packet = Publish("a", bytes(size - 3))
    frame = encode(packet)
    assert len(frame) == size + (2 if size < 128 else 3 if size < 16384 else 4 if size < 2097152 else 5)
    assert decode(frame) == packet
    assert Decoder().feed(frame) == [packet]


def test_longest_strings() -> None:
    packet = Connect("c" * 65535, username="u" * 65535, password=b"p" * 65535)
    assert decode(encode(packet)) == packet


# ---- encode refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "level"),
    [
        (Publish("a", qos=3, packet_id=1), 4),
        (Publish("a", qos=-1), 4),
        (Publish("a", qos=1), 4),
        (Publish("a", qos=1, packet_id=65536), 4),
        (Publish("a", dup=True), 4),
        (Publish("a", dup=True), 3),
        (Publish("a/+"), 4),
        (Publish(""), 4),
        (Publish(""), 5),
        (Publish("\ud800"), 4),
        (Publish("a\0"), 4),
        (Publish("x" * 65536), 4),
        (Publish("x" * 32768), 3),
        (Publish(None), 4),  # type: ignore[arg-type]
        (Publish("a", None), 4),  # type: ignore[arg-type]
        (Publish("a", properties={"topic_alias": 0}), 5),
        (Publish("a", properties={"topic_alias": 65536}), 5),
        (Publish("a", properties={"topic_alias": "1"}), 5),
        (Publish("a", properties={"payload_format_indicator": 2}), 5),
        (Publish("a", properties={"receive_maximum": 1}), 5),
        (Publish("a", properties={"no such thing": 1}), 5),
        (Publish("a", properties={"response_topic": "#"}), 5),
        (Publish("a", properties={"subscription_identifier": 1}), 5),
        (Publish("a", properties={"subscription_identifier": [268_435_456]}), 5),
        (Publish("a", properties={"user_property": [("k",)]}), 5),
        (Publish("a", properties={"user_property": [("k", "v")] * 129}), 5),
        (Publish("a", properties={"user_property": [("k", "\0")]}), 5),
        (Puback(0), 4),
        (Puback(65536), 4),
        (Puback(0, 0x80), 5),
        (Puback(1, 0x80), 4),
        (Puback(1, 0x92), 5),
        (Connect("c", password=b"p"), 4),
        (Connect("c", will_topic="w", will_qos=3), 4),
        (Connect("c", will_topic="#"), 4),
        (Connect("c", keep_alive=65536), 4),
        (Connect("c", keep_alive=-1), 4),
        (Connect("c\0"), 4),
        (Connect("c" * 65536), 4),
        (Connect("c", protocol_level=6), 4),
        (Connect("c", properties={"authentication_data": b""}, protocol_level=5), 4),
        (Connack(True, 1), 4),
        (Connack(False, 6), 4),
        (Connack(False, 0x92), 5),
        (Subscribe(1, []), 4),
        (Subscribe(0, [("a", 0)]), 4),
        (Subscribe(1, [("a", 3)]), 4),
        (Subscribe(1, [("a", 4)]), 4),
        (Subscribe(1, [("", 0)]), 4),
        (Subscribe(1, [("a", 0x30)]), 5),
        (Subscribe(1, [("$share/g/a", 4)]), 5),
        (Suback(1, []), 4),
        (Suback(1, [3]), 4),
        (Suback(1, [0x80]), 3),
        (Unsubscribe(1, []), 4),
        (Unsubscribe(1, [""]), 4),
        (Unsuback(1), 5),
        (Disconnect(4), 4),
        (packets.Auth(), 4),
        ("text", 4),
        (None, 4),
    ],
)
def test_encode_refuses(packet: Any, level: int) -> None:
    with pytest.raises(InvalidPacket):
        encode(packet, level)


@pytest.mark.parametrize("level", [0, 2, 6, 132])
def test_unknown_level_is_refused(level: int) -> None:
    for call in (lambda: encode(Pingreq(), level), lambda: decode(b"\xc0\x00", level), lambda: Decoder(level)):
        with pytest.raises(ValueError, match="protocol level"):
            call()


# ---- objects and tables ---------------------------------------------------------------------------------------------


def test_equality_and_repr() -> None:
    assert Puback(1) == Puback(1)
    assert Puback(1) != Puback(2)
    assert Puback(1) != packets.Pubrec(1)
    assert Puback(1) != 1
    assert repr(Puback(1)) == "Puback(packet_id=1, reason_code=0, properties={})"
    assert "secret" not in repr(Connect("c", username="u", password=b"secret"))


def test_reused_objects_start_clean() -> None:
    """A freelist hands out old memory: nothing of the earlier packet may be left in it."""
    for _ in range(3):
        used = [Publish("a", b"x", 2, True, True, 9, {"topic_alias": 1}) for _ in range(300)]
        del used
        assert [decode(b"\x30\x03\x00\x01b") for _ in range(300)] == [Publish("b")] * 300
        acks = [Puback(7, 0x80, {"reason_string": "r"}) for _ in range(300)]
        del acks
        assert decode(b"\x40\x02\x00\x01") == Puback(1)


def test_every_property_has_a_case() -> None:
    assert [row.name for row in PROPERTIES] == list(PROPERTY_CASES)
    assert {row.identifier: row.name for row in PROPERTIES} == {
        identifier: name for identifier, (name, _, _) in model.PROPERTIES.items()
    }


def test_reason_codes_as_the_model_has_them() -> None:
    for row in PACKET_TYPES:
        expected = bytes.fromhex(model.REASON_CODES.get(row.name.capitalize(), ""))
        assert bytes(code.code for code in REASON_CODES if code.packets >> row.packet_type & 1) == expected, row.name


# ---- generated ------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
topic_names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
topic_filters = st.text(st.sampled_from("ab/+#$ä"), min_size=1, max_size=8)
packet_ids = st.integers(1, 65535)
binaries = st.binary(max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.integers(0, 1),
    "u16": st.integers(0, 0xFFFF),
    "u16!": st.integers(1, 0xFFFF),
    "u32": st.integers(0, 0xFFFFFFFF),
    "u32!": st.integers(1, 0xFFFFFFFF),
    "varint!": st.integers(1, 268_435_455),
    "text": texts,
    "topic": topic_names,
    "binary": binaries,
    "pair": st.tuples(texts, texts),
}


@st.composite
def properties_of(draw: st.DrawFn, where: str, level: int) -> dict[str, Any]:
    if level < 5:
        return {}
    names = [name for name, _, places in model.PROPERTIES.values() if where in places]
    found = {}
    for name in draw(st.lists(st.sampled_from(names), unique=True, max_size=4)) if names else []:
        values = VALUES[model.BY_NAME[name][1]]
        found[name] = draw(st.lists(values, min_size=1, max_size=3) if model.is_list(name, where) else values)
    if "authentication_method" not in found:
        found.pop("authentication_data", None)
    return found


@st.composite
def reason_code_of(draw: st.DrawFn, where: str, level: int) -> int:
    if where == "Suback" and level < 5:
        return draw(st.sampled_from([0, 1, 2] if level == 3 else [0, 1, 2, 0x80]))
    if where == "Connack" and level < 5:
        return draw(st.integers(0, 5))
    return draw(st.sampled_from(list(bytes.fromhex(model.REASON_CODES[where])))) if level == 5 else 0


@st.composite
def valid_packets(draw: st.DrawFn, level: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(model.TYPES[1:] if level == 5 else model.TYPES[1:-1]))
    packet: dict[str, Any] = {"type": kind}
    if not kind.startswith("Ping"):
        packet["properties"] = draw(properties_of(kind, level))
    if kind in model.ACKS | {"Subscribe", "Suback", "Unsubscribe", "Unsuback"}:
        packet["packet_id"] = draw(packet_ids)
    if kind in model.ACKS | {"Connack", "Disconnect", "Auth"}:
        packet["reason_code"] = draw(reason_code_of(kind, level))
    if kind == "Connack":
        packet["session_present"] = draw(st.booleans()) and packet["reason_code"] == 0 and level > 3
    if kind in ("Suback", "Unsuback"):
        packet["reason_codes"] = draw(st.lists(reason_code_of(kind, level), min_size=1, max_size=5))
        if kind == "Unsuback" and level < 5:
            packet["reason_codes"] = []
    if kind == "Unsubscribe":
        packet["topic_filters"] = draw(st.lists(topic_filters, min_size=1, max_size=4))
    if kind == "Subscribe":
        options = st.sampled_from([0, 1, 2, 0x2D, 0x1A, 0x04] if level == 5 else [0, 1, 2])
        packet["topic_filters"] = draw(st.lists(st.tuples(topic_filters, options), min_size=1, max_size=4))
    if kind == "Publish":
        qos = draw(st.integers(0, 2))
        packet |= {"qos": qos, "dup": draw(st.booleans()) and qos > 0, "retain": draw(st.booleans())}
        packet |= {"packet_id": draw(packet_ids) if qos else 0, "payload": draw(st.binary(max_size=200))}
        packet["topic_name"] = draw(topic_names)
    if kind == "Connect":
        packet |= draw(connect_fields(level))
    return packet


@st.composite
def connect_fields(draw: st.DrawFn, level: int) -> dict[str, Any]:
    will = draw(st.booleans())
    username = draw(st.none() | texts)
    return {
        "protocol_level": level,
        "client_id": draw(texts),
        "bridge": level < 5 and draw(st.booleans()),
        "clean_start": draw(st.booleans()),
        "keep_alive": draw(st.integers(0, 65535)),
        "username": username,
        "password": draw(st.none() | binaries) if level == 5 or username is not None else None,
        "will_topic": draw(topic_names) if will else None,
        "will_payload": draw(binaries) if will else b"",
        "will_qos": draw(st.integers(0, 2)) if will else 0,
        "will_retain": draw(st.booleans()) and will,
        "will_properties": draw(properties_of("Will", level)) if will else {},
    }


leveled = LEVELS.flatmap(lambda level: st.tuples(st.just(level), valid_packets(level)))


@BOUNDED
@given(leveled)
def test_generated_packets_go_both_ways(generated: tuple[int, dict[str, Any]]) -> None:
    level, fields = generated
    data = model.encode(fields, level)
    assert encode(as_packet(fields), level) == data
    assert answer(data, level) == fields == model_answer(data, level)


@BOUNDED
@given(leveled, st.randoms(use_true_random=False))
def test_mutated_frames_get_the_same_answer(generated: tuple[int, dict[str, Any]], chance: random.Random) -> None:
    level, fields = generated
    for _ in range(8):
        data = mutate(model.encode(fields, level), chance)
        found = answer(data, level)
        assert found == model_answer(data, level)
        if found is not None:
            level_found = found.get("protocol_level", level)
            assert decode(encode(as_packet(found), level_found), level_found) == as_packet(found)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, put in or taken out, mostly with a Remaining Length that still holds."""
    body = bytearray(data[1:].lstrip(b"\x80")[1:] if chance.random() < 0.1 else data[2:])
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(body) + 1)
        change = chance.random()
        if change < 0.6 and at < len(body):
            body[at] = chance.choice([0, 1, 2, 3, 0x23, 0x2B, 0x7F, 0x80, 0xFF, body[at] ^ 1 << chance.randrange(8)])
        elif change < 0.8:
            body.insert(at, chance.choice([0, 1, 2, 0x26, 0x80, 0xC3]))
        else:
            del body[at : at + chance.randint(1, 3)]
    first = data[0] ^ (1 << chance.randrange(8) if chance.random() < 0.2 else 0)
    size = len(body) + (chance.choice([-1, 1]) if chance.random() < 0.05 and body else 0)
    header = model.varint(size)
    if chance.random() < 0.05:
        header = header[:-1] + bytes([header[-1] | 0x80, 0])
    return bytes([first]) + header + bytes(body)


@BOUNDED
@given(st.binary(max_size=40), LEVELS)
def test_any_bytes_get_the_same_answer(data: bytes, level: int) -> None:
    assert answer(data, level) == model_answer(data, level)


@BOUNDED
@given(st.integers(0, 255), st.binary(max_size=30), LEVELS)
def test_any_body_gets_the_same_answer(first: int, body: bytes, level: int) -> None:
    data = bytes([first, len(body)]) + body
    assert answer(data, level) == model_answer(data, level)


@BOUNDED
@given(st.lists(valid_packets(5), max_size=6), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_generated_streams_in_generated_pieces(stream: list[dict[str, Any]], sizes: list[int]) -> None:
    data = b"".join(model.encode(fields, 5) for fields in stream)
    decoder = Decoder(5)
    found = []
    while data:
        size = sizes[len(data) % len(sizes)]
        found += decoder.feed(data[:size])
        data = data[size:]
    assert found == [as_packet(fields) for fields in stream]
