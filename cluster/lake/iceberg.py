"""Iceberg tables, with PyIceberg. The position is a property of the table, set by the commit that adds the rows.

The catalog fences it: a commit succeeds only upon the snapshot whose position was read.
"""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.table import Table as Found
from pyiceberg.transforms import DayTransform, HourTransform

from ..follow.target import Overtaken, Progress, Target, TargetError, told
from .config import POSITION, TableConfig

# Without retries by the library, which would commit upon another snapshot.
PROPERTIES = {"commit.retry.num-retries": "0"}
TRANSFORMS = {"day": DayTransform, "hour": HourTransform}
KEPT = timedelta(days=7)  # in which readers may use a snapshot


class Iceberg(Target):
    """An Iceberg table of a catalog; it is created if it is not there.

    Args:
        config: of the table; its options are the properties of the catalog.
        schema: of its rows.
    """

    def __init__(self, config: TableConfig, schema: pa.Schema) -> None:
        self._config = config
        self._schema = schema
        self._found: Found | None = None

    def progress(self) -> Progress:
        try:
            self._found = found = self._load()
            text = found.properties.get(POSITION)
        except Exception as error:  # each catalog has errors of its own
            raise TargetError(f"{self._config.table}: {told(error)}") from None
        return Progress() if text is None else Progress.parse(text)

    def append(self, rows: pa.Table, progress: Progress) -> None:
        assert self._found is not None
        try:
            if set(rows.column_names) - set(self._found.schema().column_names):
                with self._found.update_schema() as update:
                    update.union_by_name(rows.schema)
            with self._found.transaction() as transaction:
                transaction.append(rows)  # also without rows: only a new snapshot is fenced
                transaction.set_properties({POSITION: str(progress)})
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise Overtaken(f"{self._config.table}: {told(error)}") from None
        except Exception as error:
            raise TargetError(f"{self._config.table}: {told(error)}") from None

    def tidy(self) -> str:
        try:
            found = self._load()
            newest = found.current_snapshot()
            until = datetime.now(UTC) - KEPT
            old = [snapshot for snapshot in found.snapshots() if snapshot.timestamp_ms < until.timestamp() * 1000]
            if newest is None or all(snapshot.snapshot_id == newest.snapshot_id for snapshot in old):
                return ""
            found.maintenance.expire_snapshots().older_than(until).commit()
        except Exception as error:
            raise TargetError(f"{self._config.table}: {told(error)}") from None
        return f"{len(old)} old snapshots are expired"

    def _load(self) -> Found:
        catalog = load_catalog(self._config.options.get("name", "default"), **self._config.options)
        try:
            return catalog.load_table(self._config.table)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self._config.table.rpartition(".")[0])
            made = catalog.create_table(self._config.table, schema=self._schema, properties=PROPERTIES)
            transform = TRANSFORMS.get(self._config.partition)
            if transform is not None:
                with made.update_spec() as update:
                    update.add_field("accepted_at", transform(), self._config.partition)
            return catalog.load_table(self._config.table)
