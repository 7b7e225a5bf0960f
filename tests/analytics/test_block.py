"""Blocks as Arrow batches, held against the plain-Python encoder; damage is reported, and damaged rows are not used."""

import pickle
import struct
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockmq._speedups.codec.properties import encode_block
from flockmq.cluster.analytics.errors import BlockError
from flockmq.cluster.analytics.log.block import SCHEMA, Selection, record_batch
from flockmq.cluster.analytics.log.header import find_columns, parse_header
from flockmq.cluster.analytics.log.properties import parse_columns
from flockmq.cluster.analytics.topic_filter import TopicFilters
from tests.analytics.log_rows import rows
from tests.model.log_block import HEADER, Row, decode, encode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
blocks = st.lists(rows, max_size=12)


def as_rows(batch: object, node: str = "a") -> list[Row]:
    """The rows that Spark will see, by the model."""
    if batch is None:
        return []
    assert batch.schema.equals(SCHEMA)  # type: ignore[attr-defined]
    batch.validate(full=True)  # type: ignore[attr-defined]
    got = []
    for row in batch.to_pylist():  # type: ignore[attr-defined]
        assert row.pop("node") == node
        accepted = (row.pop("accepted_at") - EPOCH) // timedelta(microseconds=1)
        got.append(Row(accepted, **row))
    return got


@given(st.lists(blocks, min_size=1, max_size=4))
def test_rows_are_those_of_the_model(messages: list[list[Row]]) -> None:
    encoded = [encode(block, rows_before=3, bytes_before=96, lacking=7) for block in messages]
    assert [decode(block) for block in encoded] == messages
    assert as_rows(record_batch(encoded, "a")) == [row for block in messages for row in block]


@given(blocks, st.integers(0, 1 << 52), st.integers(0, 1 << 52))
def test_only_wanted_times(messages: list[Row], since: int, until: int) -> None:
    wanted = [row for row in messages if since <= row.accepted < until]
    assert as_rows(record_batch([encode(messages)], "a", Selection(since=since, until=until))) == wanted


def test_only_wanted_topics() -> None:
    topic_names = ["a/b", "a", "b", "$SYS/x", "a/b/c"]
    messages = [Row(n, "c", topic, 0, False, False, b"") for n, topic in enumerate(topic_names)]
    block = encode(messages)

    def topics(*filters: str) -> list[str]:
        return [row.topic for row in as_rows(record_batch([block, block], "a", Selection(TopicFilters(filters))))]

    assert topics("a/#") == ["a/b", "a", "a/b/c"] * 2
    assert topics("+") == ["a", "b"] * 2
    assert topics("#") == ["a/b", "a", "b", "a/b/c"] * 2
    assert topics("$SYS/#", "b") == ["b", "$SYS/x"] * 2
    assert topics("nothing") == []


def test_a_block_without_properties_beside_one_with_some() -> None:
    plain = [Row(n, "c", "t", 0, False, False, b"x") for n in range(3)]
    more = [Row(3, "c", "t", 0, False, False, b"x", PROPERTIES)]
    assert as_rows(record_batch([encode(plain), encode(more)], "a")) == plain + more


PROPERTIES = encode_block(
    {
        "message_expiry_interval": 30,
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers/ü",
        "correlation_data": b"\xff",
        "user_property": [("tenant", "one"), ("tenant", "two"), ("a b", "x")],
    }
)


def test_properties_as_columns() -> None:
    names = "content-type, response-topic,correlation-data,user.tenant,user.a b,user.none"
    names += ",message-expiry-interval,payload-format-indicator"
    damaged = [PROPERTIES[:-1], b"\x0b\x01", b"\x26\0", b"\x02\0", b"\x09"]
    other = encode_block({"correlation_data": b"7", "content_type": ""})
    blocks = [PROPERTIES, None, other, PROPERTIES, *damaged]
    messages = [Row(n, "c", "t", 0, False, False, b"", block) for n, block in enumerate(blocks)]
    batch = record_batch([encode(messages[:2]), encode(messages[2:])], "a", decoded=parse_columns(names))
    batch.validate(full=True)
    assert batch.schema.names[len(SCHEMA.names) :] == [
        "content_type",
        "response_topic",
        "correlation_data",
        "user_tenant",
        "user_a_b",
        "user_none",
        "message_expiry_interval",
        "payload_format_indicator",
    ]
    rows = [tuple(row.values())[len(SCHEMA.names) :] for row in batch.to_pylist()]
    full = ("text/plain", "answers/ü", None, "one", "x", None, "30", "1")
    assert rows == [full, (None,) * 8, ("", None, "7", *[None] * 5), full, *[(None,) * 8] * len(damaged)]


@pytest.mark.parametrize("text", ["", "content_type", "user.", "topic-alias", "user.a-b,user.a_b", "content-type,"])
def test_wrong_names_of_properties(text: str) -> None:
    with pytest.raises(ValueError, match=r"names? of properties|one property"):
        parse_columns(text)


def test_decoding_is_cheap() -> None:
    """Messages of a device have equal properties; correlation data, which no two have in common, costs more."""
    count = 20_000
    columns = parse_columns("content-type,user.k")
    device = [b"\x03\0\x04json\x26\0\x01k\0\x01%d" % (n % 10) for n in range(count)]
    for least, unique in ((500_000, b""), (50_000, b"\x09\0\x05%05d")):
        properties = [common + (unique % n if unique else b"") for n, common in enumerate(device)]
        block = encode([Row(n, "c", "t", 0, False, False, b"", one) for n, one in enumerate(properties)])
        took = []
        for _ in range(5):
            begin = time.process_time()
            record_batch([block], "a", decoded=columns)
            took.append(time.process_time() - begin)
        assert count / min(took) > least, f"{count / min(took):.0f} rows/s"


@settings(max_examples=300)
@given(st.lists(rows, min_size=1, max_size=6), st.data())
def test_a_damaged_block_is_told_or_still_makes_sense(messages: list[Row], data: st.DataObject) -> None:
    block = bytearray(encode(messages))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = record_batch([bytes(block)], "a")
    except BlockError:
        return
    if batch is not None:
        batch.validate(full=True)
        batch.drop_columns(["accepted_at"]).to_pylist()


def test_every_cut_is_told() -> None:
    block = encode([Row(1, "client", "topic", 1, False, False, b"payload")] * 3)
    for size in range(len(block)):
        with pytest.raises(BlockError):
            record_batch([block[:size]], "a")
    with pytest.raises(BlockError, match="ends after"):
        record_batch([block + bytes(8)], "a")


def column(block: bytes, name: str) -> int:
    return int(getattr(find_columns(block, parse_header(block)), name).start)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("client", 4, -1, "out of bounds"),
        ("client", 4, 1, "out of bounds"),
        ("topic", 0, 2_000_000_000, "out of bounds"),
        ("payload_ends", 0, 4, "does not begin at 0"),
        ("payload_ends", 4, 1_000_000, "offset"),
        ("payload_ends", 8, -5, "offset"),
        ("payload_ends", 12, 1_000_000_000, "damaged"),
        ("payload_ends", 12, -8, "damaged"),
        ("client_ends", 4, 2_000_000_000, "damaged"),
        ("topic_ends", 4, -1, "damaged"),
    ],
)
def test_wrong_numbers_are_told(name: str, at: int, value: int, words: str) -> None:
    block = bytearray(encode([Row(n, "client", "topic", 1, False, False, b"payload") for n in range(3)]))
    struct.pack_into("<i", block, column(bytes(block), name) + at, value)
    with pytest.raises(BlockError, match=words):
        record_batch([bytes(block)], "a")


def test_names_that_are_not_utf8_are_told() -> None:
    block = bytearray(encode([Row(1, "client", "topic", 1, False, False, b"\xff")]))
    block[column(bytes(block), "topic_names")] = 0xFF
    with pytest.raises(BlockError, match="UTF"):
        record_batch([bytes(block)], "a")


def test_qos_3_is_told() -> None:
    with pytest.raises(BlockError, match="QoS 3"):
        record_batch([encode([Row(1, "c", "t", 3, False, False, b"")])], "a")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ((b"XX", 1, 0), "not a block"),
        ((b"FQ", 2, 0), "layout 2.*newer node"),
        ((b"FQ", 1, 2), "bits 2"),
    ],
)
def test_headers_of_others_are_told(header: tuple[bytes, int, int], words: str) -> None:
    with pytest.raises(BlockError, match=words) as caught:
        record_batch([HEADER.pack(*header, 0, 0, 0, 0, 0, 0, 0)], "a")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
