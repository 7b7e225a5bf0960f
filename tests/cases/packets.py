"""Owns: named frames as data, each with the packet it is or the error it has to be. Levels 3, 4 and 5.

Decode, encode, truncation, splitting, model comparison, fuzz seeds and benchmarks read the same table.
"""

from typing import Any, NamedTuple

from flockmq._speedups.codec.errors import MalformedPacket, ProtocolError, UnacceptableProtocol
from flockmq._speedups.codec.packets import (
    Auth,
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
from flockmq._speedups.codec.tables import PROPERTIES


class Case(NamedTuple):
    name: str
    statement: str  # the statement that decides it; an error's reason has to hold it if it starts with "MQTT"
    levels: tuple[int, ...]
    data: bytes
    packet: Packet | type[MalformedPacket]
    code: int | None = None  # of the error, where it is not the usual one of its class
    canonical: bool = True  # `packet` encodes to exactly `data`


ALL = (3, 4, 5)
OLD = (3, 4)  # without properties and reason codes
EXACT = (4, 5)  # where reserved bits are judged


def frame(first_byte: int, *pieces: bytes | str | int) -> bytes:
    """A frame of a short body: bytes as they are, a str with its length before it, an int as one byte."""
    body = b""
    for piece in pieces:
        if isinstance(piece, str):
            body += len(piece.encode()).to_bytes(2, "big") + piece.encode()
        else:
            body += bytes([piece]) if isinstance(piece, int) else piece
    assert len(body) < 16384
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) % 128 + 128, len(body) // 128])
    return bytes([first_byte]) + size + body


def bad(
    name: str,
    statement: str,
    levels: tuple[int, ...],
    data: bytes,
    error: type[MalformedPacket] = MalformedPacket,
    code: int | None = None,
) -> Case:
    return Case(name, statement, levels, data, error, code)


def lenient(name: str, statement: str, levels: tuple[int, ...], data: bytes, packet: Packet) -> Case:
    """A frame that is read, but that we would write otherwise."""
    return Case(name, statement, levels, data, packet, canonical=False)


ID = b"\x00\x0a"
NO_ID = b"\x00\x00"
KEEP = b"\x00\x0a"
V3 = "MQIsdp"
MQTT = "MQTT"
BAD_UTF8 = b"\x00\x02\xc3\x28"
NULL_UTF8 = b"\x00\x01\x00"

CONNECT = (
    Case("connect, least", "3.1", (4,), frame(0x10, MQTT, 4, 2, KEEP, ""), Connect("", keep_alive=10)),
    Case(
        "connect, clean start 0",
        "3.1.2.4",
        (4,),
        frame(0x10, MQTT, 4, 0, KEEP, "c"),
        Connect("c", clean_start=False, keep_alive=10),
    ),
    Case(
        "connect, all fields",
        "3.1.3",
        (4,),
        frame(0x10, MQTT, 4, 0xF6, KEEP, "c", "w/t", "gone", "u", "p"),
        Connect("c", True, 10, "u", b"p", "w/t", b"gone", 2, True),
    ),
    Case(
        "connect, empty user name and password",
        "3.1.3",
        (4,),
        frame(0x10, MQTT, 4, 0xC2, KEEP, "c", "", ""),
        Connect("c", True, 10, "", b""),
    ),
    Case(
        "connect, will QoS 1 and an empty will message",
        "3.1.3.3",
        (4,),
        frame(0x10, MQTT, 4, 0x0E, KEEP, "c", "w", ""),
        Connect("c", True, 10, None, None, "w", b"", 1, False),
    ),
    Case(
        "connect, keep alive of 18 h 12 min 15 s",
        "3.1.2.10",
        (4,),
        frame(0x10, MQTT, 4, 2, b"\xff\xff", "c"),
        Connect("c", keep_alive=65535),
    ),
    Case(
        "connect, level 3",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 2, KEEP, "c"),
        Connect("c", keep_alive=10, protocol_level=3),
    ),
    Case(
        "connect, level 3, all fields",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 0xEE, KEEP, "c", "w/t", "gone", "u", "p"),
        Connect("c", True, 10, "u", b"p", "w/t", b"gone", 1, True, protocol_level=3),
    ),
    lenient(
        "connect, level 3, unused header bits",
        "V3.1 3.1",
        (3,),
        frame(0x1F, V3, 3, 2, KEEP, "c"),
        Connect("c", keep_alive=10, protocol_level=3),
    ),
    lenient(
        "connect, level 3, reserved flag",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 3, KEEP, "c"),
        Connect("c", keep_alive=10, protocol_level=3),
    ),
    lenient(
        "connect, level 3, flags without strings",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 0xC2, KEEP, "c"),
        Connect("c", keep_alive=10, protocol_level=3),
    ),
    lenient(
        "connect, level 3, password flag alone without a string",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 0x42, KEEP, "c"),
        Connect("c", keep_alive=10, protocol_level=3),
    ),
    lenient(
        "connect, level 3, password flag without its string",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 0xC2, KEEP, "c", "u"),
        Connect("c", True, 10, "u", protocol_level=3),
    ),
    lenient(
        "connect, level 3, will bits without a will",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 0x3A, KEEP, "c"),
        Connect("c", keep_alive=10, protocol_level=3),
    ),
    Case(
        "connect, will message is not text",
        "3.1.3.3",
        (4,),
        frame(0x10, MQTT, 4, 0x06, KEEP, "c", "w", b"\x00\x02\xff\x00"),
        Connect("c", True, 10, None, None, "w", b"\xff\x00"),
    ),
    Case(
        "connect, level 3, will message is not text",
        "V3.1 3.1",
        (3,),
        frame(0x10, V3, 3, 0x06, KEEP, "c", "w", b"\x00\x02\xff\x00"),
        Connect("c", True, 10, None, None, "w", b"\xff\x00", protocol_level=3),
    ),
    lenient(
        "connect, longer length than needed",
        "2.2.3",
        (4,),
        b"\x10\x8d\x00" + frame(0x10, MQTT, 4, 2, KEEP, "c")[2:],
        Connect("c", keep_alive=10),
    ),
    Case(
        "connect, level 5",
        "5: 3.1",
        (5,),
        frame(0x10, MQTT, 5, 2, KEEP, 0, "c"),
        Connect("c", keep_alive=10, protocol_level=5),
    ),
    Case(
        "connect, level 5, password alone",
        "5: 3.1.2.9",
        (5,),
        frame(0x10, MQTT, 5, 0x42, KEEP, 0, "c", "p"),
        Connect("c", True, 10, None, b"p", protocol_level=5),
    ),
    Case(
        "connect, level 5, will",
        "5: 3.1.3.2",
        (5,),
        frame(0x10, MQTT, 5, 0x06, KEEP, 3, b"\x21\x00\x05", "c", 5, b"\x18\x00\x00\x00\x07", "w", "m"),
        Connect(
            "c",
            True,
            10,
            None,
            None,
            "w",
            b"m",
            0,
            False,
            {"will_delay_interval": 7},
            {"receive_maximum": 5},
            protocol_level=5,
        ),
    ),
    bad("connect, unknown name", "MQTT-3.1.2-1", ALL, frame(0x10, "MQTt", 4, 2, KEEP, "c"), UnacceptableProtocol),
    bad("connect, HTTP", "MQTT-3.1.2-1", ALL, frame(0x10, "HTTP/1.1", 2, KEEP, "c"), UnacceptableProtocol),
    bad("connect, unknown level", "MQTT-3.1.2-2", ALL, frame(0x10, MQTT, 6, 2, KEEP, "c"), UnacceptableProtocol),
    bad(
        "connect, level 3 with the new name",
        "MQTT-3.1.2-2",
        ALL,
        frame(0x10, MQTT, 3, 2, KEEP, "c"),
        UnacceptableProtocol,
    ),
    bad(
        "connect, level 4 with the old name",
        "MQTT-3.1.2-2",
        ALL,
        frame(0x10, V3, 4, 2, KEEP, "c"),
        UnacceptableProtocol,
    ),
    bad("connect, header flags", "MQTT-2.2.2-2", ALL, frame(0x11, MQTT, 4, 2, KEEP, "c")),
    bad("connect, reserved flag", "MQTT-3.1.2-3", ALL, frame(0x10, MQTT, 4, 3, KEEP, "c")),
    bad("connect, level 5, reserved flag", "MQTT-3.1.2-3", ALL, frame(0x10, MQTT, 5, 3, KEEP, 0, "c")),
    bad("connect, will QoS 3", "MQTT-3.1.2-14", ALL, frame(0x10, MQTT, 4, 0x1E, KEEP, "c", "w", "m")),
    bad("connect, level 3, will QoS 3", "MQTT-3.1.2-14", ALL, frame(0x10, V3, 3, 0x1E, KEEP, "c", "w", "m")),
    bad("connect, will QoS without will", "MQTT-3.1.2-13", ALL, frame(0x10, MQTT, 4, 0x0A, KEEP, "c")),
    bad("connect, will retain without will", "MQTT-3.1.2-15", ALL, frame(0x10, MQTT, 4, 0x22, KEEP, "c")),
    bad("connect, will QoS 3 without will", "MQTT-3.1.2-11", ALL, frame(0x10, MQTT, 4, 0x1A, KEEP, "c")),
    bad("connect, password without user name", "MQTT-3.1.2-22", ALL, frame(0x10, MQTT, 4, 0x42, KEEP, "c", "p")),
    bad("connect, password flag alone", "MQTT-3.1.2-22", ALL, frame(0x10, MQTT, 4, 0x42, KEEP, "c", "", "")),
    bad("connect, level 3, password without user name", "MQTT-3.1.2-22", ALL, frame(0x10, V3, 3, 0x42, KEEP, "c", "p")),
    bad("connect, user name flag without user name", "3.1.2-19", ALL, frame(0x10, MQTT, 4, 0x82, KEEP, "c")),
    bad("connect, user name without its flag", "3.1.2-18", ALL, frame(0x10, MQTT, 4, 2, KEEP, "c", "u")),
    bad("connect, level 3, bytes too many", "V3.1", ALL, frame(0x10, V3, 3, 2, KEEP, "c", "u")),
    bad("connect, level 3, cut user name", "V3.1", ALL, frame(0x10, V3, 3, 0x82, KEEP, "c", b"\x00\x02u")),
    bad("connect, will flag without will", "3.1.2-9", ALL, frame(0x10, MQTT, 4, 6, KEEP, "c")),
    bad("connect, will without message", "3.1.2-9", ALL, frame(0x10, MQTT, 4, 6, KEEP, "c", "w")),
    bad("connect, no client identifier", "3.1.3-3", ALL, frame(0x10, MQTT, 4, 2, KEEP)),
    bad("connect, client identifier not UTF-8", "MQTT-1.5.3-1", ALL, frame(0x10, MQTT, 4, 2, KEEP, BAD_UTF8)),
    bad("connect, client identifier with null", "MQTT-1.5.3-2", ALL, frame(0x10, MQTT, 4, 2, KEEP, NULL_UTF8)),
    bad("connect, level 3, client identifier not UTF-8", "MQTT-1.5.3-1", ALL, frame(0x10, V3, 3, 2, KEEP, BAD_UTF8)),
    bad("connect, will topic not UTF-8", "MQTT-1.5.3-1", ALL, frame(0x10, MQTT, 4, 6, KEEP, "c", BAD_UTF8, "m")),
    bad(
        "connect, will topic with wildcard",
        "MQTT-3.3.2-2",
        ALL,
        frame(0x10, MQTT, 4, 6, KEEP, "c", "w/#", "m"),
        code=0x90,
    ),
    bad("connect, will topic empty", "MQTT-4.7.3-1", ALL, frame(0x10, MQTT, 4, 6, KEEP, "c", "", "m"), code=0x90),
    bad("connect, user name not UTF-8", "MQTT-1.5.3-1", ALL, frame(0x10, MQTT, 4, 0x82, KEEP, "c", BAD_UTF8)),
    bad(
        "connect, level 5, longer length than needed",
        "5: MQTT-1.5.5-1",
        ALL,
        b"\x10\x8e\x00" + frame(0x10, MQTT, 5, 2, KEEP, 0, "c")[2:],
    ),
)

CONNACK = (
    Case("connack", "3.2", OLD, b"\x20\x02\x00\x00", Connack()),
    Case("connack, session present", "3.2.2.2", (4,), b"\x20\x02\x01\x00", Connack(True)),
    *(
        Case(f"connack, return code {code}", "3.2.2.3", OLD, bytes([0x20, 2, 0, code]), Connack(False, code))
        for code in range(1, 6)
    ),
    lenient("connack, level 3, reserved byte", "V3.1 3.2", (3,), b"\x20\x02\xff\x00", Connack()),
    lenient("connack, level 3, unused header bits", "V3.1 3.2", (3,), b"\x2f\x02\x00\x00", Connack()),
    Case("connack, level 5", "5: 3.2", (5,), b"\x20\x03\x01\x00\x00", Connack(True)),
    Case("connack, level 5, not authorized", "5: 3.2", (5,), b"\x20\x03\x00\x87\x00", Connack(False, 0x87)),
    bad("connack, header flags", "MQTT-2.2.2-2", EXACT, b"\x21\x02\x00\x00"),
    bad("connack, acknowledge flags", "MQTT-3.2.2-1", (4,), b"\x20\x02\x02\x00"),
    bad("connack, reserved return code", "3.2.2.3", OLD, b"\x20\x02\x00\x06"),
    bad("connack, refused with a session", "MQTT-3.2.2-4", (4,), b"\x20\x02\x01\x05", ProtocolError),
    bad("connack, too short", "3.2", OLD, b"\x20\x01\x00"),
    bad("connack, too long", "3.2", OLD, b"\x20\x03\x00\x00\x00"),
    bad("connack, level 5, code of another packet", "5: 3.2.2.2", (5,), b"\x20\x03\x00\x92\x00"),
)

PUBLISH = (
    Case("publish, QoS 0", "3.3", OLD, frame(0x30, "a/b", b"hello"), Publish("a/b", b"hello")),
    Case("publish, no payload", "3.3.3", OLD, frame(0x30, "a"), Publish("a")),
    Case("publish, retain", "3.3.1.3", OLD, frame(0x31, "a", b"x"), Publish("a", b"x", retain=True)),
    Case("publish, QoS 1", "3.3.2.2", OLD, frame(0x32, "a/b", ID, b"x"), Publish("a/b", b"x", 1, packet_id=10)),
    Case("publish, QoS 2", "3.3.2.2", OLD, frame(0x34, "a/b", ID, b"x"), Publish("a/b", b"x", 2, packet_id=10)),
    Case("publish, QoS 1 again", "3.3.1.1", OLD, frame(0x3A, "a", ID), Publish("a", b"", 1, False, True, 10)),
    Case(
        "publish, QoS 2 again, retain",
        "3.3.1.1",
        OLD,
        frame(0x3D, "a", b"\xff\xff"),
        Publish("a", b"", 2, True, True, 65535),
    ),
    Case("publish, payload is no text", "3.3.3", OLD, frame(0x30, "a", b"\xff\x00\xc0"), Publish("a", b"\xff\x00\xc0")),
    Case(
        "publish, topic name of many bytes",
        "4.7.3",
        OLD,
        frame(0x30, "$a//ä€\U0001f600/"),
        Publish("$a//ä€\U0001f600/"),
    ),
    Case("publish, two length bytes", "2.2.3", OLD, frame(0x30, "a", bytes(125)), Publish("a", bytes(125))),
    lenient("publish, longer length than needed", "2.2.3", OLD, b"\x30\x83\x80\x80\x00\x00\x01a", Publish("a")),
    lenient("publish, level 3, DUP with QoS 0", "V3.1 2.1", (3,), frame(0x38, "a"), Publish("a")),
    Case("publish, level 5", "5: 3.3", (5,), frame(0x32, "a", ID, 0, b"x"), Publish("a", b"x", 1, packet_id=10)),
    Case(
        "publish, level 5, topic alias only",
        "5: 3.3.2.1",
        (5,),
        frame(0x30, "", 3, b"\x23\x00\x07", b"x"),
        Publish("", b"x", properties={"topic_alias": 7}),
    ),
    bad("publish, QoS 3", "MQTT-3.3.1-4", ALL, frame(0x36, "a", ID)),
    bad("publish, DUP with QoS 0", "MQTT-3.3.1-2", EXACT, frame(0x38, "a", 0)),
    bad("publish, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(0x32, "a", NO_ID, 0), ProtocolError),
    bad("publish, QoS 2, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(0x34, "a", NO_ID, 0), ProtocolError),
    bad("publish, QoS 1 without packet identifier", "2.3.1", ALL, frame(0x32, "a")),
    bad("publish, empty topic name", "MQTT-4.7.3-1", OLD, frame(0x30, "", b"x"), code=0x90),
    bad("publish, topic name with plus", "MQTT-3.3.2-2", ALL, frame(0x30, "a/+", 0), code=0x90),
    bad("publish, topic name with hash", "MQTT-3.3.2-2", ALL, frame(0x30, "#", 0), code=0x90),
    bad("publish, topic name not UTF-8", "MQTT-1.5.3-1", ALL, frame(0x30, BAD_UTF8, 0)),
    bad("publish, topic name with null", "MQTT-1.5.3-2", ALL, frame(0x30, NULL_UTF8, 0)),
    bad("publish, topic name with surrogate", "MQTT-1.5.3-1", ALL, frame(0x30, b"\x00\x03\xed\xa0\x80", 0)),
    bad("publish, topic name cut", "3.3.2.1", ALL, frame(0x30, b"\x00\x05a/b")),
    bad("publish, no topic name", "3.3.2.1", ALL, b"\x30\x00"),
    bad("publish, level 5, neither name nor alias", "5: 3.3.2.1", (5,), frame(0x30, "", 0), ProtocolError),
    bad("publish, level 5, longer length than needed", "5: MQTT-1.5.5-1", (5,), b"\x30\x84\x00\x00\x01a\x00"),
    bad("publish, level 5, cut properties", "5: 3.3.2.3", (5,), frame(0x30, "a", 5, b"\x23\x00\x01")),
    bad("publish, level 5, long property length", "5: MQTT-1.5.5-1", (5,), frame(0x30, "a", b"\x80\x00")),
    bad(
        "publish, level 5, property length of five bytes",
        "5: MQTT-1.5.5-1",
        (5,),
        frame(0x30, "a", b"\x80\x80\x80\x80\x01"),
    ),
    bad("publish, level 5, unknown property", "5: 2.2.2.2", (5,), frame(0x30, "a", 2, b"\x7e\x00")),
    bad("publish, level 5, long property identifier", "5: MQTT-1.5.5-1", (5,), frame(0x30, "a", 3, b"\x81\x00\x00")),
    bad(
        "publish, level 5, topic alias 0",
        "5: MQTT-3.3.2-8",
        (5,),
        frame(0x30, "a", 3, b"\x23\x00\x00"),
        ProtocolError,
        0x94,
    ),
    bad(
        "publish, level 5, subscription identifier 0",
        "5: 3.3.2.3.8",
        (5,),
        frame(0x30, "a", 2, b"\x0b\x00"),
        ProtocolError,
    ),
    bad(
        "publish, level 5, response topic with wildcard",
        "MQTT-3.3.2-2",
        (5,),
        frame(0x30, "a", 4, b"\x08\x00\x01#"),
        code=0x90,
    ),
    bad("publish, level 5, payload format 2", "5: 3.3.2.3.2", (5,), frame(0x30, "a", 2, b"\x01\x02"), ProtocolError),
    bad(
        "publish, level 5, too many user properties",
        "",
        (5,),
        frame(0x30, "a", b"\x85\x05", b"\x26\x00\x00\x00\x00" * 129),
        ProtocolError,
        0x97,
    ),
)

ACKS = (
    *(
        case
        for kind, name, packet in (
            (0x40, "puback", Puback),
            (0x50, "pubrec", Pubrec),
            (0x62, "pubrel", Pubrel),
            (0x70, "pubcomp", Pubcomp),
        )
        for case in (
            Case(name, "3.4-3.7", ALL, frame(kind, ID), packet(10)),
            Case(f"{name}, largest", "3.4-3.7", ALL, frame(kind, b"\xff\xff"), packet(65535)),
            lenient(f"{name}, level 3, unused header bits", "V3.1 3.4-3.7", (3,), frame(kind ^ 0x0B, ID), packet(10)),
            Case(
                f"{name}, level 5, reason code",
                "5: 3.4.2.1",
                (5,),
                frame(kind, ID, 0x92 if name in ("pubrel", "pubcomp") else 0x97),
                packet(10, 0x92 if name in ("pubrel", "pubcomp") else 0x97),
            ),
            lenient(f"{name}, level 5, empty properties", "5: 3.4.2.2", (5,), frame(kind, ID, 0, 0), packet(10)),
            bad(f"{name}, header flags", "MQTT-2.2.2-2", EXACT, frame(kind ^ 0x02, ID)),
            bad(f"{name}, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(kind, NO_ID), ProtocolError),
            bad(f"{name}, empty", "3.4-3.7", ALL, frame(kind)),
            bad(f"{name}, one byte", "3.4-3.7", ALL, frame(kind, 1)),
            bad(f"{name}, bytes too many", "3.4-3.7", OLD, frame(kind, ID, 0)),
            bad(f"{name}, level 5, unknown reason code", "5: 3.4.2.1", (5,), frame(kind, ID, 0x05)),
            bad(f"{name}, level 5, bytes after the properties", "5: 3.4.2.2", (5,), frame(kind, ID, 0, 0, 0)),
        )
    ),
)

SUBSCRIBE = (
    Case(
        "subscribe, two filters",
        "3.8.3",
        OLD,
        frame(0x82, ID, "a/b", 1, "c/d", 2),
        Subscribe(10, [("a/b", 1), ("c/d", 2)]),
    ),
    Case("subscribe, wildcards", "3.8.3", OLD, frame(0x82, ID, "+/#", 0), Subscribe(10, [("+/#", 0)])),
    Case(
        "subscribe, wrong wildcard is the broker's to refuse",
        "3.8.4",
        OLD,
        frame(0x82, ID, "a#", 0, "+b", 0),
        Subscribe(10, [("a#", 0), ("+b", 0)]),
    ),
    lenient("subscribe, level 3, header flags", "V3.1 3.8", (3,), frame(0x8B, ID, "a", 1), Subscribe(10, [("a", 1)])),
    lenient(
        "subscribe, level 3, upper six bits", "V3.1 3.8", (3,), frame(0x82, ID, "a", 0xFE), Subscribe(10, [("a", 2)])
    ),
    Case(
        "subscribe, level 5, options", "5: 3.8.3.1", (5,), frame(0x82, ID, 0, "a", 0x2D), Subscribe(10, [("a", 0x2D)])
    ),
    Case(
        "subscribe, level 5, identifier",
        "5: 3.8.2.1",
        (5,),
        frame(0x82, ID, 3, b"\x0b\x80\x01", "a", 0),
        Subscribe(10, [("a", 0)], {"subscription_identifier": 128}),
    ),
    Case(
        "subscribe, level 5, shared",
        "5: 4.8.2",
        (5,),
        frame(0x82, ID, 0, "$share/g/a", 2),
        Subscribe(10, [("$share/g/a", 2)]),
    ),
    bad("subscribe, header flags", "MQTT-2.2.2-2", EXACT, frame(0x80, ID, 0, "a", 1)),
    bad("subscribe, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(0x82, NO_ID, "a", 1), ProtocolError),
    bad("subscribe, no filter", "MQTT-3.8.3-3", OLD, frame(0x82, ID), ProtocolError),
    bad("subscribe, level 5, no filter", "MQTT-3.8.3-3", (5,), frame(0x82, ID, 0), ProtocolError),
    bad("subscribe, empty", "3.8", ALL, b"\x82\x00"),
    bad("subscribe, filter without QoS", "3.8.3", OLD, frame(0x82, ID, "a")),
    bad("subscribe, QoS 3", "MQTT-3.8.3-4", OLD, frame(0x82, ID, "a", 3)),
    bad("subscribe, reserved bits", "MQTT-3.8.3-4", (4,), frame(0x82, ID, "a", 4)),
    bad("subscribe, empty filter", "MQTT-4.7.3-1", OLD, frame(0x82, ID, "", 1)),
    bad("subscribe, filter not UTF-8", "MQTT-1.5.3-1", OLD, frame(0x82, ID, BAD_UTF8, 1)),
    bad("subscribe, filter with null", "MQTT-1.5.3-2", OLD, frame(0x82, ID, NULL_UTF8, 1)),
    bad("subscribe, filter cut", "3.8.3", OLD, frame(0x82, ID, "a", 1, b"\x00\x05a")),
    bad("subscribe, level 5, QoS 3", "MQTT-3.8.3-4", (5,), frame(0x82, ID, 0, "a", 3), ProtocolError),
    bad("subscribe, level 5, reserved bits", "MQTT-3.8.3-4", (5,), frame(0x82, ID, 0, "a", 0x40)),
    bad("subscribe, level 5, retain handling 3", "5: 3.8.3.1", (5,), frame(0x82, ID, 0, "a", 0x30), ProtocolError),
    bad(
        "subscribe, level 5, no local on a shared one",
        "MQTT-3.8.3-4",
        (5,),
        frame(0x82, ID, 0, "$share/g/a", 4),
        ProtocolError,
    ),
    bad(
        "subscribe, level 5, two identifiers",
        "5: 3.8.2.1",
        (5,),
        frame(0x82, ID, 4, b"\x0b\x01\x0b\x02", "a", 0),
        ProtocolError,
    ),
)

SUBACK = (
    Case("suback", "3.9", OLD, frame(0x90, ID, 0, 1, 2), Suback(10, [0, 1, 2])),
    Case("suback, failure", "3.9.3", (4,), frame(0x90, ID, 0x80), Suback(10, [0x80])),
    lenient("suback, level 3, upper six bits", "V3.1 3.9", (3,), frame(0x90, ID, 0xFD), Suback(10, [1])),
    lenient("suback, level 3, unused header bits", "V3.1 3.9", (3,), frame(0x9F, ID, 1), Suback(10, [1])),
    Case("suback, level 5", "5: 3.9", (5,), frame(0x90, ID, 0, 2, 0x8F), Suback(10, [2, 0x8F])),
    bad("suback, header flags", "MQTT-2.2.2-2", EXACT, frame(0x91, ID, 0, 0)),
    bad("suback, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(0x90, NO_ID, 0), ProtocolError),
    bad("suback, return code 3", "MQTT-3.9.3-2", OLD, frame(0x90, ID, 3)),
    bad("suback, return code 0x81", "MQTT-3.9.3-2", (4,), frame(0x90, ID, 0x81)),
    bad("suback, no return code", "3.9.3", OLD, frame(0x90, ID)),
    bad("suback, level 5, no reason code", "5: 3.9.3", (5,), frame(0x90, ID, 0)),
    bad("suback, level 5, code of another packet", "5: 3.9.3", (5,), frame(0x90, ID, 0, 0x92)),
)

UNSUBSCRIBE = (
    Case("unsubscribe", "3.10", OLD, frame(0xA2, ID, "a/b", "c/d"), Unsubscribe(10, ["a/b", "c/d"])),
    Case("unsubscribe, wrong wildcard", "3.10", OLD, frame(0xA2, ID, "a#"), Unsubscribe(10, ["a#"])),
    lenient("unsubscribe, level 3, header flags", "V3.1 3.10", (3,), frame(0xAF, ID, "a"), Unsubscribe(10, ["a"])),
    Case("unsubscribe, level 5", "5: 3.10", (5,), frame(0xA2, ID, 0, "a"), Unsubscribe(10, ["a"])),
    bad("unsubscribe, header flags", "MQTT-2.2.2-2", EXACT, frame(0xA0, ID, 0, "a")),
    bad("unsubscribe, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(0xA2, NO_ID, "a"), ProtocolError),
    bad("unsubscribe, no filter", "MQTT-3.10.3-2", OLD, frame(0xA2, ID), ProtocolError),
    bad("unsubscribe, empty filter", "MQTT-4.7.3-1", OLD, frame(0xA2, ID, "")),
    bad("unsubscribe, filter not UTF-8", "MQTT-1.5.3-1", OLD, frame(0xA2, ID, BAD_UTF8)),
    bad("unsubscribe, filter cut", "3.10.3", OLD, frame(0xA2, ID, b"\x00\x02a")),
    Case("unsuback", "3.11", OLD, frame(0xB0, ID), Unsuback(10)),
    lenient("unsuback, level 3, unused header bits", "V3.1 3.11", (3,), frame(0xBF, ID), Unsuback(10)),
    Case("unsuback, level 5", "5: 3.11", (5,), frame(0xB0, ID, 0, 0, 0x11), Unsuback(10, [0, 0x11])),
    bad("unsuback, header flags", "MQTT-2.2.2-2", EXACT, frame(0xB2, ID, 0, 0)),
    bad("unsuback, packet identifier 0", "MQTT-2.3.1-1", ALL, frame(0xB0, NO_ID), ProtocolError),
    bad("unsuback, bytes too many", "3.11", OLD, frame(0xB0, ID, 0)),
    bad("unsuback, level 5, no reason code", "5: 3.11.3", (5,), frame(0xB0, ID, 0)),
)

SHORT = (
    Case("pingreq", "3.12", ALL, b"\xc0\x00", Pingreq()),
    Case("pingresp", "3.13", ALL, b"\xd0\x00", Pingresp()),
    Case("disconnect", "3.14", ALL, b"\xe0\x00", Disconnect()),
    lenient("pingreq, level 3, unused header bits", "V3.1 3.12", (3,), b"\xcf\x00", Pingreq()),
    lenient("pingresp, level 3, unused header bits", "V3.1 3.13", (3,), b"\xdf\x00", Pingresp()),
    lenient("disconnect, level 3, unused header bits", "V3.1 3.14", (3,), b"\xef\x00", Disconnect()),
    lenient("pingreq, longer length than needed", "2.2.3", OLD, b"\xc0\x80\x80\x80\x00", Pingreq()),
    bad("pingreq, header flags", "MQTT-2.2.2-2", EXACT, b"\xc1\x00"),
    bad("pingresp, header flags", "MQTT-2.2.2-2", EXACT, b"\xd8\x00"),
    bad("disconnect, header flags", "MQTT-2.2.2-2", EXACT, b"\xe2\x00"),
    bad("pingreq, with a body", "3.12", ALL, b"\xc0\x01\x00"),
    bad("pingresp, with a body", "3.13", ALL, b"\xd0\x01\x00"),
    bad("disconnect, with a body", "3.14", OLD, b"\xe0\x01\x00"),
    Case("disconnect, level 5, reason code", "5: 3.14.2.1", (5,), b"\xe0\x02\x04\x00", Disconnect(4), canonical=False),
    Case(
        "disconnect, level 5, reason",
        "5: 3.14.2.2",
        (5,),
        frame(0xE0, 0x8E, 5, 0x1F, "by"),
        Disconnect(0x8E, {"reason_string": "by"}),
    ),
    lenient("disconnect, level 5, code without properties", "5: 3.14.2.2", (5,), b"\xe0\x01\x00", Disconnect()),
    bad("disconnect, level 5, code of another packet", "5: 3.14.2.1", (5,), b"\xe0\x01\x92"),
    Case("auth, empty", "5: 3.15", (5,), b"\xf0\x00", Auth()),
    Case(
        "auth",
        "5: 3.15",
        (5,),
        frame(0xF0, 0x18, 8, 0x15, "m", 0x16, "d"),
        Auth(0x18, {"authentication_method": "m", "authentication_data": b"d"}),
    ),
    bad("auth, header flags", "MQTT-2.2.2-2", (5,), b"\xf1\x00"),
    bad("auth, data without method", "5: 3.15.2.2.3", (5,), frame(0xF0, 0x18, 4, 0x16, "d"), ProtocolError),
    bad("packet type 0", "MQTT-2.2.2-2", ALL, b"\x00\x00"),
    bad("packet type 15", "MQTT-2.2.2-2", OLD, b"\xf0\x00"),
    bad("remaining length of five bytes", "2.2.3", ALL, b"\x30\x80\x80\x80\x80\x00"),
    bad("remaining length beyond the frame", "2.2.3", ALL, b"\xc0\x01"),
    bad("bytes after the frame", "2.2.3", ALL, b"\xc0\x00\x00"),
    bad("first byte only", "2.2.3", ALL, b"\xc0"),
    bad("nothing", "2.2.3", ALL, b""),
)

# One row for each property of level 5: its bytes after the identifier, its value, and packets that may carry it.
# Every packet that is not named is tried too, and has to refuse it. "will" is the will of a CONNECT.
PROPERTY_CASES: dict[str, tuple[bytes, Any, str]] = {
    "payload_format_indicator": (b"\x01", 1, "publish will"),
    "message_expiry_interval": (b"\x00\x01\x00\x00", 65536, "publish will"),
    "content_type": (b"\x00\x01t", "t", "publish will"),
    "response_topic": (b"\x00\x03r/t", "r/t", "publish will"),
    "correlation_data": (b"\x00\x02\xff\x00", b"\xff\x00", "publish will"),
    "subscription_identifier": (b"\xff\xff\xff\x7f", 268_435_455, "publish subscribe"),
    "session_expiry_interval": (b"\xff\xff\xff\xff", 0xFFFFFFFF, "connect connack disconnect"),
    "assigned_client_identifier": (b"\x00\x01i", "i", "connack"),
    "server_keep_alive": (b"\x00\x3c", 60, "connack"),
    "authentication_method": (b"\x00\x01m", "m", "connect connack auth"),
    "authentication_data": (b"\x00\x01d", b"d", ""),  # stands only beside a method; see "auth" above
    "request_problem_information": (b"\x00", 0, "connect"),
    "will_delay_interval": (b"\x00\x00\x00\x05", 5, "will"),
    "request_response_information": (b"\x01", 1, "connect"),
    "response_information": (b"\x00\x01r", "r", "connack"),
    "server_reference": (b"\x00\x01s", "s", "connack disconnect"),
    "reason_string": (b"\x00\x02\xc3\xa4", "ä", "connack puback pubrec pubrel pubcomp suback unsuback disconnect auth"),
    "receive_maximum": (b"\xff\xff", 65535, "connect connack"),
    "topic_alias_maximum": (b"\x00\x00", 0, "connect connack"),
    "topic_alias": (b"\x00\x01", 1, "publish"),
    "maximum_qos": (b"\x00", 0, "connack"),
    "retain_available": (b"\x00", 0, "connack"),
    "user_property": (
        b"\x00\x01k\x00\x00",
        ("k", ""),
        "connect connack publish will puback pubrec pubrel pubcomp subscribe suback unsubscribe unsuback disconnect "
        "auth",
    ),
    "maximum_packet_size": (b"\x00\x00\x00\x64", 100, "connect connack"),
    "wildcard_subscription_available": (b"\x01", 1, "connack"),
    "subscription_identifier_available": (b"\x00", 0, "connack"),
    "shared_subscription_available": (b"\x00", 0, "connack"),
}

# A packet of each type around a property block, as bytes and as object.
CARRIERS: dict[str, tuple[Any, Any]] = {
    "connect": (
        lambda block: frame(0x10, MQTT, 5, 2, KEEP, block, "c"),
        lambda found: Connect("c", keep_alive=10, properties=found, protocol_level=5),
    ),
    "will": (
        lambda block: frame(0x10, MQTT, 5, 6, KEEP, 0, "c", block, "w", "m"),
        lambda found: Connect("c", True, 10, None, None, "w", b"m", will_properties=found, protocol_level=5),
    ),
    "connack": (lambda block: frame(0x20, 0, 0, block), lambda found: Connack(properties=found)),
    "publish": (lambda block: frame(0x30, "a", block, b"x"), lambda found: Publish("a", b"x", properties=found)),
    "puback": (lambda block: frame(0x40, ID, 0, block), lambda found: Puback(10, properties=found)),
    "pubrec": (lambda block: frame(0x50, ID, 0, block), lambda found: Pubrec(10, properties=found)),
    "pubrel": (lambda block: frame(0x62, ID, 0, block), lambda found: Pubrel(10, properties=found)),
    "pubcomp": (lambda block: frame(0x70, ID, 0, block), lambda found: Pubcomp(10, properties=found)),
    "subscribe": (lambda block: frame(0x82, ID, block, "a", 0), lambda found: Subscribe(10, [("a", 0)], found)),
    "suback": (lambda block: frame(0x90, ID, block, 0), lambda found: Suback(10, [0], found)),
    "unsubscribe": (lambda block: frame(0xA2, ID, block, "a"), lambda found: Unsubscribe(10, ["a"], found)),
    "unsuback": (lambda block: frame(0xB0, ID, block, 0), lambda found: Unsuback(10, [0], found)),
    "disconnect": (lambda block: frame(0xE0, 0, block), lambda found: Disconnect(0, found)),
    "auth": (lambda block: frame(0xF0, 0, block), lambda found: Auth(0, found)),
}


def property_cases() -> list[Case]:
    """Each property in each packet, once and twice."""
    cases = []
    identifiers = {row.name: row.identifier for row in PROPERTIES}
    for name, (value_bytes, value, places) in PROPERTY_CASES.items():
        one = bytes([identifiers[name]]) + value_bytes
        for carrier, (make_bytes, make_packet) in CARRIERS.items():
            once = make_bytes(bytes([len(one)]) + one)
            twice = make_bytes(bytes([2 * len(one)]) + one * 2)
            short = make_bytes(bytes([len(one) - 1]) + one[:-1])
            where = f"{name} in {carrier}"
            if carrier not in places.split():
                lonely = name == "authentication_data" and carrier in ("connect", "connack", "auth")
                cases.append(bad(where, "5: 2.2.2.2", (5,), once, ProtocolError if lonely else MalformedPacket))
                continue
            many = name == "user_property" or (name == "subscription_identifier" and carrier == "publish")
            cases.append(Case(where, "5: 2.2.2.2", (5,), once, make_packet({name: [value] if many else value})))
            if many:
                cases.append(Case(f"{where}, twice", "5: 2.2.2.2", (5,), twice, make_packet({name: [value, value]})))
            else:
                cases.append(bad(f"{where}, twice", "5: 2.2.2.2", (5,), twice, ProtocolError))
            cases.append(bad(f"{where}, cut", "5: 2.2.2.2", (5,), short))
    return cases


CASES: tuple[Case, ...] = (
    *CONNECT,
    *CONNACK,
    *PUBLISH,
    *ACKS,
    *SUBSCRIBE,
    *SUBACK,
    *UNSUBSCRIBE,
    *SHORT,
    *property_cases(),
)
VALID = tuple(case for case in CASES if not isinstance(case.packet, type))
INVALID = tuple(case for case in CASES if isinstance(case.packet, type))
