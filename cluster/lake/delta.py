"""Delta tables, with delta-rs. The position is in the commit's metadata, fenced by an application transaction."""

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ..follow.target import Overtaken, Progress, Target, TargetError, told
from .config import POSITION, TableConfig

APPLICATION = "flockmq-lake"  # of the transactions: their versions are the numbers of commits
COMMITS_AT_ONCE = 100  # that are looked at first, to find the newest with a position
KEPT = timedelta(days=7)  # in which readers may use files that were replaced


class Delta(Target):
    """A Delta table; it is made if it is not there.

    Args:
        config: of the table.
        schema: of its rows.
    """

    def __init__(self, config: TableConfig, schema: pa.Schema) -> None:
        self._config = config
        self._schema = schema
        self._options = dict(config.options) or None
        self._partition = {"none": [], "day": ["day"], "hour": ["day", "hour"]}[config.partition]
        self._found: DeltaTable | None = None  # with the position that was read, or committed, last

    def progress(self) -> Progress:
        try:
            self._found = found = self._load()
            for limit in (COMMITS_AT_ONCE, None):
                for commit in found.history(limit):
                    if POSITION in commit:
                        return Progress.parse(commit[POSITION])
            version = found.transaction_version(APPLICATION)
        except (DeltaError, OSError, ValueError) as error:
            raise TargetError(f"{self._config.table}: {told(error)}") from None
        if version is not None:
            raise TargetError(
                f"{self._config.table}: the commits with the position of the log are gone from its history",
                "start another table, or keep its log for longer (delta.logRetentionDuration)",
            )
        return Progress()

    def append(self, rows: pa.Table, progress: Progress) -> None:
        assert self._found is not None
        try:
            write_deltalake(
                self._found,
                with_times(rows, self._partition),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(
                    custom_metadata={POSITION: str(progress)},
                    app_transactions=[Transaction(APPLICATION, progress.number)],
                ),
            )
        except CommitFailedError as error:
            raise Overtaken(f"{self._config.table}: {told(error)}") from None
        except (DeltaError, OSError, ValueError) as error:
            raise TargetError(f"{self._config.table}: {told(error)}") from None

    def tidy(self) -> str:
        try:
            table = self._load()
            found = table.optimize.compact()
            gone = table.vacuum(int(KEPT.total_seconds() // 3600), dry_run=False)
        except (DeltaError, OSError, ValueError) as error:
            raise TargetError(f"{self._config.table}: {told(error)}") from None
        removed, added = found["numFilesRemoved"], found["numFilesAdded"]
        return f"{removed} files became {added}, {len(gone)} old ones are deleted" if removed or gone else ""

    def _load(self) -> DeltaTable:
        """The newest version of the table."""
        try:
            return DeltaTable(self._config.table, storage_options=self._options)
        except TableNotFoundError:
            return DeltaTable.create(
                self._config.table,
                schema=with_times(self._schema.empty_table(), self._partition).schema,
                mode="ignore",
                partition_by=self._partition or None,
                storage_options=self._options,
            )


def with_times(rows: pa.Table, names: list[str]) -> pa.Table:
    """The rows with the columns of the partition: `day`, a date, and `hour`."""
    accepted = rows["accepted_at"]
    if "day" in names:
        rows = rows.append_column("day", pc.cast(accepted, pa.date32()))
    if "hour" in names:
        rows = rows.append_column("hour", pc.cast(pc.hour(accepted), pa.int32()))
    return rows
