"""Rows of blocks, against the model of tests/model/log_block.py."""

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockmq.cluster.analytics.errors import BlockError
from flockmq.cluster.analytics.log.header import parse_header
from flockmq.cluster.replay import rows
from tests.analytics.log_rows import rows as messages
from tests.model import log_block

batches = st.lists(messages, max_size=30)


@given(batches, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_rows_are_the_models(batch: list[log_block.Row], rows_before: int, bytes_before: int, lacking: int) -> None:
    block = log_block.encode(batch, rows_before=rows_before, bytes_before=bytes_before, lacking=lacking)
    assert [tuple(row) for row in rows.read(block)] == [tuple(row) for row in batch]
    assert parse_header(block)[:4] == (len(batch), rows_before, bytes_before, lacking)


@given(batches, st.integers(0, 5))
def test_only_what_is_wanted(batch: list[log_block.Row], length: int) -> None:
    block = log_block.encode(batch)
    found = rows.read(block, topic=lambda name: len(name) > length, client=lambda name: len(name) != length)
    expected = [row for row in batch if len(row.topic) > length and len(row.client_id) != length]
    assert [tuple(row) for row in found] == [tuple(row) for row in expected]


@given(batches, st.data())
def test_every_cut_is_told(batch: list[log_block.Row], data: st.DataObject) -> None:
    block = log_block.encode(batch)
    size = data.draw(st.integers(0, len(block) - 1))
    with pytest.raises(BlockError):
        rows.read(block[:size])


@settings(max_examples=300)
@given(batches, st.data())
def test_damage_is_told_or_read_but_never_anything_else(batch: list[log_block.Row], data: st.DataObject) -> None:
    block = bytearray(log_block.encode(batch))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = rows.read(bytes(block))
    except BlockError:
        return
    assert len(found) == parse_header(bytes(block)).rows


ONE = log_block.encode([log_block.Row(1, "c", "t", 1, True, False, b"12345678")])


@pytest.mark.parametrize(
    ("offset", "code", "value", "words"),
    [
        (0, "2s", b"XX", "begins with"),
        (2, "B", 2, "layout 2"),
        (3, "B", 2, "layout 1, bits 2"),
        (56, "i", 1, "counts to 1"),
        (56, "i", -1, "below 0"),
        (64, "i", 7, "counts to 7"),
        (72, "i", 1, "begin at 0"),
        (76, "i", -1, "cut short or damaged"),
        (76, "i", 9, "cut short"),
        (104, "B", 0xFF, "no UTF-8"),
    ],
)
def test_what_is_wrong_is_said(offset: int, code: str, value: object, words: str) -> None:
    block = bytearray(ONE)
    struct.pack_into(f"<{code}", block, offset, value)
    with pytest.raises(BlockError, match=words):
        rows.read(bytes(block))


def test_damaged_properties_are_told() -> None:
    block = log_block.encode([log_block.Row(1, "c", "t", 1, True, False, b"12345678", b"abc")])
    assert rows.read(block)[0].properties == b"abc"
    for offset, value in ((-12, -3), (-12, 9)):
        wrong = bytearray(block)
        struct.pack_into("<i", wrong, len(block) + offset, value)
        with pytest.raises(BlockError):
            rows.read(bytes(wrong))
    with pytest.raises(BlockError):
        rows.read(block[:-8])


def test_a_hundred_thousand_rows_a_second() -> None:
    batch = [log_block.Row(i, f"c{i % 50}", f"site/{i % 50}/temp", 0, False, False, b"x" * 64) for i in range(2000)]
    block = log_block.encode(batch)
    best = float("inf")
    for _ in range(20):
        begin = time.process_time()
        rows.read(block)
        best = min(best, time.process_time() - begin)
    assert len(batch) / best > 100_000, f"{len(batch) / best:.0f} rows/s"
