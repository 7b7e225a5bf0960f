"""Follows the log of a cluster, and commits its messages to the tables."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from ...broker import logs
from ...broker.client.log_client import LogUnreachable
from ...broker.errors import ConfigError
from ..analytics.columns import read_schema
from ..analytics.errors import RedisAway
from ..analytics.http_driver import HttpDriver
from ..analytics.options import SourceOptions
from ..analytics.stream_driver import Driver, StreamDriver
from .config import DELTA, LakeConfig, TableConfig
from .table import Overtaken, Progress, Table, TableError, schema_of

IDLE_SECONDS = 60.0  # after which a position without rows is committed: the log may be trimmed up to it then
TIDY_SECONDS = 3600.0
RETRY_SECONDS = 5.0
FAILED = -1  # in place of the bytes of a batch

log = logs.get("flockmq.lake")


def open_table(config: TableConfig, schema: pa.Schema) -> Table:
    """The table of a configuration. Its library is imported here: each needs one only."""
    if config.format == DELTA:
        from .delta import Delta

        return Delta(config, schema)
    from .iceberg import Iceberg

    return Iceberg(config, schema)


def open_driver(lake: LakeConfig, config: TableConfig, columns: Mapping[str, pa.DataType]) -> Driver:
    """Reads the log for a table. Raises RedisAway."""
    if lake.log is not None:
        return HttpDriver(lake.log.client(config.filters), columns)
    assert lake.redis is not None
    filters = () if config.filters == ("#",) else config.filters
    return StreamDriver(SourceOptions(lake.redis, topic_filters=filters, job=f"lake:{config.name}", columns=columns))


class Follower:
    """One table, and the log up to which it has the messages.

    Args:
        lake: the settings of all tables.
        config: of the table.

    Raises:
        ConfigError: the file with the schema of the payloads is wrong.
        RedisAway: Redis does not reply.
    """

    def __init__(self, lake: LakeConfig, config: TableConfig) -> None:
        self.name = config.name
        types = {} if config.schema is None else _columns_of(config.schema)
        self._schema = schema_of(types)
        self._table = open_table(config, self._schema)
        self._has_columns = bool(types)
        self._budget = lake.batch_bytes
        self._driver = open_driver(lake, config, types)
        self._progress: Progress | None = None  # of the table; None: to be read
        self._read = Progress()  # of the log: the table's position, and rows behind it that did not match
        self._committed_at = time.monotonic()
        self._tidy_at = time.monotonic() + TIDY_SECONDS
        self.rows = self.unparsed = self.commits = 0

    def stop_at_present(self) -> None:
        """Read only up to the present end of the log."""
        self._driver.stop_at_present()

    def step(self) -> int:
        """Commit the next batch, if there is one. Returns its bytes of the log.

        Raises:
            RedisAway, LogUnreachable, TableError: try again later.
            DataLoss, MessagesMissing: messages are gone from the log.
        """
        if self._progress is None:
            self._progress = self._read = self._table.progress()
        start = self._read.offsets if self._read.offsets is not None else self._driver.initial()
        batch = self._driver.batch(start, self._budget)
        if batch.end == start and self._progress.offsets is not None:
            self._tidy()
            return 0
        rows = pa.Table.from_batches(self._batches(batch.rows), schema=self._schema)
        self._read = Progress(self._progress.number + 1, batch.end)
        if rows.num_rows or time.monotonic() > self._committed_at + IDLE_SECONDS or self._progress.offsets is None:
            self._commit(rows)
        return batch.bytes

    def close(self) -> None:
        """Close the connection."""
        self._driver.close()

    def _batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if self._has_columns:
                unparsed = batch.column("unparsed")
                self.unparsed += len(unparsed) - unparsed.null_count
            yield from pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema).to_batches()

    def _commit(self, rows: pa.Table) -> None:
        progress = self._read
        assert progress.offsets is not None
        try:
            self._table.append(rows, progress)
        except Overtaken as reason:
            log.warning("another process writes to the table; this one goes on from its position", reason=reason)
            self._progress = None
            return
        except TableError:
            self._progress = None  # the rows may be there: the position of the table says so
            raise
        self._progress = progress
        self._committed_at = time.monotonic()
        self._driver.commit(progress.offsets)
        self.rows += rows.num_rows
        self.commits += 1
        log.info("committed", table=self.name, rows=rows.num_rows, commit=progress.number)

    def _tidy(self) -> None:
        if time.monotonic() > self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_SECONDS
            done = self._table.tidy()
            if done:
                log.info("table tidied", table=self.name, done=done)


def _columns_of(path: Path) -> dict[str, pa.DataType]:
    """The columns of payloads that a file describes. Raises ConfigError."""
    try:
        return read_schema(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def follow(lake: LakeConfig, *, once: bool, stopped: Callable[[float], bool]) -> list[Follower]:
    """Commit messages to all tables.

    Args:
        lake: the settings.
        once: only the messages that are there at present.
        stopped: waits for so many seconds; returns whether to stop.

    Raises:
        FlockError: the configuration is wrong, or messages are gone from the log.
    """
    followers = [Follower(lake, table) for table in lake.tables]
    try:
        if once:
            for follower in followers:
                follower.stop_at_present()
        waiting = list(followers)
        while waiting and not stopped(0):
            sizes = {follower: _try(follower, once=once) for follower in waiting}
            if once:
                waiting = [follower for follower, size in sizes.items() if size]
            elif max(sizes.values()) < lake.batch_bytes / 2:  # else more waits than one commit takes
                pause = max(lake.every, RETRY_SECONDS) if FAILED in sizes.values() else lake.every
                if stopped(pause):
                    break
    finally:
        for follower in followers:
            follower.close()
    return followers


def _try(follower: Follower, *, once: bool) -> int:
    """A step. Faults that may pass are logged, and tried again after a while; with `once` they end the command."""
    try:
        return follower.step()
    except (RedisAway, LogUnreachable, TableError) as error:
        if once:
            raise
        log.error("the table waits", table=follower.name, reason=error)
        return FAILED
