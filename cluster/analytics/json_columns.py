"""Columns of JSON payloads, by a JSON Schema.

pyarrow reads thousands of payloads at a time. If some do not fit it refuses all of them, so they are halved until few
are left, and those are judged one by one.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from .columns import Columns

FEW = 256  # payloads that are judged one by one
INTEGERS = range(-(2**63), 2**63)
SCALARS: dict[str, Callable[[], pa.DataType]] = {
    "string": pa.string,
    "number": pa.float64,
    "integer": pa.int64,
    "boolean": pa.bool_,
}


def parse_schema(text: str) -> dict[str, pa.DataType]:
    """The columns that a JSON Schema describes: the properties of its object.

    Raises:
        ValueError: it is no JSON Schema, or has types that are no columns.
    """
    kind = _type_of(json.loads(text), "the schema")
    if not isinstance(kind, pa.StructType):
        raise ValueError('a payload must be an object: "type": "object"')
    return {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}


def _type_of(schema: Any, where: str) -> pa.DataType:
    if not isinstance(schema, dict):
        raise ValueError(f"{where}: expected an object")
    kinds = schema.get("type")
    kind = [each for each in kinds if each != "null"] if isinstance(kinds, list) else [kinds]
    if len(kind) != 1:
        raise ValueError(f"{where}: a column has one type, beside null")
    if kind[0] in SCALARS:
        return SCALARS[kind[0]]()
    if kind[0] == "array":
        return pa.list_(_type_of(schema.get("items"), f"{where}, items"))
    properties = schema.get("properties")
    if kind[0] != "object" or not isinstance(properties, dict) or not properties:
        raise ValueError(f'{where}: expected "type": object with "properties", array, {", ".join(SCALARS)}')
    return pa.struct([pa.field(name, _type_of(each, f"{where}, {name}")) for name, each in properties.items()])


class JsonColumns(Columns):
    """Makes columns of JSON payloads.

    Args:
        text: a JSON Schema.

    Raises:
        ValueError: as `parse_schema`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(parse_schema(text))
        self._text = text
        self._options = pj.ParseOptions(
            explicit_schema=self._schema, unexpected_field_behavior="ignore", newlines_in_values=True
        )

    def __reduce__(self) -> tuple[type["JsonColumns"], tuple[str]]:
        return JsonColumns, (self._text,)

    def decode(self, payloads: pa.Array) -> tuple[pa.Table, pa.Array]:
        parts: list[pa.Table] = []
        unparsed: list[pa.Array] = []
        self._decode(payloads, parts, unparsed)
        return pa.concat_tables(parts), pa.concat_arrays(unparsed)

    def _decode(self, payloads: pa.Array, parts: list[pa.Table], unparsed: list[pa.Array]) -> None:
        table = self._read(payloads)
        if table is not None:
            parts.append(table)
            unparsed.append(pa.nulls(len(payloads), pa.binary()))
        elif len(payloads) > FEW:
            middle = len(payloads) // 2
            self._decode(payloads[:middle], parts, unparsed)
            self._decode(payloads[middle:], parts, unparsed)
        else:
            self._judge(payloads, parts, unparsed)

    def _read(self, payloads: pa.Array) -> pa.Table | None:
        """All payloads at once; None: one of them does not fit."""
        if not len(payloads):
            return self._schema.empty_table()
        try:
            texts = pc.ascii_trim_whitespace(payloads.cast(pa.string()))
            # One object each, or more: then as many rows as payloads are one row each.
            if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
                return None
            table = pj.read_json(_joined(texts), parse_options=self._options)
        except pa.ArrowInvalid:
            return None
        return table.select(self._schema.names) if table.num_rows == len(payloads) else None

    def _judge(self, payloads: pa.Array, parts: list[pa.Table], unparsed: list[pa.Array]) -> None:
        rows: list[dict[str, Any]] = []
        rest: list[bytes | None] = []
        for payload in payloads.to_pylist():
            try:
                found = json.loads(payload)
                fits = isinstance(found, dict) and all(_fits(found.get(each.name), each.type) for each in self._schema)
            except (ValueError, RecursionError):
                fits = False
            rows.append({each.name: _made(found.get(each.name), each.type) for each in self._schema} if fits else {})
            rest.append(None if fits else payload)
        parts.append(pa.Table.from_pylist(rows, schema=self._schema))
        unparsed.append(pa.array(rest, pa.binary()))


def _joined(texts: pa.StringArray) -> pa.BufferReader:
    """Texts with a line feed behind each."""
    lines = pc.binary_join_element_wise(texts, "", "\n")
    _, offsets, data = lines.buffers()
    ends = memoryview(offsets).cast("i")
    return pa.BufferReader(data.slice(ends[lines.offset], ends[lines.offset + len(lines)] - ends[lines.offset]))


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a JSON value is one of a column."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and all(_fits(value.get(each.name), each.type) for each in kind)
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_fits(each, kind.value_type) for each in value)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_string(kind):
        return isinstance(value, str) and _is_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if pa.types.is_floating(kind):
        return isinstance(value, float) or abs(value) <= sys.float_info.max
    return isinstance(value, int) and value in INTEGERS


def _made(value: Any, kind: pa.DataType) -> Any:
    """A value that fits, as pyarrow takes it: it refuses large integers in a column of floats."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: _made(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_made(each, kind.value_type) for each in value]
    return float(value) if pa.types.is_floating(kind) else value


def _is_text(value: str) -> bool:
    """Whether it has no half of a surrogate pair, which JSON allows and UTF-8 does not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
