"""Owns: frames of WebSocket as a server takes them, read off RFC 6455, section 5. Judges _speedups/net/websocket.pyx.

Without buffers and pieces: all that was sent, from the first byte, is looked at at once.
"""

from typing import NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, UNSUPPORTED_DATA = 1000, 1002, 1003


class Taken(NamedTuple):
    """The content of frames."""

    payload: bytes = b""  # of all data frames
    answers: tuple[bytes, ...] = ()  # frames to send: pongs, and at most one close at the end
    code: int = 0  # why the connection ends; 0 = it goes on


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bytes | None = b"\x01\x82\x43\xc4"
) -> bytes:
    """One frame; without `mask` as a server sends it."""
    size = len(payload)
    marked = 0x80 if mask is not None else 0
    head = bytes([0x80 * fin | reserved << 4 | opcode])
    if size < 126:
        head += bytes([marked | size])
    elif size < 65536:
        head += bytes([marked | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([marked | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def take(data: bytes) -> Taken:
    """The result of a server for the first bytes that a client sends."""
    payload, answers, going_on = b"", [], False
    at = 0

    def ended(code: int) -> Taken:
        return Taken(payload, (*answers, frame(CLOSE, code.to_bytes(2, "big"), mask=None)), code)

    while at + 2 <= len(data):
        fin, opcode, masked, size = data[at] >> 7, data[at] & 15, data[at + 1] >> 7, data[at + 1] & 127
        extra = {126: 2, 127: 8}.get(size, 0)
        first = at + 2 + extra + 4 * masked
        if first > len(data):
            break
        if extra:
            announced, size = size, int.from_bytes(data[at + 2 : at + 2 + extra], "big")
        if data[at] & 0x70 or not masked:
            return ended(PROTOCOL_ERROR)
        if opcode >= 8 and (opcode > PONG or not fin or size > 125 or extra):
            return ended(PROTOCOL_ERROR)
        if opcode == TEXT:
            return ended(UNSUPPORTED_DATA)
        if opcode < 8 and (opcode > BINARY or (opcode == CONTINUATION) != going_on):
            return ended(PROTOCOL_ERROR)
        if extra and (size < (126 if announced == 126 else 65536) or size >> 63):
            return ended(PROTOCOL_ERROR)
        mask = data[first - 4 : first]
        body = bytes(byte ^ mask[n % 4] for n, byte in enumerate(data[first : first + size]))
        if opcode < 8:
            going_on = not fin
            payload += body
        if len(body) < size:
            break
        if opcode == PING:
            answers.append(frame(PONG, body, mask=None))
        elif opcode == CLOSE:
            if size == 1:
                return ended(PROTOCOL_ERROR)
            return Taken(payload, (*answers, frame(CLOSE, body[:2], mask=None)), NORMAL)
        at = first + size
    return Taken(payload, tuple(answers))
