"""The data source `flockmq` for Spark: a row per message in the nodes' logs, and a message per row to a broker.

    from flockmq.cluster.analytics.source import register
    register(spark)
    frame = spark.readStream.format("flockmq").option("redis", "redis://HOST:PORT").load()
    frame.select("topic", "payload").writeStream.format("flockmq").option("url", "mqtt://HOST:PORT").start()

The options are in `options`; deploy/docs/analytics.md explains them. Planning runs in a Python process of the driver,
`read` in the executors. They share only the options and the ranges.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.utils import is_remote

from .archive import Archive, Files
from .errors import OptionError
from .log.connection import Connection
from .log.jobs import Job
from .log.log import Logs
from .log.losses import Losses
from .log.offsets import format_offsets, parse_offsets
from .log.planning import Planner, Range
from .options import SourceOptions, parse_options
from .schema import MESSAGES
from .sink.options import SinkOptions
from .sink.options import parse_options as parse_sink_options
from .sink.rows import check_columns
from .sink.writer import BatchWriter, StreamWriter
from .stream_driver import StreamDriver, read_range

ARCHIVE = "@archive"  # in the offset of a stream that has not read its archive: the version of the table
REDACTED_OPTIONS = "spark.sql.redaction.options.regex"


def register(spark: SparkSession) -> None:
    """Register the format `flockmq` with a session."""
    _show_package(spark)
    _hide_passwords(spark)
    spark.dataSource.register(FlockMQDataSource)


def _hide_passwords(spark: SparkSession) -> None:
    """Hide the address of Redis in plans, which `explain` and Spark's pages show."""
    hidden = spark.conf.get(REDACTED_OPTIONS, "") or ""
    if "redis" not in hidden:
        spark.conf.set(REDACTED_OPTIONS, "|".join(filter(None, [hidden, "(?i)^redis"])))


def _show_package(spark: SparkSession) -> None:
    """Pass the path of the package to the driver's planning processes, if this module is from a package.

    Spark 4.3 starts the process of a stream with a path that lacks the files of `--py-files`. Through Spark Connect
    only the environment of the server can add to that path.
    """
    if is_remote():
        return
    package = next((entry for entry in sys.path if entry.endswith(".zip") and __file__.startswith(entry)), None)
    if package is None:
        return
    environment = spark.sparkContext.environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), package]))


class RangePartition(InputPartition):
    """The range of a task."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


class FilesPartition(InputPartition):
    """The files of the archive for a task."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)


def _read(options: SourceOptions, part: Range | Files | None) -> Iterator[Any]:
    """The rows of a task, in an executor."""
    if isinstance(part, Files):
        yield from Archive(options.archive, part.version).batches(part.paths, options)
    else:
        yield from read_range(options, part)


class FlockMQDataSource(DataSource):
    """The messages of a cluster."""

    @classmethod
    def name(cls) -> str:
        return "flockmq"

    def schema(self) -> StructType:
        return _schema_of(parse_options(self.options))  # parsed here so that `load()` reports a wrong one at once

    def reader(self, schema: StructType) -> DataSourceReader:
        return FlockMQReader(self._parsed(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        options = self._parsed(schema)
        if options.since is not None or options.until is not None:
            raise OptionError("the options since and until are for batches", "startingOffsets sets a stream's start")
        return FlockMQStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("the sink flockmq can't overwrite messages", 'write .mode("append")')
        return BatchWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> SinkOptions:
        options = parse_sink_options(self.options)
        check_columns(schema, options.level)
        return options

    def _parsed(self, schema: StructType) -> SourceOptions:
        options = parse_options(self.options)
        if schema != _schema_of(options):
            raise OptionError("the source flockmq has columns of its own", "leave .schema(...) out")
        return options


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
}
OF_ARROW: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bool": BooleanType(),
    "date32[day]": DateType(),
    "timestamp[us, tz=UTC]": TimestampType(),
}


def _schema_of(options: SourceOptions) -> StructType:
    """The columns of the rows."""
    found = StructType()
    for name, kind in (column.split() for column in MESSAGES.split(", ")):
        found.add("unparsed" if options.columns and name == "payload" else name, TYPES[kind])
    for column in options.properties:
        found.add(column.name, StringType())
    if options.columns is not None:
        for name, arrow in options.columns.types.items():
            found.add(name, _type_of(arrow))
    return found


def _type_of(kind: Any) -> DataType:
    """Spark's type for an Arrow type of a column of payloads."""
    if pa.types.is_struct(kind):
        return StructType([StructField(each.name, _type_of(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return ArrayType(_type_of(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(_type_of(kind.key_type), _type_of(kind.item_type))
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return OF_ARROW[str(kind)]


class FlockMQReader(DataSourceReader):
    """The messages that are in the logs at present."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Connection(options.redis) as connection:
            logs = Logs(connection)
            losses = Losses(options.fail_on_data_loss, Job(logs, options.job, options.nodes))
            planner = Planner(logs, options, losses.missing)
            if not options.archive:
                return [RangePartition(one) for one in planner.between(options.since, options.until)]
            archive = Archive(options.archive)
            start = archive.offsets()
            ranges = planner.ranges(start, planner.latest(start, None))
        files = archive.files(options.bytes_per_partition)
        return [*map(FilesPartition, files), *map(RangePartition, ranges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition.value)


class FlockMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages that nodes log, from a position on."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_driver": None}  # executors only read

    @property
    def _driven(self) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        if not self._options.archive:
            return format_offsets(self._driven.initial())
        archive = Archive(self._options.archive)
        self._driven.hold(archive.offsets())
        return {ARCHIVE: str(archive.version)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driven.stop_at_present()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        if isinstance(limit, ReadMaxBytes):
            budget: int | None = limit.max_bytes
        else:
            assert isinstance(limit, ReadAllAvailable), f"a limit that was not asked for: {limit}"
            budget = None
        if ARCHIVE in start:  # the first batch has the archive, and nothing else
            return format_offsets(self._archive(start).offsets())
        return format_offsets(self._driven.latest(parse_offsets(start), budget))

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        return {node: str(place) for node, place in sorted(self._driven.planner.ends().items())}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if ARCHIVE in start:
            return [FilesPartition(one) for one in self._archive(start).files(self._options.bytes_per_partition)]
        ranges = self._driven.ranges(parse_offsets(start), parse_offsets(end))
        return [RangePartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition.value)

    def _archive(self, start: dict[str, str]) -> Archive:
        """The version of the archive with which the stream began."""
        return Archive(self._options.archive, int(start[ARCHIVE]))

    def commit(self, end: dict[str, str]) -> None:
        self._driven.commit(parse_offsets(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
