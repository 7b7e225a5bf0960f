"""The first 16 bytes of a checked message's payload: which stream it is of, its number there, when it was sent.

Owns the layout. Rules:
- The time is the machine's monotonic clock in microseconds, which all processes of one machine share; `here` says
  whether the message comes from this machine. From another one it is checked, but its latency isn't known.
- Streams are numbered from 1; a message of stream 0 has a time and a number, and is not checked.
- A message that is sent again in a way that may make two of it is marked `resent`, so that whoever receives both knows
  without asking whose fault that is.
"""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path
from typing import NamedTuple

_LAYOUT = struct.Struct(">BBIIHI")  # mark, machine and flag, stream, number, microseconds (48 bits)
SIZE = _LAYOUT.size
_MARK = 0xF7  # no text begins with it
_RESENT = 0x80
_BOOT = Path("/proc/sys/kernel/random/boot_id")
MACHINE = zlib.crc32(_BOOT.read_bytes() if _BOOT.exists() else b"") & 0x7F
_PADDING = bytes(1 << 16)


class Stamp(NamedTuple):
    """What a payload says about itself."""

    stream: int
    number: int
    sent_at: int  # microseconds
    resent: bool
    here: bool


def now() -> int:
    """Microseconds of the clock that stamps are made with."""
    return time.monotonic_ns() // 1000


def payload(stream: int, number: int, size: int, sent_at: int) -> bytes:
    """A payload of `size` bytes, at least SIZE."""
    head = _LAYOUT.pack(_MARK, MACHINE, stream, number, sent_at >> 32 & 0xFFFF, sent_at & 0xFFFFFFFF)
    return head + (_PADDING[: size - SIZE] if size - SIZE <= len(_PADDING) else bytes(size - SIZE))


def read(data: bytes) -> Stamp | None:
    """The stamp of a payload, if it has one."""
    if len(data) < SIZE or data[0] != _MARK:
        return None
    _, flags, stream, number, high, low = _LAYOUT.unpack_from(data)
    return Stamp(stream, number, high << 32 | low, bool(flags & _RESENT), flags & 0x7F == MACHINE)


def mark_resent(data: bytes) -> bytes:
    """The payload with the mark of a message sent again; one without a stamp as it is."""
    if read(data) is None:
        return data
    return bytes((data[0], data[1] | _RESENT)) + data[2:]
