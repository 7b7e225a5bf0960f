"""The messages between nodes, over channels of Redis. Layout version 1, specified in deploy/docs/CLUSTER.md.

A batch of messages is: kind u8, length of the node's id u8, its id, number u64, little-endian, then PUBLISH packets.
Kind `L` (logged) has QoS 1 and 2, and is entry `number` of the node's log. Kind `Q` has QoS 0, and is in no log; its
`number` counts the bytes sent to the receiver so far, for the receiver to confirm.
All other messages are MessagePack arrays, the kind first.
"""

import struct
from typing import Any, NamedTuple

from _speedups.base.msgpack import DamagedMessage, pack, unpack

LOGGED, QOS_0 = b"L", b"Q"
NUMBER = struct.Struct("<Q")


class Batch(NamedTuple):
    """Messages of another node."""

    logged: bool
    node: bytes
    number: int
    packets: bytes


def batch_header(kind: bytes, node: bytes, number: int) -> bytes:
    """The bytes before the packets of a batch."""
    return kind + bytes([len(node)]) + node + NUMBER.pack(number)


def decode(data: bytes) -> Batch | list[Any]:
    """A batch, or the elements of another message.

    Raises:
        DamagedMessage: it is neither.
    """
    kind = data[:1]
    if kind not in (LOGGED, QOS_0):
        message = unpack(data)
        if not isinstance(message, list) or not message:
            raise DamagedMessage("an empty message")
        return message
    if len(data) < 2 or len(data) < 2 + data[1] + NUMBER.size:
        raise DamagedMessage("an incomplete batch")
    end = 2 + data[1]
    (number,) = NUMBER.unpack_from(data, end)
    return Batch(kind == LOGGED, data[2:end], number, data[end + NUMBER.size :])


def ask(node: bytes, number: int, method: str, arguments: str) -> bytes:
    """The node calls a method of all others; its calls are numbered, the arguments are JSON."""
    return pack([b"ask", node, number, method, arguments])


def answer(node: bytes, number: int, reply: str) -> bytes:
    """The node's reply to a call of the receiver: JSON of `broker.core.calls.RpcReply`."""
    return pack([b"answer", node, number, reply])


def applied(node: bytes, change: int) -> bytes:
    """The node has applied all changes up to this one."""
    return pack([b"applied", node, change])


def back(node: bytes, change: int) -> bytes:
    """The node has a link again, and has applied all changes up to this one; others reply with their position."""
    return pack([b"back", node, change])


def credit(node: bytes, position: int) -> bytes:
    """The node has received so many bytes of the receiver's batches of QoS 0."""
    return pack([b"credit", node, position])
