"""Columns of payloads that are read one by one: Protobuf, Avro, Sparkplug B."""

from typing import Any

import pyarrow as pa

from ...broker.schemas.payload_schema import Misfit, RowSchema
from ...broker.schemas.types import Decimal, List, Map, Scalar, Struct, Type
from .columns import Columns


class RowColumns(Columns):
    """Makes columns of payloads.

    Args:
        schema: of the payloads.

    Raises:
        ValueError: the schema describes no columns.
    """

    def __init__(self, schema: RowSchema) -> None:
        super().__init__({name: arrow_type(kind) for name, kind in schema.columns.items()})
        self._payload_schema = schema

    def decode(self, payloads: pa.Array) -> tuple[pa.Table, pa.Array]:
        rows: list[dict[str, Any]] = []
        rest: list[bytes | None] = []
        for payload in payloads.to_pylist():
            try:
                rows.append(self._payload_schema.row(payload))
                rest.append(None)
            except Misfit:
                rows.append({})
                rest.append(payload)
        return pa.Table.from_pylist(rows, schema=self._schema), pa.array(rest, pa.binary())


def arrow_type(kind: Type) -> pa.DataType:
    """Arrow's type for values of payloads."""
    if isinstance(kind, Struct):
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in kind])
    if isinstance(kind, List):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, Decimal):
        return pa.decimal128(kind.precision, kind.scale)
    if kind is Scalar.TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    return getattr(pa, kind.value)()
