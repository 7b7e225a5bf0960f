"""Blocks of the log as messages for one session: each that matches, once, in order; damage is an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.codec.packets import Publish
from flockmq._speedups.codec.topics import matches
from flockmq._speedups.log.log_source import DamagedLog, LogSource, check
from flockmq.broker.core.subscription_options import RETAIN_AS_PUBLISHED
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.model.log_block import Row, encode

NOW = 1_700_000_000_000_000
ROWS = st.builds(
    Row,
    accepted=st.integers(NOW - 10, NOW),
    client_id=st.sampled_from("ab"),
    topic=st.sampled_from(["t/1", "t/2", "u", "$own"]),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    dup=st.just(False),
    payload=st.binary(max_size=9),
    properties=st.sampled_from([None, b"\x03\x00\x01c", b"\x02\0\0\0\x05", b"\x02\0\0\0\0"]),
)
BLOCKS = st.lists(st.lists(ROWS, max_size=8), max_size=4)


def is_alive(row: Row) -> bool:
    return row.properties is None or row.properties != b"\x02\0\0\0\0"


@given(BLOCKS, st.sampled_from(["#", "t/+", "u", "$own", "x"]), st.integers(0, 9), st.integers(0, 3))
def test_a_session_gets_what_matches(blocks: list[list[Row]], wanted: str, ago: int, skipped: int) -> None:
    node = Node(KeepingStore())
    client = Client(node, "c")
    client.connack()
    ended: list[bool] = []
    source = LogSource(
        node.turn,
        [(encode(rows), skipped if number == 0 else 0, b"n:1-2:", 0) for number, rows in enumerate(blocks)],
        (lambda topic: matches(wanted, topic), NOW - ago),
        now=NOW,
        options=0,
        identifier=0,
        on_progress=lambda: None,
        on_end=lambda: ended.append(True),
    )
    session = node.sessions.get(b"c")
    assert session is not None
    session.pull_from(source)
    node.end_turn()
    node.run()
    rows = [row for number, each in enumerate(blocks) for row in (each[skipped:] if number == 0 else each)]
    expected = [
        (row.topic, row.payload, 0, False)
        for row in rows
        if matches(wanted, row.topic) and row.accepted >= NOW - ago and is_alive(row)
    ]
    found = [packet for packet in client.take() if isinstance(packet, Publish)]
    assert [(one.topic_name, one.payload, one.qos, one.retain) for one in found] == expected
    assert ended == [True] and source.sent == len(expected)
    node.close()


@given(st.lists(ROWS, min_size=1, max_size=8), st.data())
def test_a_cut_block_is_an_error(rows: list[Row], data: st.DataObject) -> None:
    block = encode(rows)
    check(block)
    with pytest.raises(DamagedLog):
        check(block[: data.draw(st.integers(0, len(block) - 1))])
    with pytest.raises(DamagedLog):
        check(block + bytes(8))


@given(st.lists(ROWS, min_size=1, max_size=8), st.data())
def test_no_byte_makes_it_read_elsewhere(rows: list[Row], data: st.DataObject) -> None:
    """A changed byte is an error, or a block whose columns are within it (AddressSanitizer would report others)."""
    block = bytearray(encode(rows))
    block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    try:
        check(bytes(block))
    except DamagedLog:
        return
    node = Node(KeepingStore())
    client = Client(node, "c")
    client.connack()
    source = LogSource(
        node.turn,
        [(bytes(block), 0, b"n:1-2:", 0)],
        (lambda _: True, -(1 << 63)),
        now=NOW,
        options=RETAIN_AS_PUBLISHED,
        identifier=0,
        on_progress=lambda: None,
        on_end=lambda: None,
    )
    session = node.sessions.get(b"c")
    assert session is not None
    session.pull_from(source)
    node.end_turn()
    node.run()
    assert source.index == 1
    node.close()
