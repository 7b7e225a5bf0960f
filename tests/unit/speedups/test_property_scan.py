"""The scanner of property blocks against the codec: the same verdict, code by code, on valid and on damaged blocks."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flockmq._speedups.codec.decode import decode
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.errors import MalformedPacket
from flockmq._speedups.codec.packets import Auth, Connect, Disconnect, Puback, Publish, Subscribe
from flockmq._speedups.codec.properties import check_properties
from flockmq._speedups.codec.tables import PACKET_TYPES, PROPERTIES
from tests.model.codec import varint
from tests.unit.speedups.test_packets import BOUNDED, properties_of

OWNERS = {row.name.capitalize(): row.packet_type for row in PACKET_TYPES}
IDENTIFIERS = {row.name: row.identifier for row in PROPERTIES}
# A packet of each kind without properties: the bytes before its property block, and those after it.
FRAMES = {
    "Publish": (b"\x30", b"\0\1a", b""),
    "Puback": (b"\x40", b"\0\1\0", b""),
    "Subscribe": (b"\x82", b"\0\1", b"\0\1a\0"),
    "Connect": (b"\x10", b"\0\4MQTT\5\2\0\0", b"\0\1c"),
    "Disconnect": (b"\xe0", b"\0", b""),
    "Auth": (b"\xf0", b"\x18", b""),
}


def by_the_codec(kind: str, block: bytes) -> tuple[int, dict[str, Any]]:
    """The reason code of the block's fault, or 0, and the properties."""
    first, before, after = FRAMES[kind]
    body = before + varint(len(block)) + block + after
    try:
        return 0, decode(first + varint(len(body)) + body, 5).properties
    except MalformedPacket as fault:
        return fault.code, {}


def block_of(kind: str, properties: dict[str, Any]) -> bytes:
    packet = {
        "Publish": lambda: Publish("a", properties=properties),
        "Puback": lambda: Puback(1, 0, properties),
        "Subscribe": lambda: Subscribe(1, [("a", 0)], properties),
        "Connect": lambda: Connect("c", properties=properties, protocol_level=5),
        "Disconnect": lambda: Disconnect(0, properties),
        "Auth": lambda: Auth(0x18, properties),
    }[kind]()
    data = encode(packet, 5)
    _, before, after = FRAMES[kind]
    body = data[1 + next(n for n in range(1, 5) if data[n] < 128) :]
    if kind in ("Puback", "Disconnect", "Auth") and not properties:
        return b""  # the block is left out
    rest = body[len(before) : len(body) - len(after)]
    return rest[1 + next(n for n in range(4) if rest[n] < 128) :]


@st.composite
def damaged_blocks(draw: st.DrawFn) -> tuple[str, bytes]:
    kind = draw(st.sampled_from(list(FRAMES)))
    block = bytearray(b"".join(block_of(kind, draw(properties_of(kind, 5))) for _ in range(draw(st.integers(1, 2)))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(block)))
        change = draw(st.sampled_from(["insert", "delete", "set", "cut"]))
        if change == "insert":
            block[at:at] = draw(st.binary(min_size=1, max_size=3))
        elif change == "delete":
            del block[at : at + draw(st.integers(1, 3))]
        elif change == "cut":
            del block[at:]
        elif at < len(block):
            block[at] = draw(st.integers(0, 255))
    return kind, bytes(block)


def test_frames_are_packets() -> None:
    for kind in FRAMES:
        assert by_the_codec(kind, b"") == (0, {}), kind


@BOUNDED
@given(damaged_blocks())
@example(("Publish", b"\x02\0\0\0\x05\x23\0\x07"))
@example(("Publish", b"\x23\0\0"))
@example(("Publish", b"\x01\x02"))
@example(("Publish", b"\x08\0\x01#"))
@example(("Publish", b"\x08\0\x02\xc0\x80"))
@example(("Publish", b"\x26\0\1a\0\1b" * 129))
@example(("Publish", b"\x0b\x80\x00"))
@example(("Subscribe", b"\x0b\x00"))
@example(("Connect", b"\x16\0\0"))
@example(("Connect", b"\x21\0\0"))
@example(("Auth", b"\x15\0\1a\x16\0\0"))
@example(("Disconnect", b"\xa6\0"))
def test_same_verdict_as_the_codec(damaged: tuple[str, bytes]) -> None:
    kind, block = damaged
    expected, properties = by_the_codec(kind, block)
    code, seen, expiry, alias = check_properties(block, OWNERS[kind])
    assert code == expected
    if not code:
        assert seen == sorted(IDENTIFIERS[name] for name in properties)
        assert expiry == properties.get("message_expiry_interval")
        assert alias == properties.get("topic_alias")


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_a_property_where_it_has_no_place_is_malformed(name: str) -> None:
    """[5: 2.2.2.2]"""
    (row,) = [row for row in PROPERTIES if row.name == name]
    for owner in range(16):
        code = check_properties(bytes((row.identifier,)) + bytes(8), owner)[0]
        assert code == 0x81 or row.packets >> owner & 1
