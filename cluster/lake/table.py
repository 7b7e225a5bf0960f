"""A table of the lake, of any format: one commit has rows and the position of the log."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from ...broker.errors import FlockError
from ..analytics.log.offsets import Offsets, format_offsets, parse_offsets

POSITION = "flockmq.position"  # in the commits of a table: JSON, the offset of each node and the number of the commit


class TableError(FlockError):
    """The table can't be read or written."""


class Overtaken(FlockError):
    """Another process has committed to the table in between: nothing of this batch is there."""


class Progress(NamedTuple):
    """How far a table has come.

    Attributes:
        number: of the commit, among the commits that have a position; 0: there is none.
        offsets: of the log, by node.
    """

    number: int = 0
    offsets: Offsets | None = None

    @classmethod
    def parse(cls, text: str) -> "Progress":
        """From the text in a commit."""
        found = json.loads(text)
        return cls(found["number"], parse_offsets(found["offsets"]))

    def __str__(self) -> str:
        assert self.offsets is not None
        return json.dumps({"number": self.number, "offsets": format_offsets(self.offsets)})


class Table(ABC):
    """A table. All methods raise TableError: the table, or its store, can't be reached."""

    @abstractmethod
    def progress(self) -> Progress:
        """Read the position in the newest commit that has one."""

    @abstractmethod
    def append(self, rows: pa.Table, progress: Progress) -> None:
        """Add rows, and the position behind them, in one commit.

        Raises:
            Overtaken: the table has changed after `progress` was read last.
        """

    @abstractmethod
    def tidy(self) -> str:
        """Join small files, and drop files that no reader needs. Returns a sentence; empty: nothing was done."""


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


def told(error: BaseException) -> str:
    """The first line of an error of a library."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
