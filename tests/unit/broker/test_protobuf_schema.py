"""Protobuf payloads: their columns, their values, and payloads that don't fit."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq.broker.schemas.payload_schema import MAX_VALUES, Misfit
from flockmq.broker.schemas.protobuf import ProtobufSchema
from flockmq.broker.schemas.types import UINT64, List, Map, Scalar, Struct
from tests.harness.descriptors import descriptor_set, message

SCALARS = {
    "double": (Scalar.DOUBLE, 1.5),
    "float": (Scalar.FLOAT, -0.5),
    "int64": (Scalar.INT64, -(2**63)),
    "uint64": (UINT64, 2**64 - 1),
    "int32": (Scalar.INT32, -(2**31)),
    "fixed64": (UINT64, 2**63 + 1),
    "fixed32": (Scalar.INT64, 2**32 - 1),
    "bool": (Scalar.BOOLEAN, True),
    "string": (Scalar.STRING, "\u00e4"),
    "bytes": (Scalar.BYTES, b"\xff"),
    "uint32": (Scalar.INT64, 2**32 - 1),
    "sfixed32": (Scalar.INT32, -(2**31)),
    "sfixed64": (Scalar.INT64, -(2**63)),
    "sint32": (Scalar.INT32, -(2**31)),
    "sint64": (Scalar.INT64, -(2**63)),
}


@pytest.mark.parametrize("kind", SCALARS)
def test_scalar_types(kind: str) -> None:
    """The largest and the smallest number of each type; Spark's own function makes some of them negative."""
    expected, value = SCALARS[kind]
    data = descriptor_set(f"message Reading\n{kind} one\nrepeated {kind} more\noptional {kind} absent")
    schema = ProtobufSchema(data)
    assert schema.columns == {"one": expected, "more": List(expected), "absent": expected}
    reading = message(data, "site.Reading")
    assert schema.row(b"") == {"one": type(value)(), "more": [], "absent": None}
    reading.one, reading.absent = value, type(value)()
    reading.more.extend([value, value])
    assert schema.row(reading.SerializeToString()) == {"one": value, "more": [value] * 2, "absent": type(value)()}


PARTS = """
enum State OFF ON
message Place
double x
double y
message Empty
message Reading
site.Place place
repeated site.Place places
map site.Place named
map int32 counts
site.State state
repeated site.State states
oneof string text
oneof int32 number
google.protobuf.Timestamp at
google.protobuf.UInt64Value large
google.protobuf.Struct extra
site.Empty empty
"""


def test_messages_maps_enums_and_the_known_types() -> None:
    data = descriptor_set(PARTS)
    schema = pickle.loads(pickle.dumps(ProtobufSchema(data, "site.Reading")))
    place = Struct((("x", Scalar.DOUBLE), ("y", Scalar.DOUBLE)))
    assert schema.columns == {
        "place": place,
        "places": List(place),
        "named": Map(Scalar.STRING, place),
        "counts": Map(Scalar.STRING, Scalar.INT32),
        "state": Scalar.STRING,
        "states": List(Scalar.STRING),
        "text": Scalar.STRING,
        "number": Scalar.INT32,
        "at": Scalar.TIMESTAMP,
        "large": UINT64,
        "extra": Scalar.STRING,
        "empty": Scalar.BOOLEAN,
    }
    absent = dict.fromkeys(("place", "text", "number", "at", "large", "extra", "empty"))
    empty = {"places": [], "named": [], "counts": [], "state": "OFF", "states": []}
    assert schema.row(b"") == {**absent, **empty}
    reading = message(data, "site.Reading")
    reading.place.x = 1
    reading.places.add(y=2)
    reading.named["a"].x = 3
    reading.counts["b"] = 4
    reading.state = 1
    reading.states.extend([0, 1, 7])
    reading.number = 0
    reading.at.FromMicroseconds(1)
    reading.large.value = 2**64 - 1
    reading.extra["k"] = [1, None]
    reading.empty.SetInParent()
    assert schema.row(reading.SerializeToString()) == {
        "place": {"x": 1, "y": 0},
        "places": [{"x": 0, "y": 2}],
        "named": [("a", {"x": 3, "y": 0})],
        "counts": [("b", 4)],
        "state": "ON",
        "states": ["OFF", "ON", "7"],
        "text": None,
        "number": 0,
        "at": 1,
        "large": 2**64 - 1,
        "extra": '{"k": [1.0, null]}',
        "empty": True,
    }


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x0a\x02\xff\xfe", "UTF-8|arsing"),  # a text that is none
        (b"\x0a\x05ab", "arsing"),  # it ends within a text
        (b"\x10" + b"\xff" * 10 + b"\x01", "arsing"),  # an integer without end
        (b'{"text": "JSON"}', "arsing"),
        (b"\x0b" * 200, "arsing"),  # unknown groups, one within the other
        (b"\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "arsing"),
        (b"\x1a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "years 1 and 9999"),
        (b"\x1a\x06\x10\x80\x94\xeb\xdc\x03", "years 1 and 9999"),  # 10^9 nanoseconds
    ],
)
def test_payloads_that_do_not_fit(payload: bytes, words: str) -> None:
    source = "message Reading\nstring text\nint64 number\ngoogle.protobuf.Timestamp at"
    for syntax in ("proto3", "proto2"):
        with pytest.raises(Misfit, match=words):
            ProtobufSchema(descriptor_set(source, syntax=syntax)).row(payload)


def test_a_required_field() -> None:
    schema = ProtobufSchema(descriptor_set("message Reading\nrequired int32 number", syntax="proto2"))
    assert schema.row(b"\x08\x07") == {"number": 7}
    with pytest.raises(Misfit, match="missing: number"):
        schema.check(b"")


def test_unknown_fields_are_of_a_newer_schema() -> None:
    older = ProtobufSchema(descriptor_set("message Reading\nint32 a"))
    newer = message(descriptor_set("message Reading\nint32 a\nrepeated string b"), "site.Reading")
    newer.a = 1
    newer.b.extend(["x", "y"])
    assert older.row(newer.SerializeToString()) == {"a": 1}


def test_a_small_payload_can_not_take_much_memory() -> None:
    """A message of two bytes has a value for each of its fields."""
    fields = "\n".join(f"int32 f{number}" for number in range(100))
    schema = ProtobufSchema(
        descriptor_set(f"message Wide\n{fields}\nmessage Reading\nrepeated site.Wide wide"), "site.Reading"
    )
    assert len(schema.row(b"\x0a\x00" * 1000)["wide"]) == 1000
    with pytest.raises(Misfit, match=f"more than {MAX_VALUES} values"):
        schema.row(b"\x0a\x00" * 100_000)


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (
            "message A\nint32 x\nmessage B\nint32 y",
            "",
            "FILE#NAME .*: one of site.A, site.B",
        ),
        ("message A\nint32 x", "site.C", "no message site.C; there are site.A"),
        ("message A\nsite.A inner", "", "site.A is within itself"),
        ("message A\nsite.B b\nmessage B\nrepeated site.A a", "site.A", "site.A is within itself"),
        ("message A", "", "site.A has no fields"),
    ],
)
def test_wrong_schemas(source: str, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        assert ProtobufSchema(descriptor_set(source), name).columns


def test_a_set_without_imports() -> None:
    data = descriptor_set("message A\ngoogle.protobuf.Timestamp at", imports=False)
    with pytest.raises(ValueError, match="protoc needs --include_imports"):
        ProtobufSchema(data)


@pytest.mark.parametrize("data", [b"", b"no descriptor", b"\x0a\x00", b"\x08\x01"])
def test_no_descriptor_set(data: bytes) -> None:
    with pytest.raises(ValueError, match="protoc --include_imports --descriptor_set_out"):
        ProtobufSchema(data)


@given(st.binary(max_size=60))
def test_any_bytes_fit_or_do_not(payload: bytes) -> None:
    """A payload that fits has all columns."""
    try:
        row = EVERY.row(payload)
    except Misfit:
        return
    assert row.keys() == EVERY.columns.keys()


EVERY = ProtobufSchema(descriptor_set(PARTS), "site.Reading")
