"""No packet to a client is above its Maximum Packet Size, whatever refuses its CONNECT [5: MQTT-3.1.2-24, 3.2.2-19]."""

import socket

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect
from tests.harness.inprocess import Client, Node

CONNACK_MIN = 5
SIZES = [1, 4, 5, 6, 20, 62, 63, 200]


def connect(size: int, more: bytes = b"", **fields: object) -> bytes:
    """A CONNECT of level 5; `more` is added to its property block."""
    packet = encode(
        Connect("c", protocol_level=5, keep_alive=0, properties={"maximum_packet_size": size}, **fields),  # type: ignore[arg-type]
        5,
    )
    if more:
        at = packet.index(b"\x05\x27")
        packet = packet[:at] + bytes([5 + len(more)]) + packet[at + 1 : at + 6] + more + packet[at + 6 :]
        packet = packet[:1] + bytes([packet[1] + len(more)]) + packet[2:]
    return packet


WILL = {"will_topic": "a", "will_payload": b""}
FAULTS = {
    "a will topic with a wildcard": lambda size: connect(size, **WILL).replace(b"\x00\x01a\x00", b"\x00\x01#\x00"),
    "a will of QoS 3": lambda size: connect(size, **WILL).replace(b"MQTT\x05\x06", b"MQTT\x05\x1e"),
    "a reserved flag": lambda size: connect(size).replace(b"MQTT\x05\x02", b"MQTT\x05\x03"),
    "an unknown property": lambda size: connect(size, b"\x7f\x00"),
    "a property twice": lambda size: connect(size, b"\x21\x00\x01\x21\x00\x01"),
    "a client identifier that is no UTF-8": lambda size: connect(size)[:-1] + b"\xff",
    "bytes behind the payload": lambda size: (
        (packet := connect(size))[:1] + bytes([packet[1] + 1]) + packet[2:] + b"\x00"
    ),
    "a long form of the length": lambda size: (packet := connect(size))[:1] + bytes([packet[1] | 0x80, 0]) + packet[2:],
    "a client identifier of the broker's": lambda size: (
        connect(size)
        .replace(b"\x00\x01c", b"\x00\x07$link/a")
        .replace(bytes([len(connect(size)) - 2]), bytes([len(connect(size)) + 4]), 1)
    ),
}


def answer(node: Node, data: bytes) -> bytes:
    """All that the node sends."""
    client = Client(node)
    client.send(data)
    node.advance(20)
    client.socket.setblocking(True)
    found = b""
    while part := client.socket.recv(1000):
        found += part
    client.socket.shutdown(socket.SHUT_RDWR)
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_connect(fault: str) -> None:
    node = Node()
    for size in SIZES:
        found = answer(node, FAULTS[fault](size))
        assert len(found) <= size, f"{fault}, {size}: {found!r}"
        assert (len(found) >= CONNACK_MIN) == (size >= CONNACK_MIN)
        assert size < CONNACK_MIN or (found[:1] == b"\x20" and found[3] >= 0x80)


@pytest.mark.parametrize("more", [b"\x27\x00\x00\x00\x14\x7f", b"\x7f\x27\x00\x00\x00\x14"])
def test_properties_that_can_not_be_read(more: bytes) -> None:
    """The client may have a small Maximum Packet Size behind the fault, so it gets the smallest CONNACK."""
    packet = encode(Connect("c", protocol_level=5, keep_alive=0), 5)
    at = packet.index(b"MQTT") + 8
    packet = packet[:1] + bytes([packet[1] + len(more)]) + packet[2:at] + bytes([len(more)]) + more + packet[at + 1 :]
    found = answer(Node(), packet)
    assert CONNACK_MIN <= len(found) <= 20


def test_without_a_limit_the_reason_is_there() -> None:
    data = encode(Connect("c", protocol_level=5, keep_alive=0, **WILL), 5)  # type: ignore[arg-type]
    found = answer(Node(), data.replace(b"\x00\x01a\x00", b"\x00\x01#\x00"))
    assert b"will" in found.lower()
