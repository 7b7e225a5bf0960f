"""Reads the logs of a cluster batch by batch, without Spark: plans, reads, registers its position, trims."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from .log.block import Selection
from .log.connection import Connection
from .log.jobs import Job
from .log.log import Logs
from .log.losses import Losses
from .log.offsets import Offsets, positions
from .log.planning import Planner, Range
from .log.reading import RangeReader
from .options import SourceOptions
from .position import Position
from .topic_filter import TopicFilters

HEARTBEAT = 60.0  # seconds; after these a job without progress registers again


class Batch(NamedTuple):
    """Messages of the logs, and the place behind them."""

    rows: Iterable[Any]  # record batches; they are read when they are taken
    end: Offsets  # equal to the start, if there are none
    bytes: int  # of the logs


class Driver(Protocol):
    """A reader's view of the logs, without Spark. Methods raise FlockError: the logs can't be read."""

    def initial(self) -> Offsets:
        """The start of a new reader."""

    def stop_at_present(self) -> None:
        """Read only up to the present ends of the logs."""

    def batch(self, start: Offsets, budget: int, end: Offsets | None = None) -> Batch:
        """The next batch: of about so many bytes of the logs at most, or up to `end`."""

    def commit(self, end: Offsets) -> None:
        """A batch is done, and will not be read again."""

    def waiting_bytes(self, read: Offsets) -> int:
        """The bytes of the logs behind these offsets, as far as they are known."""

    def close(self) -> None:
        """Close the connection."""


def read_range(options: SourceOptions, wanted: Range | None) -> Iterator[Any]:
    """The rows of a range as record batches, in an executor."""
    if wanted is None:
        return
    with Connection(options.redis, options.redis_patience) as connection:
        logs = Logs(connection)
        losses = Losses(options.fail_on_data_loss, Job(logs, options.job, options.nodes))
        filters = TopicFilters(options.topic_filters) if options.topic_filters else None
        reader = RangeReader(logs, Selection(filters, options.since, options.until), losses.missing, options.properties)
        for batch in reader.batches(wanted):
            yield from (batch,) if options.columns is None else options.columns.shape(batch)


class StreamDriver:
    """A query's view of the logs, in the driver: plans its batches, registers its position, trims.

    Args:
        options: of the source.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection = Connection(options.redis)
        self._logs = Logs(self._connection)
        self._job = Job(self._logs, options.job, options.nodes)
        self.planner = Planner(self._logs, options, Losses(options.fail_on_data_loss, self._job).missing)
        self.planner.look()  # reports a wrong address at once
        self._connection.patience = options.redis_patience  # from now on commands are retried
        self._target: dict[str, Position] | None = None
        self._heard = -HEARTBEAT  # monotonic time of the last registration; at first: never
        self._read: dict[str, Position] | None = None  # the registered positions

    def initial(self) -> Offsets:
        """The start of a new query."""
        if self._options.job:
            self._job.register({}, {})  # prevents trimming: all entries may be needed
        offsets = self.planner.initial()
        self._register(positions(offsets))
        return offsets

    def hold(self, offsets: Offsets) -> None:
        """Messages behind these places are needed: prevent trimming."""
        self._register(positions(offsets))

    def stop_at_present(self) -> None:
        """Read only up to the present ends of the logs."""
        self._target = self.planner.ends()

    def latest(self, start: Offsets, budget: int | None) -> Offsets:
        """The end of the next batch."""
        if self._read is None or time.monotonic() > self._heard + HEARTBEAT:
            self._register(positions(start) if self._read is None else self._read)
        return self.planner.latest(start, budget, self._target)

    def batch(self, start: Offsets, budget: int, end: Offsets | None = None) -> Batch:
        """The next batch, read in this process: of at most so many bytes of the logs, or up to `end`."""
        end = self.latest(start, budget) if end is None else end
        ranges = sorted(self.ranges(start, end), key=lambda each: (each.node, each.start)) if end != start else []
        rows = (batch for each in ranges for batch in read_range(self._options, each))
        return Batch(rows, end, sum(each.bytes for each in ranges))

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """The ranges of the tasks."""
        if self._read is None:  # a batch from before a restart: its start is needed
            self._register(positions(start))
        return self.planner.ranges(start, end)

    def commit(self, end: Offsets) -> None:
        """A batch is done, and will not be read again."""
        self._register(positions(end))
        if self._options.trim_committed:
            self._job.trim(positions(end), self.planner.known)

    def waiting_bytes(self, read: Offsets) -> int:
        """The bytes of the logs behind these offsets."""
        ends = self.planner.ends()
        return sum(max(0, end.total - read[node].position.total) for node, end in ends.items() if node in read)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _register(self, read: dict[str, Position]) -> None:
        self._read = read
        self._heard = time.monotonic()
        if self._options.job:
            self._job.register(read, self.planner.lacking)
