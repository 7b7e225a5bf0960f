"""The first 16 bytes of a checked payload: its stream, the message's number there, and the time of sending.

Owns the layout. Rules:
- The time is the machine's monotonic clock in microseconds. All processes of one machine share it; `here` is whether
  the message was sent on this machine. The latency of a message from another machine is unknown.
- Streams are numbered from 1. A message of stream 0 has a time and a number, and is not checked.
- `resent` marks a message whose resending may create a second one, so that its receiver excuses the duplicate.
"""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path
from typing import NamedTuple

LAYOUT = struct.Struct(">BBIIHI")  # magic, machine and flag, stream, number, microseconds (48 bits)
SIZE = LAYOUT.size
MAGIC = 0xF7  # no UTF-8 text begins with it
RESENT = 0x80
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE = zlib.crc32(BOOT_ID.read_bytes() if BOOT_ID.exists() else b"") & 0x7F
PADDING = bytes(1 << 16)


class PayloadHeader(NamedTuple):
    """The fields of a payload's header."""

    stream: int
    number: int
    sent_at: int  # microseconds
    resent: bool
    here: bool


def now() -> int:
    """Microseconds of the clock of `sent_at`."""
    return time.monotonic_ns() // 1000


def payload(stream: int, number: int, size: int, sent_at: int) -> bytes:
    """A payload of `size` bytes, at least SIZE."""
    head = LAYOUT.pack(MAGIC, MACHINE, stream, number, sent_at >> 32 & 0xFFFF, sent_at & 0xFFFFFFFF)
    return head + (PADDING[: size - SIZE] if size - SIZE <= len(PADDING) else bytes(size - SIZE))


def read(data: bytes) -> PayloadHeader | None:
    """The header of a payload; None if it has none."""
    if len(data) < SIZE or data[0] != MAGIC:
        return None
    _, flags, stream, number, high, low = LAYOUT.unpack_from(data)
    return PayloadHeader(stream, number, high << 32 | low, bool(flags & RESENT), flags & 0x7F == MACHINE)


def mark_resent(data: bytes) -> bytes:
    """The payload with `resent` set; one without a header is unchanged."""
    if read(data) is None:
        return data
    return bytes((data[0], data[1] | RESENT)) + data[2:]
