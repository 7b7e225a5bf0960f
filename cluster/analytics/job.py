"""The Spark job: `flockmq analytics run ...`, and the same file under `spark-submit --py-files ... job.py ...`.

One streaming query calls `Batches`. While the logs have no new messages, the job's clock replaces the messages' times:
it ends windows, and finds silent devices.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flockmq.broker import logs
from flockmq.broker.commands.parser import Parser
from flockmq.broker.errors import FlockError, UsageError
from flockmq.cluster.analytics import job_options, session
from flockmq.cluster.analytics.faults import told
from flockmq.cluster.analytics.job_options import EXAMPLES, Options
from flockmq.cluster.analytics.log.connection import Connection
from flockmq.cluster.analytics.log.heartbeats import Heartbeats
from flockmq.cluster.analytics.log.jobs import Job as Entry
from flockmq.cluster.analytics.log.log import Logs
from flockmq.cluster.analytics.log.offsets import parse_offsets, positions
from flockmq.cluster.analytics.options import parse_options
from flockmq.cluster.analytics.output.batches import Batches
from flockmq.cluster.analytics.output.checkpoint_lock import CheckpointLock
from flockmq.cluster.analytics.output.live import Live
from flockmq.cluster.analytics.output.version import Report
from flockmq.cluster.analytics.source import register

LOOK = 0.5  # seconds between two checks of the query
log = logs.get("flockmq.analytics")


class Job:
    """The query over a stream of messages, until it ends or is stopped.

    Args:
        spark: the session.
        options: of the job.
        lock: of its checkpoint.

    Raises:
        FlockError: another job has the checkpoint.
    """

    def __init__(self, spark: SparkSession, options: Options, lock: CheckpointLock | None = None) -> None:
        self._options = options
        live = Live(options.redis, options.prefix, options.live_topics) if options.live and options.redis else None
        self.live = live
        self._connection = Connection(parse_options(options.source).redis)
        self._heartbeats = Heartbeats(self._read_heartbeats)
        self.batches = Batches(spark, options, live, self._report, lock, lambda: self._heartbeats.complete_until)
        self._stopping = threading.Event()
        self.source = {**options.source, "job": f"analytics-{self.batches.commits.id}"}  # options of the data source

    def _read_heartbeats(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self._connection.ask("HGETALL", self._connection.address.keys.nodes)
        return found

    def stop(self) -> None:
        """End when the running batch is done."""
        self._stopping.set()

    def run(self, messages: DataFrame) -> None:
        """Read until stopped; with `once` until all is read.

        Raises:
            FlockError: the query has failed.
        """
        started = time.time()
        query = self._query(messages)
        try:
            while query.isActive and not self._stopping.is_set():
                self._stopping.wait(LOOK)
                self._heartbeats.look()
                self._look(query)
        finally:
            self.batches.stop()
            fault = query.exception() if not query.isActive else None
            with contextlib.suppress(PySparkException):
                query.stop()
            self._connection.close()
        if self.batches.error is not None:
            raise told(self.batches.error)
        if fault is not None:
            raise told(fault)
        if self._options.once and not self._stopping.is_set():
            self._register_end(query)
            self.batches.resume()
            self.batches.look_at_clock(started)
            self.batches.merge_all()

    def _query(self, messages: DataFrame) -> StreamingQuery:
        writer = messages.writeStream.foreachBatch(self.batches).queryName("flockmq")
        writer = writer.option("checkpointLocation", f"{self._options.checkpoint}/spark")
        if self._options.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._options.trigger // 1000} milliseconds").start()

    def _register_end(self, query: StreamingQuery) -> None:
        """Register the end of the last batch: Spark commits one when the next begins, and no batch follows."""
        progress = query.lastProgress
        end = None if progress is None else progress["sources"][0]["endOffset"]
        if isinstance(end, str):
            end = json.loads(end)
        if end is None:
            return
        read = positions(parse_offsets(end))
        source = parse_options(self.source)
        with Connection(source.redis, source.redis_patience) as connection:
            logs_read = Logs(connection)
            entry = Entry(logs_read, source.job, source.nodes)
            entry.register(read, {})
            if source.trim_committed:
                entry.trim(read, logs_read.known())

    def _look(self, query: StreamingQuery) -> None:
        """The time of the last check that found the logs empty: all messages accepted before it are read."""
        status = query.status
        if self._options.once or status["isTriggerActive"] or status["isDataAvailable"]:
            return
        before = time.time() - self._options.trigger / 1e6 - LOOK  # the query has checked the logs since
        if before > self.batches.ended:
            self.batches.look_at_clock(before)

    def _report(self, report: Report) -> None:
        values: dict[str, object] = {
            "messages": report.messages,
            "per_second": round(report.messages / max(report.seconds, 0.001)),
            "seconds": round(report.seconds, 2),
            "lag": round(report.lag, 2),
        }
        if report.late:
            values["late"] = report.late
        if self.live is not None and self.live.dropped:
            values["live_topics_dropped"] = self.live.dropped
        log.info("batch", **values)


def run(arguments: list[str]) -> int:
    """Run the job of a command line; returns the exit status.

    Raises:
        FlockError: the command line is invalid, or the job has failed.
    """
    description = "The Spark job: statistics of all messages, once or for ever."
    parser = Parser("analytics run", description, "--redis URL --output DIR [OPTION...]", EXAMPLES)
    job_options.add_options(parser)
    parser.add_general_help(parser.add_argument_group("help"))
    options = job_options.parse(parser, arguments)
    # not `allows_colour`: that module needs compiled ones, and the job's package has none
    logs.configure("info", "text", colour=not os.environ.get("NO_COLOR"))
    check_redis(options)
    spark = session.start("flockmq analytics", options.master, verbose=options.verbose)
    session.few_partitions(spark)
    try:
        return run_in(spark, options)
    finally:
        spark.stop()


def check_redis(options: Options) -> None:
    """Check that Redis replies: a wrong address is reported at once, not after the start of Spark.

    Raises:
        RedisAway: it does not reply.
    """
    with Connection(parse_options(options.source).redis) as connection:
        connection.ask("PING")


def run_in(spark: SparkSession, options: Options) -> int:
    """Run the job in a session; SIGTERM and SIGINT stop it when its batch is done."""
    register(spark)
    with contextlib.closing(CheckpointLock(parse_options(options.source).redis)) as lock:
        return _run_locked(spark, options, lock)


def _run_locked(spark: SparkSession, options: Options, lock: CheckpointLock) -> int:
    job = Job(spark, options, lock)
    with stopped_by_signals(job):
        last = job.batches.commits.last
        job.batches.commits.check_place()
        log.info("begins", output=options.output, job=job.batches.commits.id, version=last.version)
        try:
            messages = spark.readStream.format("flockmq").options(**job.source).load()
            job.run(messages)
        except PySparkException as error:
            raise told(error) from error
        log.info("ends", version=job.batches.commits.last.version, messages=job.batches.commits.last.messages)
    return 0


@contextlib.contextmanager
def stopped_by_signals(job: Job) -> Iterator[None]:
    """SIGTERM and SIGINT end the job in good order; a second signal ends it at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, frame: FrameType | None) -> None:
        log.info("stops after this batch", signal=signal.Signals(number).name)
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        job.stop()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Run as a file under spark-submit."""
    try:
        return run(sys.argv[1:])
    except FlockError as error:
        print(f"flockmq: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
