"""Sparkplug B payloads: numbers with their signs, absent values, and payloads that don't fit."""

import pickle
from typing import Any

import pytest

from flockmq.broker.schemas.payload_schema import Misfit
from flockmq.broker.schemas.sparkplug import DATA_TYPES, SparkplugSchema, descriptor_set
from tests.harness.descriptors import message


@pytest.fixture(scope="module")
def schema() -> SparkplugSchema:
    """As an executor of Spark gets it."""
    found: SparkplugSchema = pickle.loads(pickle.dumps(SparkplugSchema()))
    return found


def payload() -> Any:
    """A payload to be filled."""
    return message(descriptor_set(), "sparkplug.Payload")


# The data type, the field, the number that was sent, and the number that was meant.
INTEGERS = [
    ("Int8", "int_value", 0xFF, -1),
    ("Int8", "int_value", 0xFFFFFF80, -128),  # sign-extended, as by Eclipse Tahu
    ("Int8", "int_value", 0x7F, 127),
    ("Int16", "int_value", 0xFFA9, -87),
    ("Int16", "int_value", 0xFFFFFFA9, -87),
    ("Int32", "int_value", 2**32 - 1, -1),
    ("Int32", "int_value", 2**31 - 1, 2**31 - 1),
    ("Int32", "long_value", 2**64 - 1, -1),
    ("Int64", "long_value", 2**64 - 5, -5),
    ("Int64", "long_value", 2**63, -(2**63)),
    ("UInt8", "int_value", 255, 255),
    ("UInt32", "int_value", 2**32 - 1, 2**32 - 1),
    ("UInt32", "long_value", 2**32 - 1, 2**32 - 1),
    ("UInt64", "long_value", 2**64 - 1, 2**64 - 1),
    ("DateTime", "long_value", 1_700_000_000_000, 1_700_000_000_000),
]


@pytest.mark.parametrize(("data_type", "field", "sent", "meant"), INTEGERS)
def test_integers(schema: SparkplugSchema, data_type: str, field: str, sent: int, meant: int) -> None:
    made = payload()
    made.metrics.add(datatype=DATA_TYPES.index(data_type), **{field: sent})
    (metric,) = schema.row(made.SerializeToString())["metrics"]
    assert (metric["datatype"], metric["int"]) == (data_type, meant)


def test_all_columns(schema: SparkplugSchema) -> None:
    made = payload()
    made.timestamp, made.seq, made.uuid, made.body = 1_700_000_000_123, 255, "u", b"\xff"
    made.metrics.add(name="Temp", alias=7, timestamp=1, datatype=10, double_value=21.5, is_historical=True)
    made.metrics.add(alias=8, int_value=0xFFFFFFFF)  # NDATA: a name and a data type are in NBIRTH only
    made.metrics.add(alias=9, datatype=12, is_null=True, string_value="ignored")
    made.metrics.add(name="on", datatype=11, boolean_value=False)
    made.metrics.add(name="set", datatype=16, dataset_value=b"\x08\x02")
    made.metrics.add(name="new", datatype=99, string_value="x", is_transient=True)
    row = schema.row(made.SerializeToString())
    nothing = dict.fromkeys([name for name, _ in schema.columns["metrics"].item])  # type: ignore[union-attr]
    assert row == {
        "timestamp": 1_700_000_000_123_000,
        "seq": 255,
        "uuid": "u",
        "body": b"\xff",
        "metrics": [
            {
                **nothing,
                "name": "Temp",
                "alias": 7,
                "timestamp": 1000,
                "datatype": "Double",
                "double": 21.5,
                "is_historical": True,
            },
            {**nothing, "alias": 8, "int": 0xFFFFFFFF},
            {**nothing, "alias": 9, "datatype": "String", "is_null": True},
            {**nothing, "name": "on", "datatype": "Boolean", "boolean": False},
            {**nothing, "name": "set", "datatype": "DataSet", "bytes": b"\x08\x02"},
            {**nothing, "name": "new", "datatype": "99", "string": "x", "is_transient": True},
        ],
    }


def test_bytes_of_another_program(schema: SparkplugSchema) -> None:
    """An NBIRTH with bdSeq, by hand, from the numbers of fields in the specification."""
    metric = b"\x0a\x05bdSeq" + b"\x18\xe8\x07" + b"\x20\x08" + b"\x58\x03"
    found = schema.row(b"\x08\xe8\x07" + b"\x12" + bytes([len(metric)]) + metric + b"\x18\x00")
    assert (found["timestamp"], found["seq"], found["metrics"][0]["name"]) == (1_000_000, 0, "bdSeq")
    assert (found["metrics"][0]["datatype"], found["metrics"][0]["int"]) == ("UInt64", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"online": true, "timestamp": 1668114759262}',  # STATE
        b"\x08" + b"\xff" * 9 + b"\x01",  # a time after the year 9999
        b"\x12\x05\x0a\x09abc",
        b"\x12\x04\x0a\x02\xff\xfe",  # a name that is no UTF-8
        b"\x18" + b"\xff" * 9 + b"\x01",  # 64 bits of seq
    ],
)
def test_payloads_that_do_not_fit(schema: SparkplugSchema, wrong: bytes) -> None:
    with pytest.raises(Misfit):
        schema.check(wrong)
