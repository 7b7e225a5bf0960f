"""Columns of JSON payloads, by a JSON Schema. A payload that does not fit is a value of the column `unparsed`.

pyarrow reads thousands of payloads at a time. If some do not fit it refuses all of them, so they are halved until few
are left, and those are judged one by one.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

FEW = 256  # payloads that are judged one by one
# Names of other columns.
TAKEN = ["accepted_at", "node", "client_id", "topic", "qos", "retain", "dup", "unparsed", "properties", "day", "hour"]
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
    columns = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
    for name in columns:
        if name in TAKEN:
            raise ValueError(f"the column {name} is of the message itself; it can't be of the payload, too")
    return columns


def read_schema(path: Path) -> dict[str, pa.DataType]:
    """As `parse_schema`, of a file. Raises ValueError, with the name of the file: also if it can't be read."""
    try:
        return parse_schema(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


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


class Columns:
    """Makes columns of payloads.

    Args:
        types: by the names of the columns.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self._schema = pa.schema(list(types.items()))
        self._options = pj.ParseOptions(
            explicit_schema=self._schema, unexpected_field_behavior="ignore", newlines_in_values=True
        )

    def shape(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch of messages with these columns, and `unparsed`, in place of its payloads."""
        columns, unparsed = self.decode(batch.column("payload"))
        table = pa.Table.from_batches([batch])
        place = batch.schema.get_field_index("payload")
        table = table.set_column(place, "unparsed", unparsed)
        for name in columns.column_names:
            table = table.append_column(name, columns[name])
        yield from table.combine_chunks().to_batches()

    def decode(self, payloads: pa.Array) -> tuple[pa.Table, pa.Array]:
        """The columns of these payloads, null where one does not fit; and the payloads that do not, null elsewhere."""
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
            rows.append({name: found.get(name) for name in self._schema.names} if fits else {})
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
    return pa.types.is_floating(kind) or (isinstance(value, int) and value in INTEGERS)


def _is_text(value: str) -> bool:
    """Whether it has no half of a surrogate pair, which JSON allows and UTF-8 does not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
