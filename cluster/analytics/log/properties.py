"""Reads the properties of logged messages, in plain Python: compiled modules can't be in a package for Spark.

Content is untrusted input: a damaged block has no values.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

USER_PROPERTY = 0x26  # identifier
PREFIX = "user."
KNOWN = {  # name of a column -> identifier of the property
    "payload-format-indicator": 1,
    "message-expiry-interval": 2,
    "content-type": 3,
    "response-topic": 8,
    "correlation-data": 9,
}
SIZES = {1: 1, 2: 4}  # identifier of a number -> its bytes
TEXTS = {3, 8, 9, USER_PROPERTY}  # identifiers of values with a length before them
NAME = re.compile(r"\W", re.ASCII)


class PropertyColumn(NamedTuple):
    """A column with the values of a property."""

    name: str  # of the column
    identifier: int
    key: str = ""  # of a user property


def parse_columns(text: str) -> tuple[PropertyColumn, ...]:
    """Columns of names with commas between them, such as `content-type,user.tenant`.

    A column has the property's name with `_` for all but letters and digits of ASCII.

    Raises:
        ValueError: a name is unknown, or two columns would have one name; its text completes "expected ...".
    """
    columns: dict[str, PropertyColumn] = {}
    for name in (part.strip() for part in text.split(",")):
        key = name[len(PREFIX) :] if name.startswith(PREFIX) else ""
        identifier = USER_PROPERTY if key else KNOWN.get(name)
        if identifier is None:
            raise ValueError(f"names of properties with commas between them: {', '.join(KNOWN)}, {PREFIX}NAME")
        column = PropertyColumn(NAME.sub("_", name), identifier, key)
        if column.name.lower() in columns:
            raise ValueError(f"one property for each column, not two for {column.name}")
        columns[column.name.lower()] = column
    return tuple(columns.values())


class PropertyReader:
    """Reads the values of some columns out of raw blocks.

    Args:
        columns: the wanted ones.
    """

    def __init__(self, columns: Sequence[PropertyColumn]) -> None:
        self._places = {(column.identifier, column.key.encode()): place for place, column in enumerate(columns)}

    def read(self, block: bytes) -> list[str | None]:
        """The first value of each column; None if there is none, or it is not UTF-8, or the block is damaged.

        Numbers are decimal.
        """
        found: list[str | None] = [None] * len(self._places)
        at, size, none = 0, len(block), found.copy()
        while at < size:
            identifier, key = block[at], b""
            if identifier in SIZES:
                begin = at + 1
                end = begin + SIZES[identifier]
            elif identifier in TEXTS and at + 3 <= size:
                begin = at + 3
                end = begin + (block[at + 1] << 8 | block[at + 2])
                if identifier == USER_PROPERTY:
                    if end + 2 > size:
                        return none
                    key, begin = block[begin:end], end + 2
                    end = begin + (block[end] << 8 | block[end + 1])
            else:
                return none
            if end > size:
                return none
            place = self._places.get((identifier, key))
            if place is not None and found[place] is None:
                found[place] = _text(identifier, block[begin:end])
            at = end
        return found


def _text(identifier: int, value: bytes) -> str | None:
    if identifier in SIZES:
        return str(int.from_bytes(value, "big"))
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
