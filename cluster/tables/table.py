"""A table of any format. A commit has rows, and the number of the commit among the commits of its writer.

So a writer needs no state to find out whether a commit has succeeded: it reads the number in the table.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from ...broker.errors import FlockError

# A value of any JSON, in Parquet's binary form: a column VARIANT of Delta tables.
VARIANT = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])


class TableError(FlockError):
    """The table can't be read or written."""


class Overtaken(FlockError):
    """Another process has committed to the table in between: nothing of this commit is there."""


class Contents(NamedTuple):
    """A table, for readers of Parquet files.

    Attributes:
        files: paths of its data files.
        columns: their names.
    """

    files: list[str]
    columns: list[str]


class Table(ABC):
    """A table, which the first commit creates. All methods raise TableError: it, or its store, can't be reached."""

    @abstractmethod
    def number(self) -> int:
        """Read the number of the writer's newest commit; 0: there is none."""

    @abstractmethod
    def note(self) -> str:
        """The text in the writer's newest commit; empty: the table has it no more, or there is no commit."""

    @abstractmethod
    def append(self, rows: pa.Table, number: int, note: str) -> None:
        """Add rows, the number of the commit and a text, in one commit. Columns that are new are added to the table.

        Raises:
            Overtaken: the table has changed after the last `number` or commit of this object.
        """

    @abstractmethod
    def add_files(self, files: Sequence[str], number: int) -> None:
        """Add Parquet files that are there, and the number of the commit, in one commit; columns as for `append`.

        Args:
            files: of the same columns, as paths below the table's directory: `date=2026-01-31/hour=9/NAME.parquet`.
            number: of the commit.

        Raises:
            Overtaken: the table has changed after the last `number` or commit of this object.
        """

    @abstractmethod
    def contents(self) -> Contents:
        """The files and columns of the newest version; none if there is no table."""

    @abstractmethod
    def tidy(self) -> str:
        """Join small files, and drop files that no reader needs. Returns a sentence; empty: nothing was done."""


def told(error: BaseException) -> str:
    """The first line of an error of a library."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
