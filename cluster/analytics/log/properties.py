"""Reads the properties of logged messages, in plain Python: compiled modules can't be in a package for Spark.

Content is untrusted input: a damaged block has no values.
"""

import re
from collections.abc import Mapping
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
TEXTS = {3, 8, 9}  # identifiers of values with a length before them
NAME = re.compile(r"\W", re.ASCII)


class PropertyColumn(NamedTuple):
    """A column with the values of a property."""

    name: str  # of the column
    identifier: int
    key: str = ""  # of a user property

    def value(self, found: Mapping[tuple[int, str], str]) -> str | None:
        """Its value among the properties of a message."""
        return found.get((self.identifier, self.key))


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


def values(block: bytes) -> dict[tuple[int, str], str]:
    """The first value of each property in a raw block, by its identifier and, of a user property, its key.

    Numbers are decimal. Values that are not UTF-8 are left out. Empty if the block is damaged.
    """
    found: dict[tuple[int, str], str] = {}
    value: str | None
    at = 0
    while at < len(block):
        identifier = block[at]
        at += 1
        if identifier in SIZES:
            end = at + SIZES[identifier]
            key, value = "", str(int.from_bytes(block[at:end], "big"))
        elif identifier == USER_PROPERTY:
            name, at = _text(block, at)
            text, end = _text(block, at)
            key, value = name or "", text
        elif identifier in TEXTS:
            key, (value, end) = "", _text(block, at)
        else:
            return {}
        if end > len(block):
            return {}
        if value is not None:
            found.setdefault((identifier, key), value)
        at = end
    return found


def _text(block: bytes, at: int) -> tuple[str | None, int]:
    """A text with its length before it, None if it is not UTF-8; and its end, which may be beyond the block."""
    begin = at + 2
    end = begin + int.from_bytes(block[at:begin], "big")
    try:
        return block[begin:end].decode(), end
    except UnicodeDecodeError:
        return None, end
