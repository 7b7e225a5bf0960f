"""The messages between nodes, over channels of Redis, as deploy/docs/CLUSTER.md specifies them.

A batch of messages is: kind u8, length of the node's id u8, its id, number u64, little-endian, then PUBLISH packets.
Kind `L` (logged) has QoS 1 and 2, and is entry `number` of the node's log. Kind `Q` has QoS 0, and is in no log; its
`number` counts the bytes sent to the receiver so far, for the receiver to confirm.
All other messages are MessagePack arrays, the kind first. The large messages of such an array may come before it, each
by itself, as Redis has them; then `false` is in their places.
"""

import struct
from typing import Any

from ..._speedups.base.msgpack import DamagedMessage, pack, unpack

LOGGED, QOS_0 = b"L", b"Q"
NUMBER = struct.Struct("<Q")


def batch_header(kind: bytes, node: bytes, number: int) -> bytes:
    """The bytes before the packets of a batch."""
    return kind + bytes([len(node)]) + node + NUMBER.pack(number)


def decode(data: bytes) -> list[Any]:
    """The elements of a message that is no batch; `_speedups/cluster/batches.pyx` reads those.

    Raises:
        DamagedMessage: it is none.
    """
    message = unpack(data)
    if not isinstance(message, list) or not message:
        raise DamagedMessage("an empty message")
    return message


def is_apart(data: bytes) -> bool:
    """Whether this is a message that belongs to the array after it: the first half of its first byte is its kind."""
    return data[:1] < b"\x40"


def fill(parts: list[Any], apart: list[bytes]) -> None:
    """Put messages into their places in lists, the last first, and take them out of `apart`.

    Raises:
        DamagedMessage: there are more places.
    """
    for i in reversed(range(len(parts))):
        if isinstance(parts[i], list):
            fill(parts[i], apart)
        elif parts[i] is False:
            if not apart:
                raise DamagedMessage("a part that is not there")
            parts[i] = apart.pop()


def ask(node: bytes, number: int, method: str, arguments: str) -> bytes:
    """The node calls a method of all others; its calls are numbered, the arguments are JSON."""
    return pack([b"ask", node, number, method, arguments])


def answer(node: bytes, number: int, reply: str) -> bytes:
    """The node's reply to a call of the receiver: JSON of `flockmq.broker.core.calls.RpcReply`."""
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
