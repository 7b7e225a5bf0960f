"""The wire of Redis: replies in RESP2 and RESP3, and messages of channels."""

from typing import Any

from tests.simulation.redis_types import RedisError, Status


def encode(out: bytearray, reply: Any, version: int, *, is_map: bool = False) -> None:
    """Write a reply in a version of RESP; `is_map`: a list of names and values is a map."""
    kind = type(reply)
    if kind is bytes:
        out += b"$%d\r\n%s\r\n" % (len(reply), reply)
    elif kind is int:
        out += b":%d\r\n" % reply
    elif reply is None:
        out += b"_\r\n" if version == 3 else b"$-1\r\n"
    elif kind is Status:
        out += b"+%s\r\n" % reply
    elif kind is RedisError:
        out += b"-%s\r\n" % str(reply).encode()
    elif is_map and version == 3:
        out += b"%%%d\r\n" % (len(reply) // 2)
        for each in reply:
            encode(out, each, version)
    else:
        out += b"*%d\r\n" % len(reply)
        for each in reply:
            encode(out, each, version)


def encode_push(kind: bytes, channel: bytes, value: bytes | int) -> bytes:
    """A message of a channel, or the confirmation of a subscription."""
    last = b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%s\r\n" % (len(value), value)
    return b">3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n%s" % (len(kind), kind, len(channel), channel, last)
