"""Iceberg tables, with PyIceberg. A property of the table has the number of a commit and its note.

The commit that adds the rows sets it. The catalog fences it: a commit succeeds only upon the snapshot that was read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.table import Table as Found
from pyiceberg.transforms import DayTransform, HourTransform

from .place import Place
from .table import Contents, Overtaken, Table, TableError, told

PROPERTIES = {
    "commit.retry.num-retries": "0",  # by the library, which would commit upon another snapshot
    "commit.manifest-merge.enabled": "true",  # else a reader opens a file for each commit
    "write.metadata.delete-after-commit.enabled": "true",  # but for the 100 newest
}
TRANSFORMS = {"day": DayTransform, "hour": HourTransform}
KEPT = timedelta(days=7)  # in which readers may use a snapshot
MOST_KEPT = 1000  # snapshots: each commit writes a list of them


class Iceberg(Table):
    """An Iceberg table of a catalog."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._catalog: Catalog | None = None
        self._found: Found | None = None  # as it was read, or committed to, last

    def number(self) -> int:
        with self._faults():
            self._found = self._load()
            return self._number()

    def note(self) -> str:
        return self._property().partition(" ")[2]

    def append(self, rows: pa.Table, number: int, note: str) -> None:
        with self._faults(), self._ready(rows.schema, number).transaction() as transaction:
            transaction.append(rows)  # also without rows: only a new snapshot is fenced
            transaction.set_properties({self._place.writer: f"{number} {note}"})

    def add_files(self, files: Sequence[str], number: int) -> None:
        with self._faults():
            paths = [f"{self._place.location}/{file}" for file in files]
            with load_file_io(dict(self._place.options), paths[0]).new_input(paths[0]).open() as stream:
                schema = pq.read_schema(stream)
            with self._ready(schema, number).transaction() as transaction:
                transaction.add_files(paths, check_duplicate_files=False)  # the number says that they are new
                transaction.set_properties({self._place.writer: str(number)})

    def contents(self) -> Contents:
        with self._faults():
            found = self._load()
            if found is None:
                return Contents([], [])
            files = [task.file.file_path for task in found.scan().plan_files()]
            return Contents(files, found.schema().column_names)

    def tidy(self) -> str:
        with self._faults():
            found = self._load()
            if found is None:
                return ""
            until = datetime.now(UTC) - KEPT
            times = sorted(datetime.fromtimestamp(each.timestamp_ms / 1000, UTC) for each in found.snapshots())
            if len(times) > MOST_KEPT:
                until = max(until, times[-MOST_KEPT])
            old = sum(at < until for at in times[:-1])  # the newest stays
            if not old:
                return ""
            found.maintenance.expire_snapshots().older_than(until).commit()
        return f"{old} old snapshots are expired"

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """The library's errors as ours. Each catalog has errors of its own."""
        try:
            yield
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise Overtaken(f"{self._place.table}: {told(error)}") from None
        except (TableError, Overtaken):
            raise
        except Exception as error:
            raise TableError(f"{self._place.table}: {told(error)}") from None

    def _load(self) -> Found | None:
        if self._catalog is None:
            self._catalog = load_catalog(self._place.options.get("name", "default"), **self._place.options)
        try:
            return self._catalog.load_table(self._place.table)
        except NoSuchTableError:
            return None

    def _property(self) -> str:
        return "" if self._found is None else self._found.properties.get(self._place.writer, "")

    def _number(self) -> int:
        return int(self._property().partition(" ")[0] or 0)

    def _ready(self, schema: pa.Schema, number: int) -> Found:
        """The table with these columns, for the commit with a number; it is created if it is not there."""
        if self._found is None:
            self._found = self._load() or self._create(schema)
        if self._number() >= number:  # another process has created it
            raise Overtaken(f"{self._place.table}: commit {number} of {self._place.writer} is there")
        if set(schema.names) - set(self._found.schema().column_names):
            with self._found.update_schema() as update:
                update.union_by_name(schema)
        return self._found

    def _create(self, schema: pa.Schema) -> Found:
        assert self._catalog is not None
        name = self._place.table
        self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        location = self._place.location or None
        made = self._catalog.create_table(name, schema=schema, location=location, properties=PROPERTIES)
        transform = TRANSFORMS.get(self._place.partition)
        if transform is not None:
            with made.update_spec() as update:
                update.add_field(self._place.time, transform(), self._place.partition)
        return self._catalog.load_table(name)
