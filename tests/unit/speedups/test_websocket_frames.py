"""Frames of WebSocket: the compiled code against the model, whatever the pieces are in which bytes come."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.net.websocket import WebSocket
from tests.model.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    NORMAL,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    UNSUPPORTED_DATA,
    Taken,
    frame,
    take,
)

MASKS = st.binary(min_size=4, max_size=4)
SIZES = st.sampled_from([0, 1, 3, 7, 8, 9, 15, 16, 17, 125, 126, 127, 200, 4000])
PAYLOADS = st.builds(lambda size, seed: random.Random(seed).randbytes(size), SIZES, st.integers(0, 9))
GOOD = st.builds(frame, st.sampled_from([BINARY, BINARY, PONG]), st.binary(max_size=125), mask=MASKS)
LONG = st.builds(frame, st.just(BINARY), PAYLOADS, mask=MASKS)
PINGS = st.builds(frame, st.just(PING), st.binary(max_size=125), mask=MASKS)
ANY = st.builds(
    frame,
    st.integers(0, 15),
    PAYLOADS,
    fin=st.booleans(),
    reserved=st.sampled_from([0, 0, 0, 0, 1, 4, 7]),
    mask=st.one_of(MASKS, MASKS, MASKS, st.none()),
)
FRAGMENTS = st.lists(PAYLOADS, min_size=2, max_size=4).map(
    lambda parts: b"".join(
        frame(CONTINUATION if n else BINARY, part, fin=n == len(parts) - 1) for n, part in enumerate(parts)
    )
)
STREAMS = st.lists(st.one_of(GOOD, LONG, PINGS, FRAGMENTS, ANY), max_size=6).map(b"".join)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in pieces; the sizes are used round and round."""
    found, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        found.append(data[at : at + size])
        at += size
        turn += 1
    return found


def receive(data: bytes, cuts: list[int]) -> Taken:
    """The result of the compiled code for bytes that come in such pieces."""
    end = WebSocket()
    payload, answers = b"", []
    for piece in pieces(data, cuts):
        payload += end.receive(piece)
        if answer := end.send(b""):
            answers.append(answer)
    return Taken(payload, tuple(answers), end.code)


@given(STREAMS, st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_any_pieces_give_the_same(data: bytes, cuts: list[int]) -> None:
    expected = take(data)
    byte_by_byte = receive(data, [1])
    assert byte_by_byte == expected
    for found in (receive(data, [1 << 20]), receive(data, cuts)):
        assert found.payload == expected.payload
        assert found.code == expected.code
        assert found.answers[-1:] == expected.answers[-1:]  # of several pings in one piece the last is answered


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    assert receive(data, [1]) == take(data)


@given(st.lists(PAYLOADS, max_size=5), st.booleans())
def test_both_ends_understand_each_other(parts: list[bytes], from_client: bool) -> None:
    sender, receiver = WebSocket(client=from_client), WebSocket(client=not from_client)
    assert b"".join(receiver.receive(sender.send(part)) for part in parts) == b"".join(parts)
    assert receiver.code == 0


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 100_000])
def test_a_frame_has_the_shortest_head(size: int) -> None:
    assert WebSocket().send(bytes(size)) == (frame(BINARY, bytes(size), mask=None) if size else b"")


CASES = {
    "text": (frame(TEXT, b"x"), UNSUPPORTED_DATA),
    "no mask": (frame(BINARY, b"x", mask=None), PROTOCOL_ERROR),
    "reserved bits": (frame(BINARY, b"x", reserved=4), PROTOCOL_ERROR),
    "reserved opcode": (frame(3, b"x"), PROTOCOL_ERROR),
    "reserved control opcode": (frame(11), PROTOCOL_ERROR),
    "ping of 126 bytes": (frame(PING, bytes(126)), PROTOCOL_ERROR),
    "fragmented ping": (frame(PING, fin=False), PROTOCOL_ERROR),
    "fragment of nothing": (frame(CONTINUATION, b"x"), PROTOCOL_ERROR),
    "message in a message": (frame(BINARY, b"x", fin=False) + frame(BINARY, b"y"), PROTOCOL_ERROR),
    "length not in its shortest form": (b"\x82\xfe\0\1\0\0\0\0x", PROTOCOL_ERROR),
    "length of 2 to the 63": (b"\x82\xff\x80" + bytes(11), PROTOCOL_ERROR),
    "close": (frame(CLOSE, b"\x03\xe8bye"), NORMAL),
    "close without a code": (frame(CLOSE), NORMAL),
    "close with half a code": (frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", CASES)
def test_the_end(name: str) -> None:
    data, code = CASES[name]
    end = WebSocket()
    end.receive(data)
    answer = end.send(b"")
    assert end.code == code
    assert answer == take(data).answers[-1]
    assert end.receive(frame(BINARY, b"more")) == b""
    assert (end.fault is None) == (code == NORMAL)


def test_a_pong_waits_for_the_end_of_no_frame_of_ours() -> None:
    end = WebSocket()
    end.receive(frame(PING, b"a") + frame(PING, b"b"))
    assert end.send(b"payload") == frame(PONG, b"b", mask=None) + frame(BINARY, b"payload", mask=None)
