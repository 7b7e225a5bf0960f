"""PROXY protocol headers as data: bytes beside their meaning, or the words of the refusal."""

import socket
import struct
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"

Client = tuple[int, str, int]  # address family, address, port


class Header(NamedTuple):
    """One header; `client` is None where it names nobody."""

    name: str
    data: bytes
    client: Client | None


def binary(client: Client | None, *, command: int = 0x21, tlvs: bytes = b"") -> bytes:
    """A header of version 2."""
    if client is None:
        return SIGNATURE + struct.pack(">BBH", command, 0, len(tlvs)) + tlvs
    family, address, port = client
    packed = socket.inet_pton(family, address)
    body = packed + bytes(len(packed)) + struct.pack(">HH", port, 1883) + tlvs
    return SIGNATURE + struct.pack(">BBH", command, 0x11 if family == socket.AF_INET else 0x21, len(body)) + body


def line(client: Client) -> bytes:
    """A header of version 1."""
    family, address, port = client
    kind, own = ("TCP4", "10.0.0.1") if family == socket.AF_INET else ("TCP6", "::1")
    return f"PROXY {kind} {address} {own} {port} 1883\r\n".encode()


FOUR: Client = (socket.AF_INET, "203.0.113.7", 50123)
SIX: Client = (socket.AF_INET6, "2001:db8::7", 65535)

GOOD = (
    Header("v1 IPv4", line(FOUR), FOUR),
    Header("v1 IPv6", line(SIX), SIX),
    Header("v1 unknown", b"PROXY UNKNOWN\r\n", None),
    Header("v1 unknown with more", b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    Header("v2 IPv4", binary(FOUR), FOUR),
    Header("v2 IPv6", binary(SIX), SIX),
    Header("v2 with TLVs", binary(SIX, tlvs=b"\x01\x00\x04mqtt" + b"\x04\x00\x08" + bytes(8)), SIX),
    Header("v2 largest", binary(FOUR, tlvs=bytes(4096 - 28)), FOUR),
    Header("v2 health check", binary(None, command=0x20), None),
    Header("v2 local with an address", binary(FOUR, command=0x20), None),
    Header("v2 unspecified", binary(None), None),
    Header("v2 datagram", SIGNATURE + b"\x21\x12\x00\x0c" + bytes(12), None),
    Header("v2 unix socket", SIGNATURE + b"\x21\x31" + struct.pack(">H", 216) + bytes(216), None),
)

BAD = (
    ("nothing like it", b"\x10\x0c\x00\x04MQTT\x04", "no PROXY protocol header"),
    ("HTTP", b"GET / HTTP/1.1\r\n\r\n", "no PROXY protocol header"),
    ("another signature", b"\r\n\r\n\0\r\nQUIT\r\x21\x11\x00\x0c" + bytes(12), "no PROXY protocol header"),
    ("version 3", binary(FOUR, command=0x31), "version and command 0x31"),
    ("command 2", binary(FOUR, command=0x22), "version and command 0x22"),
    ("v2 too long", SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 4096), "header of 4112 bytes"),
    ("v2 too short for IPv4", SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11), "too short for its addresses"),
    ("v2 too short for IPv6", SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12), "too short for its addresses"),
    ("v1 without an end", b"PROXY TCP4 " + b"1" * 100, "without an end"),
    ("v1 of another family", b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n", "can't be read"),
    ("v1 without ports", b"PROXY TCP4 1.2.3.4 1.2.3.4\r\n", "can't be read"),
    ("v1 with no address", b"PROXY TCP4 1.2.3.256 1.2.3.4 1 2\r\n", "with no address"),
    ("v1 of the wrong family", b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "with no address"),
    ("v1 with bytes that are no text", b"PROXY TCP4 1.2.3.\xff 1.2.3.4 1 2\r\n", "with no address"),
    ("v1 with no port", b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n", "with no port"),
    ("v1 empty", b"PROXY \r\n", "can't be read"),
)
