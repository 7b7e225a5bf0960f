"""Sparkplug B: payloads of NBIRTH, NDATA, DDATA and the other types, as Eclipse Sparkplug 3.0 defines them (6.4).

A value is in the column of its kind. Signed integers travel as unsigned fields, in two's complement, and are
negative here; without a data type, which DATA messages may leave out, an integer is as it was sent. Data sets and
templates are their encoded bytes. Metadata and properties of metrics are no columns.

Messages below `spBv1.0/STATE/` are JSON, and don't fit.
"""

from functools import cache
from typing import Any

from .payload_schema import Misfit, Room, RowSchema, library
from .protobuf import ProtobufSchema
from .types import UINT64, Columns, List, Scalar, Struct, Type

DATA_TYPES = (
    *("Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double"),
    *("Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet"),
    *("PropertySetList", "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array"),
    *("UInt32Array", "UInt64Array", "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
)
SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}  # bits, by the number of the data type
NEWEST = 253_402_300_799_999  # ms since 1970: the end of the year 9999
INT64_MAX = 2**63 - 1

# Names, numbers and types of the fields. Messages within metrics that are no columns are bytes.
PAYLOAD = (("timestamp", 1, "UINT64"), ("seq", 3, "UINT64"), ("uuid", 4, "STRING"), ("body", 5, "BYTES"))
METRIC = (
    *(("name", 1, "STRING"), ("alias", 2, "UINT64"), ("timestamp", 3, "UINT64"), ("datatype", 4, "UINT32")),
    *(("is_historical", 5, "BOOL"), ("is_transient", 6, "BOOL"), ("is_null", 7, "BOOL")),
)
VALUE = (
    *(("int_value", 10, "UINT32"), ("long_value", 11, "UINT64"), ("float_value", 12, "FLOAT")),
    *(("double_value", 13, "DOUBLE"), ("boolean_value", 14, "BOOL"), ("string_value", 15, "STRING")),
    *(("bytes_value", 16, "BYTES"), ("dataset_value", 17, "BYTES"), ("template_value", 18, "BYTES")),
    ("extension_value", 19, "BYTES"),
)
IN_COLUMN = {
    "int_value": "int",
    "long_value": "int",
    "float_value": "double",
    "double_value": "double",
    "boolean_value": "boolean",
    "string_value": "string",
    **dict.fromkeys(("bytes_value", "dataset_value", "template_value", "extension_value"), "bytes"),
}
VALUES: dict[str, Type] = {
    "int": UINT64,
    "double": Scalar.DOUBLE,
    "boolean": Scalar.BOOLEAN,
    "string": Scalar.STRING,
    "bytes": Scalar.BYTES,
}
NO_VALUE = dict.fromkeys(VALUES)
METRICS = Struct(
    (
        ("name", Scalar.STRING),
        ("alias", Scalar.INT64),
        ("timestamp", Scalar.TIMESTAMP),
        ("datatype", Scalar.STRING),
        ("is_historical", Scalar.BOOLEAN),
        ("is_transient", Scalar.BOOLEAN),
        ("is_null", Scalar.BOOLEAN),
        *VALUES.items(),
    )
)
COLUMNS: Columns = {
    "timestamp": Scalar.TIMESTAMP,
    "seq": Scalar.INT64,
    "uuid": Scalar.STRING,
    "body": Scalar.BYTES,
    "metrics": List(METRICS),
}


class SparkplugSchema(RowSchema):
    """The payload of Sparkplug B."""

    def __init__(self) -> None:
        self._schema = _schema()

    def __reduce__(self) -> tuple[type["SparkplugSchema"], tuple[()]]:
        return SparkplugSchema, ()

    @property
    def columns(self) -> Columns:
        return COLUMNS

    def check(self, payload: bytes) -> None:
        self.row(payload)

    def row(self, payload: bytes) -> dict[str, Any]:
        message = self._schema.parse(payload)
        room = Room()
        return {
            "timestamp": _time(message),
            "seq": _number(message, "seq"),
            "uuid": _text(message, "uuid"),
            "body": _get(message, "body"),
            "metrics": [_metric(each, room) for each in message.metrics],
        }


def _metric(metric: Any, room: Room) -> dict[str, Any]:
    room.take(len(METRICS.fields))
    data_type = _get(metric, "datatype")
    return {
        "name": _text(metric, "name"),
        "alias": _number(metric, "alias"),
        "timestamp": _time(metric),
        "datatype": _data_type(data_type),
        "is_historical": _get(metric, "is_historical"),
        "is_transient": _get(metric, "is_transient"),
        "is_null": _get(metric, "is_null"),
        **_value(metric, data_type),
    }


def _value(metric: Any, data_type: int | None) -> dict[str, Any]:
    field = metric.WhichOneof("value")
    if field is None or metric.is_null:
        return NO_VALUE
    value: Any = _text(metric, field) if field == "string_value" else getattr(metric, field)
    bits = SIGNED.get(data_type or 0) if IN_COLUMN[field] == "int" else None
    if bits is not None:  # clients send them sign-extended to 32 bits, or not
        value &= (1 << bits) - 1
        value -= (value >> bits - 1) << bits
    return {**NO_VALUE, IN_COLUMN[field]: value}


def _data_type(number: int | None) -> str | None:
    if number is None:
        return None
    return DATA_TYPES[number] if number < len(DATA_TYPES) else str(number)


def _get(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _text(message: Any, name: str) -> str | None:
    found: str | bytes | None = _get(message, name)
    if isinstance(found, bytes):  # the library has bytes for a text that is not UTF-8
        raise Misfit(f"{name} is not UTF-8")
    return found


def _number(message: Any, name: str) -> int | None:
    found: int | None = _get(message, name)
    if found is not None and found > INT64_MAX:
        raise Misfit(f"{name} has more than 63 bits")
    return found


def _time(message: Any) -> int | None:
    found: int | None = _get(message, "timestamp")
    if found is None:
        return None
    if found > NEWEST:
        raise Misfit("a timestamp is after the year 9999")
    return found * 1000


@cache
def _schema() -> ProtobufSchema:
    return ProtobufSchema(descriptor_set())


def descriptor_set() -> bytes:
    """The descriptor set of the payload, as protoc would write it."""
    descriptors = library("google.protobuf.descriptor_pb2", "protobuf")
    field = descriptors.FieldDescriptorProto
    found = descriptors.FileDescriptorSet()
    file = found.file.add(name="sparkplug_b.proto", package="sparkplug", syntax="proto2")
    payload = file.message_type.add(name="Payload")
    metric = payload.nested_type.add(name="Metric")
    metric.oneof_decl.add(name="value")
    for message, fields, more in (
        (payload, PAYLOAD, {}),
        (metric, METRIC, {}),
        (metric, VALUE, {"oneof_index": 0}),
    ):
        for name, number, kind in fields:
            message.field.add(
                name=name,
                number=number,
                type=getattr(field, f"TYPE_{kind}"),
                label=field.LABEL_OPTIONAL,
                **more,
            )
    payload.field.add(
        name="metrics",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=".sparkplug.Payload.Metric",
        label=field.LABEL_REPEATED,
    )
    data: bytes = found.SerializeToString()
    return data
