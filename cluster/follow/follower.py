"""Follows the log of messages, batch by batch, and gives its messages to targets."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from ...broker import logs
from ...broker.client.log_client import LogUnreachable
from ..analytics.columns import Columns
from ..analytics.errors import RedisAway
from ..analytics.http_driver import HttpDriver
from ..analytics.options import SourceOptions
from ..analytics.stream_driver import Driver, StreamDriver
from ..tables.table import Overtaken
from .settings import LogSettings
from .target import Progress, Target, TargetError

IDLE_SECONDS = 60.0  # after which a position without rows is written: the log may be trimmed up to it then
TIDY_SECONDS = 3600.0
RETRY_SECONDS = 0.2, 5.0  # after a fault: at first, and at most
FIRST_BYTES = 64 << 20  # of the log, that `first_rows` looks at
FAILED = -1  # in place of the bytes of a batch

log = logs.get("flockmq.follow")


def open_driver(settings: LogSettings, filters: tuple[str, ...], columns: Columns | None, job: str = "") -> Driver:
    """Reads the log.

    Args:
        settings: of the log.
        filters: topic filters.
        columns: of the payload; None: it is one column.
        job: the name under which the position is registered in Redis; empty: it is not.

    Raises:
        RedisAway: Redis does not reply.
    """
    if settings.server is not None:
        return HttpDriver(settings.server.client(filters), columns, skips_missing=settings.skips_missing)
    assert settings.redis is not None
    filters = () if filters == ("#",) else filters
    return StreamDriver(
        SourceOptions(
            settings.redis,
            topic_filters=filters,
            job=job,
            columns=columns,
            fail_on_data_loss=not settings.skips_missing,
        )
    )


class Follower:
    """One target, and the log up to which it has the messages.

    Args:
        settings: of the log.
        name: for logs and figures.
        job: the name under which the position is registered: the log is kept up to it.
        filters: topic filters.
        columns: of the payload; None: it is one column.
        target: of the messages.

    Raises:
        RedisAway: Redis does not reply.
    """

    def __init__(
        self,
        settings: LogSettings,
        name: str,
        *,
        job: str,
        filters: tuple[str, ...],
        columns: Columns | None,
        target: Target,
    ) -> None:
        self.name = name
        self._schema = schema_of(columns)
        self._target = target
        self._has_columns = columns is not None
        self._budget = settings.batch_bytes
        self._driver = open_driver(settings, filters, columns, job)
        self._progress: Progress | None = None  # of the target; None: to be read
        self._read = Progress()  # of the log: the target's position, and rows behind it that did not match
        self._written_at = time.monotonic()
        self._tidy_at = time.monotonic() + TIDY_SECONDS
        self.rows = self.unparsed = self.batches = self.failures = 0
        self.waiting_bytes = 0  # of the log, behind the newest batch that was read

    def stop_at_present(self) -> None:
        """Read only up to the present end of the log."""
        self._driver.stop_at_present()

    def step(self) -> int:
        """Write the next batch, if there is one. Returns its bytes of the log.

        Raises:
            RedisAway, LogUnreachable, TargetError: try again later.
            DataLoss, MessagesMissing: messages are gone from the log.
        """
        planned = None
        if self._progress is None:
            self._progress = self._read = self._target.progress()
            planned = self._target.planned()
        start = self._read.offsets if self._read.offsets is not None else self._driver.initial()
        batch = self._driver.batch(start, self._budget, None if planned is None else planned.offsets)
        if batch.end == start and self._progress.offsets is not None and planned is None:
            self.waiting_bytes = 0
            self._tidy()
            return 0
        rows = pa.Table.from_batches(self._batches(batch.rows), schema=self._schema)
        self._read = Progress(self._progress.number + 1, batch.end)
        is_idle = time.monotonic() > self._written_at + IDLE_SECONDS
        if rows.num_rows or is_idle or self._progress.offsets is None or planned is not None:
            self._write(rows)
        self.waiting_bytes = self._driver.waiting_bytes(batch.end) if batch.bytes else 0
        return batch.bytes

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()
        self._target.close()

    def _batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if self._has_columns:
                unparsed = batch.column("unparsed")
                self.unparsed += len(unparsed) - unparsed.null_count
            yield from shaped(batch, self._schema)

    def _write(self, rows: pa.Table) -> None:
        progress = self._read
        assert progress.offsets is not None
        try:
            self._target.append(rows, progress)
        except Overtaken as reason:
            log.warning("another process writes there; this one goes on from its position", to=self.name, reason=reason)
            self._progress = None
            return
        except TargetError:
            self._progress = None  # the rows may be there: the position of the target says so
            raise
        self._progress = progress
        self._written_at = time.monotonic()
        self._driver.commit(progress.offsets)
        self.rows += rows.num_rows
        self.batches += 1
        log.info("committed", to=self.name, rows=rows.num_rows, batch=progress.number)

    def _tidy(self) -> None:
        if time.monotonic() > self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_SECONDS
            done = self._target.tidy()
            if done:
                log.info("tidied", to=self.name, done=done)


def follow(
    followers: Sequence[Follower], settings: LogSettings, *, once: bool, stopped: Callable[[float], bool]
) -> None:
    """Give messages to all targets, and close them in the end.

    Args:
        followers: of the log.
        settings: of the log.
        once: only the messages that are there at present.
        stopped: waits for so many seconds; returns whether to stop.

    Raises:
        FlockError: messages are gone from the log; with `once` also: a target can't be written.
    """
    try:
        if once:
            for follower in followers:
                follower.stop_at_present()
        waiting = list(followers)
        retry = RETRY_SECONDS[0]
        while waiting and not stopped(0):
            sizes = {follower: _try(follower, once=once) for follower in waiting}
            if once:
                waiting = [follower for follower, size in sizes.items() if size]
            elif FAILED in sizes.values():
                if stopped(max(settings.every, retry)):
                    break
                retry = min(2 * retry, RETRY_SECONDS[1])
            else:
                retry = RETRY_SECONDS[0]
                # With half of a batch or more, more waits than one batch takes.
                if max(sizes.values()) < settings.batch_bytes / 2 and stopped(settings.every):
                    break
    finally:
        for follower in followers:
            follower.close()


def _try(follower: Follower, *, once: bool) -> int:
    """A step. Faults that may pass are logged, and tried again after a while; with `once` they end the command."""
    try:
        return follower.step()
    except (RedisAway, LogUnreachable, TargetError) as error:
        if once:
            raise
        follower.failures += 1
        log.error("the target waits", to=follower.name, reason=error)
        return FAILED


def first_rows(settings: LogSettings, *, filters: tuple[str, ...], columns: Columns | None, count: int) -> pa.Table:
    """The oldest messages of the log. Nothing is registered.

    Args:
        settings: of the log.
        filters, columns: as of a Follower.
        count: of messages, at most.

    Raises:
        RedisAway: Redis does not reply.
    """
    driver = open_driver(settings, filters, columns)
    schema, found, rows = schema_of(columns), list[pa.RecordBatch](), 0
    try:
        for batch in driver.batch(driver.initial(), FIRST_BYTES).rows:
            found += shaped(batch, schema)
            rows += batch.num_rows
            if rows >= count:
                break
    finally:
        driver.close()
    return pa.Table.from_batches(found, schema=schema).slice(0, count)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """A batch of the log with these columns."""
    return pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()  # type: ignore[no-any-return]


def schema_of(columns: Columns | None) -> pa.Schema:
    """The columns of messages: of the message, and of its payload if it has columns."""
    fields = [
        pa.field("accepted_at", pa.timestamp("us", "UTC")),
        pa.field("node", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("qos", pa.int32()),
        pa.field("retain", pa.bool_()),
        pa.field("dup", pa.bool_()),
    ]
    if columns is None:
        fields.append(pa.field("payload", pa.binary()))
    else:
        fields += [pa.field(name, kind) for name, kind in columns.types.items()]
        fields.append(pa.field("unparsed", pa.binary()))
    fields.append(pa.field("properties", pa.binary()))
    return pa.schema(fields)
