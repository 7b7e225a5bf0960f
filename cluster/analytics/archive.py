"""The messages before the log: a Delta table that `flockmq lake` made of the same log, as rows of the source.

The table's newest commit with a position says which messages it has: all up to this position, of all logs. The log is
read from there on. So each message is read once, and messages that neither has are a gap, as without a table.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..tables.place import LAKE_WRITER
from .errors import ArchiveError
from .log.block import SCHEMA, TIMESTAMP, decoded_columns
from .log.offsets import Offsets, parse_offsets
from .options import SourceOptions
from .topic_filter import TopicFilters

HINT = "the option archive is the directory or URL of a Delta table that `flockmq lake` made"


@dataclass(frozen=True)
class Files:
    """The files of a task."""

    version: int  # of the table
    paths: tuple[str, ...]  # as the table has them


class Archive:
    """A version of the table.

    Args:
        path: of the table.
        version: None: the present one.

    Raises:
        ArchiveError: it can't be read, or has no position of a log.
    """

    def __init__(self, path: str, version: int | None = None) -> None:
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError:
            raise ArchiveError("deltalake is not installed", "pip install 'flockmq[lake]'") from None
        self._path = path
        try:
            self._table = DeltaTable(path, version=version)
        except (DeltaError, OSError, ValueError) as error:
            raise ArchiveError(f"{path}: {str(error).splitlines()[0]}", HINT) from None
        self.version: int = self._table.version()

    def offsets(self) -> Offsets:
        """The position behind its messages. Raises ArchiveError: it has none."""
        for commit in self._table.history():
            if commit.get("version", 0) <= self.version and LAKE_WRITER in commit:
                return parse_offsets(json.loads(commit[LAKE_WRITER]))
        raise ArchiveError(f"{self._path}: no commit has the position of a log", HINT)

    def files(self, size: int) -> list[Files]:
        """Its files, in groups of about so many bytes."""
        groups: list[Files] = []
        paths: list[str] = []
        total = 0
        adds = pa.table(self._table.get_add_actions(flatten=True))
        for path, length in sorted(zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True)):
            if paths and total + length > size:
                groups.append(Files(self.version, tuple(paths)))
                paths, total = [], 0
            paths.append(path)
            total += length
        return [*groups, Files(self.version, tuple(paths))] if paths else groups

    def batches(self, paths: Sequence[str], options: SourceOptions) -> Iterator[Any]:
        """The rows of some files, as the source has them. Raises ArchiveError: the table lacks a column."""
        dataset = self._table.to_pyarrow_dataset()
        shape = _Shape(self._path, dataset.schema, options)
        wanted = set(paths)
        for fragment in dataset.get_fragments():
            if fragment.path in wanted:
                found = fragment.to_batches(schema=dataset.schema, columns=shape.names, filter=_of_time(options))
                for batch in found:
                    yield from shape.rows(batch)


class _Shape:
    """Makes rows of the source of rows of the table."""

    def __init__(self, path: str, schema: pa.Schema, options: SourceOptions) -> None:
        self._options = options
        self._has_payload = "payload" in schema.names
        self._topics = TopicFilters(options.topic_filters) if options.topic_filters else None
        self._columns = options.columns
        fixed = [name for name in SCHEMA.names if name != "payload"]
        self.names = (
            [*fixed, "payload"]
            if self._has_payload
            else [*fixed, "unparsed", *([] if options.columns is None else options.columns.types)]
        )
        missing = [name for name in self.names if name not in schema.names]
        if missing or (not self._has_payload and self._columns is None):
            lacking = ", ".join(missing or ["payload"])
            hint = "give the source the option schema with the file that the table was made with"
            raise ArchiveError(f"{path}: the table has no column {lacking}", hint)

    def rows(self, batch: Any) -> Iterator[Any]:
        """The rows of a batch of the table that are wanted."""
        if self._topics is not None:
            coded = batch.column("topic").cast(pa.string()).dictionary_encode()
            named = pa.array([self._topics.matches(name) for name in coded.dictionary.to_pylist()], pa.bool_())
            batch = batch.filter(named.take(coded.indices))
        if not batch.num_rows:
            return
        first = "payload" if self._has_payload else "unparsed"
        fixed = [
            batch.column(first if name == "payload" else name).cast(SCHEMA.field(name).type) for name in SCHEMA.names
        ]
        fields = [field.with_name(first) if field.name == "payload" else field for field in SCHEMA]
        properties = self._options.properties
        fixed += decoded_columns(fixed[-1], properties)
        fields += [pa.field(column.name, pa.string()) for column in properties]
        if self._has_payload:
            rows = pa.RecordBatch.from_arrays(fixed, schema=pa.schema(fields))
            yield from [rows] if self._columns is None else self._columns.shape(rows)
            return
        assert self._columns is not None
        for name, kind in self._columns.types.items():
            fixed.append(batch.column(name).cast(kind))
            fields.append(pa.field(name, kind))
        yield pa.RecordBatch.from_arrays(fixed, schema=pa.schema(fields))


def _of_time(options: SourceOptions) -> Any:
    """The filter of rows by the time of their messages; None: all."""
    accepted = pc.field("accepted_at")
    limits = []
    if options.since is not None:
        limits.append(accepted >= pa.scalar(options.since, TIMESTAMP))
    if options.until is not None:
        limits.append(accepted < pa.scalar(options.until, TIMESTAMP))
    return limits[0] & limits[1] if len(limits) == 2 else limits[0] if limits else None
