"""What nodes say to each other over channels. Layout version 1; the whole of it is in deploy/docs/CLUSTER.md.

A batch of messages begins with `B`, then: length of the node's id u8, its id, previous u64, seq u64, little-endian,
then PUBLISH packets. With seq > 0 it is that entry of the node's log, and `previous` the entry before it that went to
the same node. With seq 0 it is QoS 0, in no log, and `previous` counts the bytes sent to the node so far.
Everything else is MessagePack: an array whose first element says what it is.
"""

import struct
from typing import Any, NamedTuple

from _speedups.msgpack import DamagedMessage, pack, unpack

BATCH = b"B"
NUMBERS = struct.Struct("<QQ")


class Batch(NamedTuple):
    """Messages of another node."""

    node: bytes
    previous: int
    seq: int
    packets: bytes


def batch_header(node: bytes, previous: int, seq: int) -> bytes:
    """What comes before the packets of a batch."""
    return BATCH + bytes([len(node)]) + node + NUMBERS.pack(previous, seq)


def decode(data: bytes) -> Batch | list[Any]:
    """A batch, or the elements of another message.

    Raises:
        DamagedMessage: it is neither.
    """
    if data[:1] != BATCH:
        message = unpack(data)
        if not isinstance(message, list) or not message:
            raise DamagedMessage("a message that says nothing")
        return message
    end = 2 + data[1]
    if len(data) < end + NUMBERS.size:
        raise DamagedMessage("a batch that is cut short")
    previous, seq = NUMBERS.unpack_from(data, end)
    return Batch(data[2:end], previous, seq, data[end + NUMBERS.size :])


def applied(node: bytes, change: int) -> bytes:
    """The node has applied all changes up to this one."""
    return pack([b"applied", node, change])


def credit(node: bytes, position: int) -> bytes:
    """The node has taken so many bytes of the receiver's batches of QoS 0."""
    return pack([b"credit", node, position])
