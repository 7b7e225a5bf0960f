"""Avro: payloads are one record, without the header of a file.

In front may be the header of Avro's single-object encoding, or Confluent's: a zero and the number of the schema.
fastavro parses the schema. Payloads are read here, because fastavro trusts them: it counts a negative symbol of an enum
or branch of a union from the end, takes integers of any size, and makes items without bytes in any number. Here a
payload is read to its end, no length is trusted, and the number of values is bounded.
"""

import decimal
import json
import struct
import uuid
from collections.abc import Callable
from datetime import date
from typing import Any

from .payload_schema import Misfit, Room, RowSchema, library
from .types import Columns, Decimal, List, Map, Scalar, Struct, Type

SINGLE_OBJECT = b"\xc3\x01"  # then the fingerprint of the schema
FINGERPRINT_SIZE = 8
CONFLUENT = b"\0"  # then the number of the schema, four bytes
CONFLUENT_SIZE = 5
LONGEST = 10  # bytes of an integer
EPOCH = date(1970, 1, 1).toordinal()
DAYS = range(1 - EPOCH, date.max.toordinal() - EPOCH + 1)  # since 1970, of the years 1 to 9999
MICROSECONDS = range(DAYS.start * 86_400_000_000, DAYS.stop * 86_400_000_000)
INTS = range(-(2**31), 2**31)
MAX_PRECISION = 38  # of a decimal column


class Source:
    """The bytes of a payload, the place of the next one, and room for its values."""

    __slots__ = ("at", "data", "room")

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at, self.room = data, at, Room()

    def take(self, size: int) -> bytes:
        """The next bytes. Raises Misfit: there are not so many."""
        start = self.at
        if not 0 <= size <= len(self.data) - start:
            raise Misfit("the payload ends within a value")
        self.at = start + size
        return self.data[start : self.at]

    def long(self) -> int:
        """The next integer. Raises Misfit: it is none of 64 bits."""
        data, at = self.data, self.at
        if at < len(data) and data[at] < 0x80:  # most are one byte
            self.at = at + 1
            return data[at] >> 1 ^ -(data[at] & 1)
        value = shift = 0
        for byte in data[at : at + LONGEST]:
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                self.at = at
                return value >> 1 ^ -(value & 1)
            shift += 7
        raise Misfit("the payload ends within a value, or an integer has more than 64 bits")


Read = Callable[[Source], Any]


class AvroSchema(RowSchema):
    """A record of Avro.

    Args:
        text: of the schema, JSON.

    Raises:
        ValueError: it is no Avro schema, no record, or describes values without bytes or within themselves.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        avro = library("fastavro", "fastavro")
        try:
            parsed = avro.parse_schema(json.loads(text))
            fingerprint = avro.schema.fingerprint(avro.schema.to_parsing_canonical_form(parsed), "CRC-64-AVRO")
        except (ValueError, KeyError, TypeError, RecursionError, avro.schema.SchemaParseException) as error:
            raise ValueError(f"no Avro schema: {error}") from None
        self._header = SINGLE_OBJECT + bytes.fromhex(fingerprint)
        kind, self._read = _Types(parsed).of(parsed, ())
        if not isinstance(kind, Struct) or isinstance(parsed, list):
            raise ValueError("a payload must be a record with fields")
        self._columns = dict(kind)

    def __reduce__(self) -> tuple[type["AvroSchema"], tuple[str]]:
        return AvroSchema, (self._text,)

    @property
    def columns(self) -> Columns:
        return self._columns

    def check(self, payload: bytes) -> None:
        self.row(payload)

    def row(self, payload: bytes) -> dict[str, Any]:
        if payload.startswith(self._header):
            return self._record(payload, len(self._header))
        try:
            return self._record(payload, 0)
        except Misfit:
            if not payload.startswith(CONFLUENT) or len(payload) < CONFLUENT_SIZE:
                raise
        return self._record(payload, CONFLUENT_SIZE)

    def _record(self, payload: bytes, at: int) -> dict[str, Any]:
        source = Source(payload, at)
        found: dict[str, Any] = self._read(source)
        if source.at != len(payload):
            raise Misfit(f"{len(payload) - source.at} bytes are left behind the record")
        return found


# ---- values ----


def _boolean(source: Source) -> bool:
    value = source.take(1)[0]
    if value > 1:
        raise Misfit(f"a boolean is {value}")
    return value == 1


def _int(source: Source) -> int:
    value = source.long()
    if value not in INTS:
        raise Misfit("an int has more than 32 bits")
    return value


def _float(source: Source) -> float:
    found: float = FLOAT.unpack(source.take(4))[0]
    return found


def _double(source: Source) -> float:
    found: float = DOUBLE.unpack(source.take(8))[0]
    return found


def _bytes(source: Source) -> bytes:
    return source.take(source.long())


def _string(source: Source) -> str:
    try:
        return source.take(source.long()).decode()
    except UnicodeDecodeError:
        raise Misfit("a string is not UTF-8") from None


def _null(source: Source) -> None:
    return None


def _date(source: Source) -> int:
    value = _int(source)
    if value not in DAYS:
        raise Misfit("a date is not between the years 1 and 9999")
    return value


def _timestamp(factor: int) -> Read:
    def read(source: Source) -> int:
        value = source.long() * factor
        if value not in MICROSECONDS:
            raise Misfit("a timestamp is not between the years 1 and 9999")
        return value

    return read


def _uuid(source: Source) -> str:
    try:
        return str(uuid.UUID(_string(source)))
    except ValueError:
        raise Misfit("a text is no UUID") from None


def _fixed(size: int) -> Read:
    return lambda source: source.take(size)


def _decimal(read: Read, kind: Decimal) -> Read:
    most = 10**kind.precision

    def read_decimal(source: Source) -> decimal.Decimal:
        value = int.from_bytes(read(source), "big", signed=True)
        if not -most < value < most:
            raise Misfit(f"a decimal has more than {kind.precision} digits")
        return decimal.Decimal((value < 0, tuple(map(int, str(abs(value)))), -kind.scale))

    return read_decimal


FLOAT, DOUBLE = struct.Struct("<f"), struct.Struct("<d")
PRIMITIVES: dict[str, tuple[Type, Read]] = {
    "null": (Scalar.BOOLEAN, _null),
    "boolean": (Scalar.BOOLEAN, _boolean),
    "int": (Scalar.INT32, _int),
    "long": (Scalar.INT64, Source.long),
    "float": (Scalar.FLOAT, _float),
    "double": (Scalar.DOUBLE, _double),
    "bytes": (Scalar.BYTES, _bytes),
    "string": (Scalar.STRING, _string),
}
LOGICAL: dict[tuple[str, str], tuple[Type, Read]] = {
    ("int", "date"): (Scalar.DATE, _date),
    ("long", "timestamp-millis"): (Scalar.TIMESTAMP, _timestamp(1000)),
    ("long", "timestamp-micros"): (Scalar.TIMESTAMP, _timestamp(1)),
    ("string", "uuid"): (Scalar.STRING, _uuid),
}


class _Types:
    """The types of a schema, and the functions that read their values.

    Args:
        parsed: by fastavro; it has the named types.
    """

    def __init__(self, parsed: Any) -> None:
        self._named = parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}

    def of(self, schema: Any, above: tuple[str, ...]) -> tuple[Type, Read]:
        """The type of a schema, and its function; `above`: names of the records that it is in."""
        if isinstance(schema, list):
            return self._union(schema, above)
        if isinstance(schema, str):
            return PRIMITIVES[schema] if schema in PRIMITIVES else self.of(self._named[schema], above)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, above)
        if kind == "array":
            return self._array(schema, above)
        if kind == "map":
            value_type, value = self.of(schema["values"], above)
            return Map(Scalar.STRING, value_type), _blocks(lambda source: (_string(source), value(source)))
        if kind == "enum":
            return Scalar.STRING, _enum(schema["symbols"])
        if kind == "fixed":
            return _with_decimal(schema, Scalar.BYTES, _fixed(schema["size"]))
        if kind not in PRIMITIVES:
            return self.of(kind, above)
        found = LOGICAL.get((kind, schema.get("logicalType", "")))
        if found is not None:
            return found
        return _with_decimal(schema, *PRIMITIVES[kind]) if kind == "bytes" else PRIMITIVES[kind]

    def _record(self, schema: Any, above: tuple[str, ...]) -> tuple[Type, Read]:
        name = schema["name"]
        if name in above:
            raise ValueError(f"the record {name} is within itself, which columns can't be")
        fields = [(field["name"], *self.of(field["type"], (*above, name))) for field in schema["fields"]]
        if not fields:
            return Scalar.BOOLEAN, lambda source: True  # it is there
        readers = [(name, read) for name, _, read in fields]

        def read(source: Source) -> dict[str, Any]:
            source.room.take(len(readers))
            return {name: read(source) for name, read in readers}

        return Struct(tuple((name, kind) for name, kind, _ in fields)), read

    def _array(self, schema: Any, above: tuple[str, ...]) -> tuple[Type, Read]:
        if self._least(schema["items"]) == 0:
            raise ValueError("an array has items without bytes: a few bytes could be any number of them")
        item_type, item = self.of(schema["items"], above)
        return List(item_type), _blocks(item)

    def _union(self, schema: list[Any], above: tuple[str, ...]) -> tuple[Type, Read]:
        branches = [self.of(each, above) for each in schema]
        named = [(place, *branch) for place, branch in enumerate(branches) if schema[place] != "null"]
        if len(named) <= 1:
            kind = named[0][1] if named else Scalar.BOOLEAN
            return kind, _branch([read for _, read in branches])
        names = [_name(each) for each in schema]
        empty = {names[place]: None for place, _, _ in named}

        def member(place: int, read: Read) -> Read:
            return lambda source: {**empty, names[place]: read(source)}

        readers = [
            _null if schema[place] == "null" else member(place, read) for place, (_, read) in enumerate(branches)
        ]
        return Struct(tuple((names[place], kind) for place, kind, _ in named)), _branch(readers)

    def _least(self, schema: Any, above: tuple[str, ...] = ()) -> int:
        """0: a value may have no bytes; else 1."""
        if isinstance(schema, list):
            return 1
        if isinstance(schema, str):
            return int(schema != "null") if schema in PRIMITIVES else self._least(self._named[schema], above)
        if schema["type"] in ("record", "error"):
            if schema["name"] in above:
                return 0
            inner = (*above, schema["name"])
            return max((self._least(field["type"], inner) for field in schema["fields"]), default=0)
        if schema["type"] == "fixed":
            return int(schema["size"] > 0)
        return int(schema["type"] != "null")


def _name(schema: Any) -> str:
    """The name of a branch of a union, as Avro's JSON has it."""
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"]))


def _branch(readers: list[Read]) -> Read:
    def read(source: Source) -> Any:
        place = source.long()
        if not 0 <= place < len(readers):
            raise Misfit(f"a union has no branch {place}")
        return readers[place](source)

    return read


def _enum(symbols: list[str]) -> Read:
    def read(source: Source) -> str:
        place = source.long()
        if not 0 <= place < len(symbols):
            raise Misfit(f"an enum has no symbol {place}")
        return symbols[place]

    return read


def _blocks(item: Read) -> Read:
    """Items in blocks; a block without items is the end. Each item has a byte at least, so the payload bounds them."""

    def read(source: Source) -> list[Any]:
        found: list[Any] = []
        while count := source.long():
            if count < 0:
                count = -count
                source.long()  # bytes of the block
            if count > len(source.data) - source.at:
                raise Misfit("a block has more items than the payload has bytes")
            source.room.take(count)
            found.extend(item(source) for _ in range(count))
        return found

    return read


def _with_decimal(schema: Any, kind: Type, read: Read) -> tuple[Type, Read]:
    if schema.get("logicalType") != "decimal":
        return kind, read
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return kind, read  # the standard: a wrong logical type is none
    if precision > MAX_PRECISION:
        raise ValueError(f"a decimal has {precision} digits, a column at most {MAX_PRECISION}")
    found = Decimal(precision, scale)
    return found, _decimal(read, found)
