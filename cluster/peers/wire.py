"""What nodes say to each other over channels. Layout version 1; the whole of it is in deploy/docs/CLUSTER.md.

A batch of messages is: kind u8, length of the node's id u8, its id, number u64, little-endian, then PUBLISH packets.
Of kind `L` (logged) it is QoS 1 and 2, and entry `number` of the node's log. Of kind `Q` it is QoS 0, in no log, and
`number` counts the bytes sent to the receiver so far, which it may confirm.
Everything else is MessagePack: an array whose first element says what it is.
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
    """What comes before the packets of a batch."""
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
            raise DamagedMessage("a message that says nothing")
        return message
    if len(data) < 2 or len(data) < 2 + data[1] + NUMBER.size:
        raise DamagedMessage("a batch that is cut short")
    end = 2 + data[1]
    (number,) = NUMBER.unpack_from(data, end)
    return Batch(kind == LOGGED, data[2:end], number, data[end + NUMBER.size :])


def ask(node: bytes, number: int, question: str, arguments: str) -> bytes:
    """The node asks all others; its questions are numbered, the arguments are JSON."""
    return pack([b"ask", node, number, question, arguments])


def answer(node: bytes, number: int, found: str) -> bytes:
    """The node's answer to a question of the receiver's: JSON of `broker.core.calls.RpcReply`."""
    return pack([b"answer", node, number, found])


def applied(node: bytes, change: int) -> bytes:
    """The node has applied all changes up to this one."""
    return pack([b"applied", node, change])


def back(node: bytes, change: int) -> bytes:
    """The node had no link for a while, and has applied all changes up to this one; how far are the others?"""
    return pack([b"back", node, change])


def credit(node: bytes, position: int) -> bytes:
    """The node has taken so many bytes of the receiver's batches of QoS 0."""
    return pack([b"credit", node, position])
