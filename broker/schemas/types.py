"""The types of values in payloads, for all kinds of schemas."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class Scalar(Enum):
    """A type without parts; its name is Arrow's."""

    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float32"
    DOUBLE = "float64"
    BOOLEAN = "bool_"
    STRING = "string"
    BYTES = "binary"
    DATE = "date32"
    TIMESTAMP = "timestamp"  # microseconds since 1970, UTC


@dataclass(frozen=True)
class Decimal:
    """A decimal number of this many digits, `scale` of them behind the point."""

    precision: int
    scale: int


@dataclass(frozen=True)
class List:
    """Values of one type."""

    item: "Type"


@dataclass(frozen=True)
class Map:
    """Pairs of a key and a value."""

    key: "Type"
    value: "Type"


@dataclass(frozen=True)
class Struct:
    """Fields by name; at least one."""

    fields: tuple[tuple[str, "Type"], ...]

    def __iter__(self) -> Iterator[tuple[str, "Type"]]:
        return iter(self.fields)


Type = Scalar | Decimal | List | Map | Struct
Columns = Mapping[str, Type]  # of a payload, by name

UINT64 = Decimal(20, 0)  # the whole numbers that are too large for INT64 fit, too
