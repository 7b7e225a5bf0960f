"""The job's Parquet files for the report: read piece by piece, and only the columns and days that it needs.

Times become whole microseconds. Of the pieces only sums are kept, with one key for each name or bin.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ....broker.errors import FlockError
from ..output.stored import local_path, stored
from ..tables import TABLES, WINDOWED, time_of
from ..times import SECOND, format_time

ROWS = 64 * 1024  # of a piece
COMPACT = 250_000  # rows of partial sums before they are combined
PARTITIONS = pa.schema([("date", pa.string()), ("hour", pa.string())])
DATE = re.compile(r"date=(\d{4}-\d\d-\d\d)")


class Bounds(NamedTuple):
    """The times of results."""

    begin: int
    windows_end: int  # of the last window that is over; events may be later
    end: int
    window: int  # its length


Aggregation = tuple[str, str]  # a column, and "sum", "min" or "max"


class Results:
    """The output of the job in a directory.

    Args:
        directory: the job's `--output`.
        since, until: microseconds; rows of other times are ignored. None: no limit.

    Raises:
        FlockError: the directory has no output.
    """

    def __init__(self, directory: str, since: int | None = None, until: int | None = None) -> None:
        self.directory = directory
        self._since, self._until = since, until
        if not os.path.isdir(directory):
            raise FlockError(f"there is no directory {directory}", "name the --output of `flockmq analytics run`")
        self._datasets = {name: found for name in TABLES if (found := self._open(name)) is not None}
        if not self._datasets:
            raise FlockError(
                f"{directory} has no results yet",
                "`flockmq analytics run --output` writes them; the first after a minute",
            )

    def _open(self, name: str) -> Any:
        path = os.path.join(self.directory, name)
        if not os.path.isdir(path):
            return None
        table = stored(self.directory, name, os.path.exists)
        paths = path if table is None else [local_path(file) for file in table.files]
        if not paths:
            return None
        hive = ds.partitioning(PARTITIONS, flavor="hive")
        try:
            found = ds.dataset(paths, format="parquet", partitioning=hive)
        except (OSError, pa.ArrowException) as error:
            raise FlockError(f"can't read {path}: {_line(error)}") from error
        return found if found.files else None

    def has(self, name: str) -> bool:
        """Whether there are files of a table."""
        return name in self._datasets

    def bounds(self) -> Bounds | None:
        """The times of the first and last results; None without any row."""
        begin, end, windows_end, window = None, None, None, 60 * SECOND
        for name in TABLES:
            if name == "messages" or name not in self._datasets:
                continue
            columns = ["window_start", "window_end"] if name in WINDOWED else [time_of(name)]
            for table in self._edges(name, columns):
                low, high = pc.min(table[columns[0]]).as_py(), pc.max(table[columns[-1]]).as_py()
                if name in WINDOWED:
                    window = max(1, table[columns[-1]][0].as_py() - table[columns[0]][0].as_py())
                    windows_end = high if windows_end is None else max(windows_end, high)
                begin = low if begin is None else min(begin, low)
                end = high if end is None else max(end, high)
        if begin is None or end is None:
            return None
        end = max(end, begin + 1)
        return Bounds(begin, end if windows_end is None else windows_end, end, window)

    def _edges(self, name: str, columns: list[str]) -> Iterator[pa.Table]:
        """The first and the last day within the range that have rows."""
        days = sorted({found[1] for file in self._datasets[name].files if (found := DATE.search(file))})
        for order in (days, days[::-1]) if days else ([None],):
            for day in order:
                any_rows = False
                for table in self.read(name, columns, day=day):
                    any_rows = True
                    yield table
                if any_rows:
                    break

    def read(
        self, name: str, columns: Sequence[str], *, day: str | None = None, since_ever: bool = False
    ) -> Iterator[pa.Table]:
        """The rows of a table within the range, in pieces; none if there is no such row.

        Args:
            name: the table's.
            columns: their names.
            day: only rows of this date.
            since_ever: also rows from before the range.

        Raises:
            FlockError: a file can't be read.
        """
        if name not in self._datasets:
            return
        time = time_of(name)
        since = None if since_ever else self._since
        condition = self._days(name, since, day)
        try:
            dataset = self._datasets[name]
            wanted = list(dict.fromkeys([*columns, time]))
            if missing := [column for column in wanted if column not in dataset.schema.names]:
                raise FlockError(
                    f"{os.path.join(self.directory, name)} has no column {missing[0]}", "another release wrote it"
                )
            for batch in _batches(dataset, wanted, condition):
                table = _with_microseconds(pa.table(batch))
                if since is not None:
                    table = table.filter(pc.greater_equal(table[time], since))
                if self._until is not None:
                    table = table.filter(pc.less(table[time], self._until))
                if table.num_rows:
                    yield table.select(list(columns))
        except (OSError, pa.ArrowException) as error:
            raise FlockError(f"can't read {os.path.join(self.directory, name)}: {_line(error)}") from error

    def _days(self, name: str, since: int | None, day: str | None) -> Any:
        """The partitions that may have rows of the range."""
        if not any(DATE.search(file) for file in self._datasets[name].files[:1]):
            return None
        conditions = []
        if day is not None:
            conditions.append(ds.field("date") == day)
        if since is not None:
            conditions.append(ds.field("date") >= format_time(since)[:10])
        if self._until is not None:
            conditions.append(ds.field("date") <= format_time(self._until)[:10])
        condition = None
        for one in conditions:
            condition = one if condition is None else condition & one
        return condition


class Sums:
    """Sums of pieces by key.

    Args:
        keys: the columns that make a key.
        aggregations: the columns, and the functions applied to them.
    """

    def __init__(self, keys: Sequence[str], aggregations: Sequence[Aggregation]) -> None:
        self._keys = list(keys)
        self._aggregations = list(aggregations)
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Add a piece."""
        if table.num_rows:
            self._parts.append(self._summed(table))
            self._rows += self._parts[-1].num_rows
            if self._rows > COMPACT and len(self._parts) > 1:
                self._parts = [self._summed(pa.concat_tables(self._parts))]
                self._rows = self._parts[0].num_rows // 2  # so that many keys are not combined at each piece

    def table(self) -> pa.Table | None:
        """A row for each key; None without any."""
        return self._summed(pa.concat_tables(self._parts)) if self._parts else None

    def rows(self) -> list[dict[str, Any]]:
        """The same as Python objects."""
        table = self.table()
        return [] if table is None else table.to_pylist()

    def _summed(self, table: pa.Table) -> pa.Table:
        names = [*(column for column, _ in self._aggregations), *self._keys]
        if not self._keys:
            columns = {
                column: pa.array([getattr(pc, how)(table[column]).as_py()], table[column].type)
                for column, how in self._aggregations
            }
            return pa.table(columns)
        summed = table.select(names).group_by(self._keys).aggregate(self._aggregations)
        renamed = {f"{column}_{how}": column for column, how in self._aggregations}
        return summed.rename_columns([renamed.get(name, name) for name in summed.column_names]).select(names)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """A table with an added or replaced column."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def numbered(table: pa.Table, column: str, names: Sequence[str]) -> Any:
    """For each row the index of its name in `names`; `len(names)` if it is not in there."""
    places = pc.index_in(table[column], value_set=pa.array(names, table[column].type))
    return pc.fill_null(places, len(names))


def top(table: pa.Table | None, by: str, count: int) -> list[dict[str, Any]]:
    """The rows with the largest values, the largest first."""
    if table is None:
        return []
    return list(table.take(pc.select_k_unstable(table, count, [(by, "descending")])).to_pylist())


def _batches(dataset: Any, columns: Sequence[str], condition: Any) -> Iterator[Any]:
    """File after file: a scan of all files would read ahead without bound."""
    for file in dataset.get_fragments(condition):
        yield from file.to_batches(schema=dataset.schema, columns=columns, batch_size=ROWS, batch_readahead=2)


def _with_microseconds(table: pa.Table) -> pa.Table:
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            micros = table.column(index).cast(pa.timestamp("us", field.type.tz), safe=False).cast(pa.int64())
            table = table.set_column(index, field.name, micros)
    return table


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
