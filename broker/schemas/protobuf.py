"""Protobuf: payloads are one message of a descriptor set, as `protoc --include_imports --descriptor_set_out` writes it.

Absent fields are null if the language of the schema can tell them from default values: messages, `optional`, `oneof`.
Enums are their names. An unknown number of an enum is its number as text, unknown fields are ignored: the payload is of
a newer schema.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cached_property
from operator import attrgetter
from typing import Any

from .payload_schema import Misfit, Room, RowSchema, library
from .types import UINT64, Columns, List, Map, Scalar, Struct, Type

OLDEST = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())  # seconds of a Timestamp ...
NEWEST = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())  # ... up to here

Read = Callable[[Any, Room], Any]  # of a value of the library, its value in a row


class ProtobufSchema(RowSchema):
    """A message of Protobuf.

    Args:
        data: a FileDescriptorSet.
        name: of the message, with its package; empty: the only message at the top of the files that none imports.

    Raises:
        ValueError: it is no descriptor set, it is not complete, or it does not have the message.
    """

    def __init__(self, data: bytes, name: str = "") -> None:
        self._data, self._name = data, name
        files = _files(data)
        pool = library("google.protobuf.descriptor_pool", "protobuf").DescriptorPool()
        for file in files:
            try:
                pool.AddSerializedFile(file.SerializeToString())
            except TypeError as error:
                raise ValueError(f"{error}; protoc needs --include_imports") from None
        try:
            self._descriptor = pool.FindMessageTypeByName(name or _only_message(files))
        except KeyError:
            raise ValueError(f"there is no message {name}; there are {_listed(_messages(files))}") from None
        self._class = library("google.protobuf.message_factory", "protobuf").GetMessageClass(self._descriptor)
        self._fault = library("google.protobuf.message", "protobuf").DecodeError

    def __reduce__(self) -> tuple[type["ProtobufSchema"], tuple[bytes, str]]:
        return ProtobufSchema, (self._data, self._name)

    @property
    def columns(self) -> Columns:
        return dict(self._made[0])

    @cached_property
    def _made(self) -> tuple[Struct, Read]:
        kind, read = _message(self._descriptor, ())
        if not isinstance(kind, Struct):
            raise ValueError(f"the message {self._descriptor.full_name} has no fields")
        return kind, read

    def check(self, payload: bytes) -> None:
        self.parse(payload)

    def row(self, payload: bytes) -> dict[str, Any]:
        found: dict[str, Any] = self._made[1](self.parse(payload), Room())
        return found

    def parse(self, payload: bytes) -> Any:
        """The message of the library. Raises Misfit: the payload does not fit."""
        message = self._class()
        try:
            message.ParseFromString(payload)
        except self._fault as error:
            raise Misfit(str(error)) from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise Misfit(f"fields are missing: {missing}")
        return message


# ---- the descriptor set ----


def _files(data: bytes) -> list[Any]:
    library_ = library("google.protobuf.descriptor_pb2", "protobuf")
    found = library_.FileDescriptorSet()
    try:
        found.ParseFromString(data)
    except library("google.protobuf.message", "protobuf").DecodeError:
        found.Clear()
    if not found.file or not all(file.name for file in found.file):
        raise ValueError("no descriptor set: protoc --include_imports --descriptor_set_out=FILE writes one")
    return list(found.file)


def _messages(files: Iterable[Any]) -> list[str]:
    """The messages at the top of the files that no other file imports."""
    files = list(files)
    imported = {name for file in files for name in file.dependency}
    return [
        f"{file.package}.{message.name}".lstrip(".")
        for file in files
        if file.name not in imported
        for message in file.message_type
    ]


def _only_message(files: Iterable[Any]) -> str:
    found = _messages(files)
    if len(found) != 1:
        raise ValueError(f"FILE#NAME names the message of the payloads: one of {_listed(found)}")
    return found[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# ---- columns, by the types of fields ----


def _as_is(value: Any, _: Room) -> Any:
    return value


def _text(value: str | bytes, _: Room) -> str:
    if isinstance(value, bytes):  # the library has bytes for a text of proto2 that is not UTF-8
        raise Misfit("a string is not UTF-8")
    return value


def _timestamp(value: Any, _: Room) -> int:
    if not (OLDEST <= value.seconds <= NEWEST and 0 <= value.nanos < 1_000_000_000):
        raise Misfit("a timestamp is not between the years 1 and 9999")
    microseconds: int = value.seconds * 1_000_000 + value.nanos // 1000
    return microseconds


def _json(value: Any, _: Room) -> str:
    json_format = library("google.protobuf.json_format", "protobuf")
    try:
        found: str = json_format.MessageToJson(value, indent=None)
    except (ValueError, json_format.Error, RecursionError) as error:
        raise Misfit(str(error)) from None
    return found


def _wrapped(value: Any, _: Room) -> Any:
    return value.value


# By the numbers of FieldDescriptorProto.Type.
SCALARS: dict[int, Type] = {
    1: Scalar.DOUBLE,
    2: Scalar.FLOAT,
    3: Scalar.INT64,  # int64
    4: UINT64,
    5: Scalar.INT32,
    6: UINT64,  # fixed64
    7: Scalar.INT64,  # fixed32
    8: Scalar.BOOLEAN,
    9: Scalar.STRING,
    12: Scalar.BYTES,
    13: Scalar.INT64,  # uint32
    15: Scalar.INT32,  # sfixed32
    16: Scalar.INT64,  # sfixed64
    17: Scalar.INT32,  # sint32
    18: Scalar.INT64,  # sint64
}
ENUM = 14
KNOWN: dict[str, tuple[Type, Read]] = {
    "google.protobuf.Timestamp": (Scalar.TIMESTAMP, _timestamp),
    "google.protobuf.Struct": (Scalar.STRING, _json),
    "google.protobuf.Value": (Scalar.STRING, _json),
    "google.protobuf.ListValue": (Scalar.STRING, _json),
    "google.protobuf.DoubleValue": (Scalar.DOUBLE, _wrapped),
    "google.protobuf.FloatValue": (Scalar.FLOAT, _wrapped),
    "google.protobuf.Int64Value": (Scalar.INT64, _wrapped),
    "google.protobuf.UInt64Value": (UINT64, _wrapped),
    "google.protobuf.Int32Value": (Scalar.INT32, _wrapped),
    "google.protobuf.UInt32Value": (Scalar.INT64, _wrapped),
    "google.protobuf.BoolValue": (Scalar.BOOLEAN, _wrapped),
    "google.protobuf.StringValue": (Scalar.STRING, _wrapped),
    "google.protobuf.BytesValue": (Scalar.BYTES, _wrapped),
}


def _message(descriptor: Any, above: tuple[str, ...]) -> tuple[Type, Read]:
    """The type of a message, and the function that reads one.

    Args:
        descriptor: of the message.
        above: names of the messages that it is in.
    """
    name = descriptor.full_name
    if name in KNOWN:
        return KNOWN[name]
    if name in above:
        raise ValueError(f"the message {name} is within itself, which columns can't be")
    fields = [(field.name, *_field(field, (*above, name))) for field in descriptor.fields]
    if not fields:
        return Scalar.BOOLEAN, lambda value, room: True  # it is there

    readers = [(name, read) for name, _, read in fields]

    def read(message: Any, room: Room) -> dict[str, Any]:
        room.take(len(readers))
        return {name: read(message, room) for name, read in readers}

    return Struct(tuple((name, kind) for name, kind, _ in fields)), read


def _field(field: Any, above: tuple[str, ...]) -> tuple[Type, Read]:
    """The type of a field, and the function that reads it from its message."""
    get = attrgetter(field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key_type, key = _value(field.message_type.fields_by_name["key"], above)
        value_type, value = _value(field.message_type.fields_by_name["value"], above)
        return Map(key_type, value_type), lambda message, room: [
            (key(each, room), value(found, room)) for each, found in get(message).items()
        ]
    kind, convert = _value(field, above)
    name = field.name
    if field.is_repeated:
        return List(kind), _repeated(get, convert)
    if field.has_presence:
        return kind, lambda message, room: convert(get(message), room) if message.HasField(name) else None
    if convert is _as_is:
        return kind, lambda message, room: get(message)
    return kind, lambda message, room: convert(get(message), room)


def _repeated(get: Callable[[Any], Any], convert: Read) -> Read:
    def read(message: Any, room: Room) -> list[Any]:
        values = get(message)
        room.take(len(values))
        return list(values) if convert is _as_is else [convert(each, room) for each in values]

    return read


def _value(field: Any, above: tuple[str, ...]) -> tuple[Type, Read]:
    """The type of one value of a field, and the function that converts it."""
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.type == ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return Scalar.STRING, lambda value, room: names.get(value) or str(value)
    return SCALARS[field.type], _text if SCALARS[field.type] is Scalar.STRING else _as_is
