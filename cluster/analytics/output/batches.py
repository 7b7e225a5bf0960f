"""Turns each batch of messages into files, results and a commit; the streaming query calls it, batch after batch.

One query reads each message once. All results are computed from the archive's new files, or from the batch's rows in
memory. Separate queries for the results would each read the log, plan and commit.
"""

import threading
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from ..compute import silence
from ..job_options import PARQUET, Options
from ..tables import TABLES
from .checkpoint_lock import CheckpointLock
from .commits import Commits
from .compaction import Compaction
from .files import Files
from .lake_tables import LakeTables
from .live import Live
from .sinks import Sink
from .version import Report, Version

SHOWN = {"rates", "top_clients", "top_topics", "lag", "silence", "outliers"}  # in Redis


class Stopping(Exception):
    """The job is stopping: no further batch begins."""


class Batches:
    """Processes batches and checks of the clock, one at a time.

    Args:
        spark: a session whose time zone is UTC.
        options: of the job.
        live: publishes the latest results; None: they are not published.
        on_report: called with the counts of each batch.
        complete_until: returns the time up to which the logs are complete, in seconds since 1970.
        lock: of the checkpoint; None: the caller sees to it that no other job has it.

    Raises:
        FlockError: another job has the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        live: Live | None = None,
        on_report: Callable[[Report], None] = lambda report: None,
        lock: CheckpointLock | None = None,
        complete_until: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        self._options = options
        self._spark = spark
        self._live = live
        self._on_report = on_report
        self._lock = threading.Lock()
        self._stopping = False
        self.error: Exception | None = None
        self.ended = time.time()  # time of the last batch's end
        files = Files(spark, options.checkpoint)
        self._checkpoint_lock = lock
        self._complete_until = complete_until
        self.commits = Commits(files, options) if lock is None else Commits(files, options, lock.acquire)
        output = Files(spark, options.output)
        self._sink = Sink(output, options.output, self.commits.id)
        self._tables: LakeTables | None = None
        self._compaction: Compaction | LakeTables | None = None
        if options.format != PARQUET:
            self._compaction = self._tables = LakeTables(options, self.commits.id)
            self._tables.follow(self.commits.last)
        elif options.compact:
            self._compaction = Compaction(spark, output, options.output, self.commits)

    def __call__(self, messages: DataFrame, batch: int) -> None:
        """Process batch number `batch`, unless it is done already."""
        if self._stopping:
            raise Stopping("the job ends")
        with self._lock:
            try:
                if batch > self.commits.last.batch:  # else it is done, and Spark has not recorded that
                    self._do(messages, batch)
                    self._merge()
            except Exception as error:
                self.error = error
                raise
            finally:
                self.ended = time.time()

    def stop(self) -> None:
        """Begin no further batch, and wait for the running one."""
        self._stopping = True
        with self._lock:
            pass

    def resume(self) -> None:
        """Resume after `stop`, for a last check of the clock."""
        self._stopping = False

    def _do(self, messages: DataFrame, batch: int) -> None:
        started = time.monotonic()
        watermark = self.commits.last.watermark
        complete = self._complete_until() * 1e6
        version = Version(messages.sparkSession, self._options, self.commits, self._sink, batch, watermark, complete)
        version.add(messages)
        version.close_windows()
        self._finish(version)
        version.report.seconds = time.monotonic() - started
        self._on_report(version.report)

    def look_at_clock(self, now: float) -> bool:
        """All messages accepted before `now` are read, if the logs have them: check whether a window is over, or a
        device silent."""
        clock = round(min(now, self._complete_until()) * 1e6) - self._options.watermark
        with self._lock:
            last = self.commits.last
            if self._stopping or clock <= last.watermark:
                return False
            due = self._is_due(clock)
            length = self._options.window
            windows = any(last.parts.values()) and last.watermark // length < clock // length
            if not due and not windows:
                return False
            version = Version(self._spark, self._options, self.commits, self._sink, last.batch, clock)
            if due:
                version.renew_devices(silence.nothing(self._spark))
            version.close_windows()
            self._finish(version)
            self._merge()
            return True

    def merge_all(self) -> None:
        """Merge the small files of all hours that are over; of Delta and Iceberg: tidy all tables."""
        with self._lock:
            if self._tables is not None:
                self._tables.hurry()
            while not self._stopping and self._merge():
                pass

    def _merge(self) -> bool:
        if self._compaction is None:
            return False
        if self._checkpoint_lock is not None:
            self._checkpoint_lock.check()
        return self._compaction.step()

    def _is_due(self, clock: int) -> bool:
        version = self.commits.last.state.get("devices")
        if version is None or "silence" not in self._options.results:
            return False
        devices = self._spark.read.schema(silence.DEVICES).parquet(self.commits.state_path("devices", version))
        return not silence.due(devices, clock, self._options).isEmpty()

    def _finish(self, version: Version) -> None:
        if self._checkpoint_lock is not None:
            self._checkpoint_lock.check()
        if self._live is not None:
            for name in SHOWN & version.written.keys():
                rows = self._spark.read.schema(TABLES[name]).parquet(*version.written[name])
                self._live.show(name, rows.collect())
            self._live.flush()  # before the commit: a repeated batch publishes its results again
        self.commits.commit(version.commit())
        if self._tables is not None:
            self._tables.follow(self.commits.last)
