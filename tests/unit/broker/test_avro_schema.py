"""Avro payloads: fastavro writes them, and reads the same; and payloads that fastavro accepts and that don't fit."""

import decimal
import io
import json
import pickle
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq.broker.schemas.avro import AvroSchema
from flockmq.broker.schemas.payload_schema import MAX_VALUES, Misfit
from flockmq.broker.schemas.types import Decimal, List, Map, Scalar, Struct

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "namespace": "site",
    "fields": [
        {"name": "on", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "single", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OFF", "ON"]}},
        {"name": "states", "type": {"type": "array", "items": "State"}},
        {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 3}},
        {"name": "maybe", "type": ["null", "double"]},
        {"name": "either", "type": ["null", "int", "string", "State"]},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "places",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": ["null", "int"]}]},
            },
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exactly", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "nothing", "type": "null"},
    ],
}
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
STATES = st.sampled_from(["OFF", "ON"])
READINGS = st.fixed_dictionaries(
    {
        "on": st.booleans(),
        "small": st.integers(-(2**31), 2**31 - 1),
        "large": st.integers(-(2**63), 2**63 - 1),
        "single": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "raw": st.binary(max_size=5),
        "text": st.text(max_size=5),
        "state": STATES,
        "states": st.lists(STATES, max_size=3),
        "key": st.binary(min_size=3, max_size=3),
        "maybe": st.none() | st.floats(allow_nan=False),
        "either": st.none() | st.integers(-5, 5) | st.sampled_from(["a", "b"]),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=3),
        "places": st.lists(st.fixed_dictionaries({"x": st.none() | st.integers(-5, 5)}), max_size=3),
        "at": TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
        "exactly": TIMES,
        "day": st.dates(),
        "price": st.decimals(-9999, 9999, places=2),
        "id": st.uuids(),
        "nothing": st.none(),
    }
)


def encoded(schema: Any, value: Any) -> bytes:
    """A value, as fastavro writes it."""
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return output.getvalue()


def shown(name: str, value: Any) -> Any:
    """The value of a column for a value that fastavro has written."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if name == "either" and value is not None:
        return {"int": None, "string": None, "site.State": None, "int" if isinstance(value, int) else "string": value}
    if name == "counts":
        return list(value.items())
    return str(value) if isinstance(value, uuid.UUID) else value


@given(READINGS)
def test_payloads_of_another_library(value: dict[str, Any]) -> None:
    schema = AvroSchema(json.dumps(SCHEMA))
    payload = encoded(SCHEMA, value)
    row = pickle.loads(pickle.dumps(schema)).row(payload)
    assert row == {name: shown(name, each) for name, each in value.items()}
    for wrong in (payload + b"\0", payload[:-1]) if value["on"] else ():  # one with 0 in front may have a header
        with pytest.raises(Misfit):
            schema.row(wrong)


def test_types() -> None:
    assert AvroSchema(json.dumps(SCHEMA)).columns == {
        "on": Scalar.BOOLEAN,
        "small": Scalar.INT32,
        "large": Scalar.INT64,
        "single": Scalar.FLOAT,
        "double": Scalar.DOUBLE,
        "raw": Scalar.BYTES,
        "text": Scalar.STRING,
        "state": Scalar.STRING,
        "states": List(Scalar.STRING),
        "key": Scalar.BYTES,
        "maybe": Scalar.DOUBLE,
        "either": Struct((("int", Scalar.INT32), ("string", Scalar.STRING), ("site.State", Scalar.STRING))),
        "counts": Map(Scalar.STRING, Scalar.INT64),
        "places": List(Struct((("x", Scalar.INT32),))),
        "at": Scalar.TIMESTAMP,
        "exactly": Scalar.TIMESTAMP,
        "day": Scalar.DATE,
        "price": Decimal(6, 2),
        "id": Scalar.STRING,
        "nothing": Scalar.BOOLEAN,
    }


def of(kind: Any) -> AvroSchema:
    """A record with one field of this type."""
    return AvroSchema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}))


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
LARGEST = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^63 - 1


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        # fastavro accepts these:
        (ENUM, b"\x01"),  # the symbol -1
        (["int", "null"], b"\x01"),  # the branch -1
        ("boolean", b"\x02"),
        ("int", b"\x80\x80\x80\x80\xf0\x01"),  # 36 bits
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x06\x7f\xff\xff"),
        # It refuses these:
        (ENUM, b"\x08"),
        (["null", "int"], b"\x08"),
        ("long", b"\xff" * 11),
        ("long", b"\x80" * 9 + b"\x7f"),
        ("long", b""),
        ("boolean", b""),
        ("double", b"\0\0\0"),
        ("string", b"\x05abcdef"),  # a length below 0
        ("string", b"\x06ab"),
        ("string", LARGEST),
        ("string", b"\x02\xff"),
        ({"type": "string", "logicalType": "uuid"}, b"\x06abc"),
        ({"type": "long", "logicalType": "timestamp-millis"}, LARGEST),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f"),
        ({"type": "array", "items": "boolean"}, LARGEST + b"\x01" * 50),
        ({"type": "array", "items": "boolean"}, LARGEST[:-2] + b"\x7f" + LARGEST),
        ({"type": "map", "values": "null"}, LARGEST + b"\0" * 50),
    ],
)
def test_payloads_that_do_not_fit(kind: Any, payload: bytes) -> None:
    with pytest.raises(Misfit):
        of(kind).row(payload)


def test_blocks_with_their_size() -> None:
    """A block may have a count below 0, and then the number of its bytes; an array may have several blocks."""
    assert of({"type": "array", "items": "int"}).row(b"\x03\x04\x02\x04\x02\x06\x00") == {"f": [1, 2, 3]}


def test_a_small_payload_can_not_take_much_memory() -> None:
    schema = of({"type": "array", "items": {"type": "array", "items": "int"}})
    assert schema.row(b"\x04\x00\x00\x00") == {"f": [[], []]}
    count = MAX_VALUES + 1
    block = encoded({"type": "array", "items": "int"}, [0] * count)
    with pytest.raises(Misfit, match="more than"):
        of({"type": "array", "items": "int"}).row(block)


def test_frames() -> None:
    """The single-object encoding, with the fingerprint that the standard gives, and Confluent's."""
    schema, payload = of("string"), b"\x06abc"
    canonical = b'{"name":"R","type":"record","fields":[{"name":"f","type":"string"}]}'
    header = b"\xc3\x01" + crc_64(canonical).to_bytes(8, "little")
    for front in (b"", header, b"\0\0\0\0\x07"):
        assert schema.row(front + payload) == {"f": "abc"}
    with pytest.raises(Misfit):
        schema.row(header[:-1] + bytes([header[-1] ^ 1]) + payload)  # of another schema
    with pytest.raises(Misfit):
        schema.row(b"\0\0\0\0\x07" + payload + b"x")


def crc_64(data: bytes) -> int:
    """The fingerprint CRC-64-AVRO, as the standard defines it."""
    empty = 0xC15D213AA4D7A795
    value = empty
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (empty if value & 1 else 0)
    return value


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": "strin"}]}, "no Avro schema: .*strin"),
        ({"type": "record", "fields": []}, "no Avro schema"),
        ({"type": "record", "name": "R"}, "must be a record with fields"),
        ("string", "must be a record"),
        (["null", "int", "string"], "must be a record"),
        ({"type": "record", "name": "R", "fields": []}, "must be a record with fields"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
            "the record R is within itself",
        ),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}],
            },
            "39 digits, a column at most 38",
        ),
    ],
)
def test_wrong_schemas(schema: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AvroSchema(json.dumps(schema))


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_arrays_without_bytes(items: Any) -> None:
    """A payload of six bytes could be 200 million items."""
    with pytest.raises(ValueError, match="items without bytes"):
        of({"type": "array", "items": items})


@given(st.binary(max_size=40))
def test_any_bytes_fit_or_do_not(payload: bytes) -> None:
    kind = {"type": "array", "items": ["null", "int", ENUM, {"type": "map", "values": "string"}]}
    schema = of(kind)
    try:
        row = schema.row(payload)
    except Misfit:
        return
    assert row.keys() == {"f"}


def test_decimals_are_exact() -> None:
    schema = of({"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 3})
    assert schema.row((-1234).to_bytes(4, "big", signed=True)) == {"f": decimal.Decimal("-1.234")}
