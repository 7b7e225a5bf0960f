"""Delta tables, with delta-rs. A commit has its number as an application transaction, and the note in its metadata."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import VariantType
from deltalake.transaction import AddAction
from pyarrow.fs import PyFileSystem

from .place import Place
from .table import VARIANT, Contents, Overtaken, Table, TableError, told

COMMITS_AT_ONCE = 100  # that are looked at first, to find the newest with a note
KEPT = timedelta(days=7)  # in which readers may use files that were replaced
PARTITION_COLUMNS = {"none": [], "day": ["date"], "hour": ["date", "hour"]}
TYPES = {"date": pa.date32(), "hour": pa.int32()}


class Delta(Table):
    """A Delta table."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._options = dict(place.options) or None
        self._partition: list[str] = PARTITION_COLUMNS[place.partition]
        self._found: DeltaTable | None = None  # as it was read, or committed to, last

    def number(self) -> int:
        with self._faults():
            self._load()
            return self._number()

    def note(self) -> str:
        if self._found is None:
            return ""
        with self._faults():
            for limit in (COMMITS_AT_ONCE, None):
                for commit in self._found.history(limit):
                    if self._place.writer in commit:
                        return str(commit[self._place.writer])
        return ""

    def append(self, rows: pa.Table, number: int, note: str) -> None:
        rows = with_times(rows, self._place.time, self._partition)
        with self._faults():
            write_deltalake(
                self._ready(rows.schema, number),
                rows,
                mode="append",
                schema_mode="merge",
                commit_properties=self._properties(number, {self._place.writer: note}),
            )

    def add_files(self, files: Sequence[str], number: int) -> None:
        with self._faults():
            store = PyFileSystem(DeltaStorageHandler(self._place.table, self._options))
            footers = [_footer(store, file) for file in files]
            schema = footers[0].schema.to_arrow_schema()
            for name in self._partition:
                schema = schema.append(pa.field(name, TYPES[name]))
            found = self._ready(schema, number)
            known = {each.name for each in found.schema().fields}
            if more := [each for each in Schema.from_arrow(schema).fields if each.name not in known]:
                found.alter.add_columns(more)
            sizes = [each.size for each in store.get_file_info(list(files))]
            found.create_write_transaction(
                [_add(*each) for each in zip(files, sizes, footers, strict=True)],
                "append",
                found.schema(),
                self._partition,
                commit_properties=self._properties(number),
            )
            found.update_incremental()

    def contents(self) -> Contents:
        with self._faults():
            found = self._load()
            return Contents([], []) if found is None else Contents(found.file_uris(), _names(found))

    def tidy(self) -> str:
        with self._faults():
            found = self._load()
            if found is None:
                return ""
            joined = found.optimize.compact()
            gone = found.vacuum(int(KEPT.total_seconds() // 3600), dry_run=False)
        removed, added = joined["numFilesRemoved"], joined["numFilesAdded"]
        return f"{removed} files became {added}, {len(gone)} old ones are deleted" if removed or gone else ""

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """The library's errors as ours; the table is read from the start after them."""
        try:
            yield
        except CommitFailedError as error:
            self._found = None
            raise Overtaken(f"{self._place.table}: {told(error)}") from None
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            self._found = None
            raise TableError(f"{self._place.table}: {told(error)}") from None

    def _load(self) -> DeltaTable | None:
        """The newest version of the table; None: there is none."""
        if self._found is not None:
            self._found.update_incremental()
        else:
            try:
                self._found = DeltaTable(self._place.table, storage_options=self._options)
            except TableNotFoundError:
                return None
        return self._found

    def _number(self) -> int:
        return 0 if self._found is None else self._found.transaction_version(self._place.writer) or 0

    def _ready(self, schema: pa.Schema, number: int) -> DeltaTable:
        """The table, for the commit with a number; it is created if it is not there."""
        if self._found is None:
            self._found = DeltaTable.create(
                self._place.table,
                schema=_schema_of(schema),
                mode="ignore",
                partition_by=self._partition or None,
                storage_options=self._options,
            )
        if self._number() >= number:  # another process has created it
            raise Overtaken(f"{self._place.table}: commit {number} of {self._place.writer} is there")
        return self._found

    def _properties(self, number: int, metadata: dict[str, str] | None = None) -> CommitProperties:
        transaction = Transaction(self._place.writer, number)
        return CommitProperties(custom_metadata=metadata, app_transactions=[transaction])


def _schema_of(schema: pa.Schema) -> Schema:
    fields = zip(schema, Schema.from_arrow(schema).fields, strict=True)
    return Schema([Field(own.name, VariantType()) if own.type == VARIANT else field for own, field in fields])


def _names(found: DeltaTable) -> list[str]:
    return [each.name for each in found.schema().fields]


def _footer(store: PyFileSystem, file: str) -> Any:
    with store.open_input_file(file) as stream:
        return pq.read_metadata(stream)


def _add(file: str, size: int, footer: Any) -> AddAction:
    """The entry of a file in the table's log."""
    partition = dict(level.split("=", 1) for level in file.split("/")[:-1])
    return AddAction(file, size, partition, round(time.time() * 1000), True, json.dumps(_statistics(footer)))


def _statistics(footer: Any) -> dict[str, Any]:
    """The rows of a file, and the first and last of its times: readers skip files by them."""
    pairs: dict[str, list[tuple[datetime, datetime]]] = {}
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            found = column.statistics
            if found is not None and found.has_min_max and isinstance(found.min, datetime):
                pairs.setdefault(column.path_in_schema, []).append((found.min, found.max))
    complete = {name: some for name, some in pairs.items() if len(some) == footer.num_row_groups}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _text(min(low for low, _ in some)) for name, some in complete.items()},
        "maxValues": {name: _text(max(high for _, high in some)) for name, some in complete.items()},
    }


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def with_times(rows: pa.Table, column: str, names: list[str]) -> pa.Table:
    """The rows with the columns of the partition, of a column of times: `date`, and `hour`."""
    times = rows[column]
    if "date" in names:
        rows = rows.append_column("date", pc.cast(times, TYPES["date"]))
    if "hour" in names:
        rows = rows.append_column("hour", pc.cast(pc.hour(times), TYPES["hour"]))
    return rows
