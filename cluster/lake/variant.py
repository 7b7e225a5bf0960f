"""Payloads of any JSON as one column VARIANT, which Spark and other readers of Delta query by paths."""

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..analytics.columns import Columns
from ..follow.payload_texts import texts_of
from ..tables.table import VARIANT

# Null is JSON's null, and what is no JSON.
SQL = """
select try(try_cast(payload as json)::variant) as value, value is null and trim(payload) <> 'null' as is_wrong from rows
"""


class VariantColumns(Columns):
    """The column `payload`. A payload that is no JSON, or no UTF-8, is in `unparsed`."""

    def __init__(self) -> None:
        super().__init__({"payload": VARIANT})
        self._database = duckdb.connect()

    def decode(self, payloads: pa.Array) -> tuple[pa.Table, pa.Array]:
        self._database.register("rows", pa.table({"payload": texts_of(pa.chunked_array([payloads]), lambda _: None)}))
        found = self._database.sql(SQL).to_arrow_table().combine_chunks()
        values, is_wrong = found.column(0).combine_chunks(), found.column(1).combine_chunks()
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        parts = [pc.fill_null(values.field(name), b"") for name in ("metadata", "value")]
        made = pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=values.is_null())
        is_wrong = pc.fill_null(is_wrong, True)
        return pa.table({"payload": made}), pc.if_else(is_wrong, payloads, None).cast(pa.binary())
