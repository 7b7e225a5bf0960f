"""How far a table of the lake has come, and the columns that it has."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from ..analytics.log.offsets import Offsets, format_offsets, parse_offsets
from ..tables.table import Table, TableError


class Progress(NamedTuple):
    """How far a table has come.

    Attributes:
        number: of the commit, among the commits of the lake; 0: there is none.
        offsets: of the log, by node.
    """

    number: int = 0
    offsets: Offsets | None = None

    @classmethod
    def of(cls, table: Table) -> "Progress":
        """From the newest commit of a table.

        Raises:
            TableError: the table can't be read, or its history lacks that commit.
        """
        number = table.number()
        if number == 0:
            return cls()
        note = table.note()
        if not note:
            raise TableError(
                "the commits with the position of the log are gone from the history of the table",
                "start another table, or keep its log for longer (delta.logRetentionDuration)",
            )
        return cls(number, parse_offsets(json.loads(note)))

    def note(self) -> str:
        """The text for the commit."""
        assert self.offsets is not None
        return json.dumps(format_offsets(self.offsets))


def schema_of(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns of a table: of the message, and of its payload if it has columns."""
    fields = [
        pa.field("accepted_at", pa.timestamp("us", "UTC")),
        pa.field("node", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("qos", pa.int32()),
        pa.field("retain", pa.bool_()),
        pa.field("dup", pa.bool_()),
    ]
    fields += [pa.field(name, kind) for name, kind in columns.items()]
    fields.append(pa.field("unparsed" if columns else "payload", pa.binary()))
    fields.append(pa.field("properties", pa.binary()))
    return pa.schema(fields)
