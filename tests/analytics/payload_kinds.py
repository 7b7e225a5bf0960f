"""A schema of each kind with a payload of all its types, and the values of its columns."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

from flockmq.broker.schemas.sparkplug import descriptor_set as sparkplug_set
from tests.harness.descriptors import descriptor_set, message

TIME = datetime(2026, 11, 29, 12, 0, 0, 123000, tzinfo=UTC)
MILLISECONDS = round(TIME.timestamp() * 1000)


class PayloadKind(NamedTuple):
    """A schema, a payload that fits, and its columns."""

    name: str  # of the schema
    file: str  # "": it has none
    schema: bytes
    payload: bytes
    columns: dict[str, Any]

    def write(self, folder: Path) -> str:
        """Write the file; returns the name of the schema."""
        if not self.file:
            return self.name
        (folder / self.file).write_bytes(self.schema)
        return str(folder / self.name)


def protobuf() -> PayloadKind:
    source = """
        enum State OFF ON
        message Place
        float x
        message Reading
        double temp
        int32 small
        uint32 count
        uint64 large
        bytes raw
        site.State state
        repeated site.Place places
        map int64 counts
        google.protobuf.Timestamp at
        optional bool on
    """
    data = descriptor_set(source)
    reading = message(data, "site.Reading")
    reading.temp, reading.small, reading.count, reading.large = 21.5, -7, 2**32 - 1, 2**64 - 1
    reading.raw, reading.state = b"\xff", 1
    reading.places.add(x=0.5)
    reading.counts["a"] = -1
    reading.at.FromDatetime(TIME)
    columns = {"temp": 21.5, "small": -7, "count": 2**32 - 1, "large": Decimal(2**64 - 1), "raw": b"\xff"}
    columns |= {"state": "ON", "places": [{"x": 0.5}], "counts": {"a": -1}, "at": TIME, "on": None}
    return PayloadKind("r.desc#site.Reading", "r.desc", data, reading.SerializeToString(), columns)


def avro() -> PayloadKind:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    place = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "float"}]}
    types: dict[str, Any] = {
        "temp": ["null", "double"],
        "small": "int",
        "on": "boolean",
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "made": {"type": "int", "logicalType": "date"},
        "price": price,
        "either": ["null", "long", "string"],
        "counts": {"type": "map", "values": "long"},
        "places": {"type": "array", "items": place},
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}
    columns = {"temp": None, "small": 7, "on": True, "at": TIME, "made": date(2026, 11, 29), "price": Decimal("12.50")}
    columns |= {"either": "b", "counts": {"a": 1}, "places": [{"x": 0.5}]}
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), columns)
    columns["either"] = {"long": None, "string": "b"}
    return PayloadKind("r.avsc", "r.avsc", json.dumps(schema).encode(), output.getvalue(), columns)


def sparkplug() -> PayloadKind:
    made = message(sparkplug_set(), "sparkplug.Payload")
    made.timestamp, made.seq = MILLISECONDS, 1
    made.metrics.add(name="a", datatype=1, int_value=0xFFFFFFFF, timestamp=MILLISECONDS)
    metric = dict.fromkeys(
        ("alias", "is_historical", "is_transient", "is_null", "double", "boolean", "string", "bytes")
    ) | {"name": "a", "datatype": "Int8", "int": Decimal(-1), "timestamp": TIME}
    columns = {"timestamp": TIME, "seq": 1, "uuid": None, "body": None, "metrics": [metric]}
    return PayloadKind("sparkplug", "", b"", made.SerializeToString(), columns)


KINDS = {"protobuf": protobuf, "avro": avro, "sparkplug": sparkplug}


def plain(value: Any) -> Any:
    """A value of a table, in the form of the columns above."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        pairs = value and all(isinstance(each, tuple) and not hasattr(each, "asDict") for each in value)
        return dict(value) if pairs else [plain(each) for each in value]
    return value
