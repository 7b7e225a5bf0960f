"""The work of one version of the job: a batch of messages, or a check of the clock; it closes windows that are over.

It commits nothing itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ..compute import lag, outliers, silence, values
from ..compute.clients import clients
from ..compute.cube import CUBE, cube
from ..compute.rates import rates
from ..compute.rows import numbers, slim, stamped
from ..compute.top import top
from ..job_options import PARQUET, Options
from ..tables import TABLES
from .commits import Commit, Commits
from .sinks import Sink, below

PARTS = {"cube": CUBE, "lags": lag.LAGS, "numbers": values.VALUES}
STATES = {"devices": silence.DEVICES, "histories": outliers.HISTORIES}
# The results of a window that are computed from its cube.
FROM_CUBE: dict[str, Callable[[DataFrame, Options], DataFrame]] = {
    "rates": lambda over, options: rates(over, options.depth),
    "clients": lambda over, options: clients(over, options.window),
    "top_clients": lambda over, options: top(over, "client_id", options.top),
    "top_topics": lambda over, options: top(over, "topic", options.top),
}


@dataclass
class Report:
    """The counts of a version, for its log line."""

    messages: int = 0
    seconds: float = 0
    lag: float = 0  # of the newest message
    late: int = 0
    files: dict[str, int] = field(default_factory=dict)  # by table


class Version:
    """Writes files and collects the fields of the commit.

    Args:
        spark: the session that reads and computes.
        options: of the job.
        commits: of the job; this version begins with the last one.
        sink: writes the files.
        batch: of Spark.
        watermark: minimum of the new watermark.
        complete_until: microseconds; the watermark passes it by no messages, as logs may lack earlier ones.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        commits: Commits,
        sink: Sink,
        batch: int,
        watermark: int,
        complete_until: float = float("inf"),
    ) -> None:
        last = commits.last
        self._spark = spark
        self._options = options
        self._commits = commits
        self._sink = sink
        self._before = last.watermark
        self._complete_until = complete_until
        self._batch = batch
        self.number = last.version + 1
        self.watermark = watermark
        self.report = Report()
        self.written: dict[str, list[str]] = {}  # table -> files
        self._state = dict(last.state)
        self._parts = {name: dict(versions) for name, versions in last.parts.items()}
        self._messages, self._late = last.messages, last.late
        self._some_are_over = False  # whether a window with messages of this version is over
        self._last_window = 0

    def commit(self) -> Commit:
        """The commit of this version."""
        added = {name: [below(path) for path in paths] for name, paths in self.written.items()}
        return Commit(
            version=self.number,
            batch=self._batch,
            watermark=self.watermark,
            state=self._state,
            parts=self._parts,
            messages=self._messages,
            late=self._late,
            added={} if self._options.format == PARQUET else added,
        )

    # ---- a batch ----

    def add(self, messages: DataFrame) -> None:
        """Archive the messages, and save their shares of the results."""
        rows = self._rows(messages)
        try:
            if rows is not None and self._look(rows):
                self._keep(rows)
        finally:
            if rows is not None:
                rows.unpersist()

    def _rows(self, messages: DataFrame) -> DataFrame | None:
        """The rows to compute from: the archive's new files, which are cheaper to read than the log."""
        if not self._options.archive:
            return slim(messages, self._options).persist()
        self._write("messages", messages)
        if "messages" not in self.written:
            return None
        return slim(self._spark.read.schema(TABLES["messages"]).parquet(*self.written["messages"]), self._options)

    def _look(self, rows: DataFrame) -> bool:
        """Count the messages, and set the watermark; returns whether there are any.

        The watermark is the time up to which the log of each node with messages has been read. It is computed by node,
        because some logs may be further behind than others; the log of a node without Redis has no messages yet.
        """
        now = round(time.time() * 1e6)
        late = F.count_if(F.col("window") + self._options.window <= self._before)
        of_node = [F.count("*"), F.max("at"), F.min("window"), F.max("window"), late]
        nodes = rows.groupBy("node").agg(*of_node).collect()
        if not nodes:
            return False
        _, counts, newest, first_windows, last_windows, lates = zip(*nodes, strict=True)
        read = round(min(*newest, now, self._complete_until))
        self.watermark = max(self.watermark, read - self._options.watermark)
        self._some_are_over = min(first_windows) + self._options.window <= self.watermark
        self._last_window = max(last_windows)
        self._messages += sum(counts)
        self._late += sum(lates)
        self.report = Report(messages=sum(counts), late=sum(lates), lag=max(0.0, (now - max(newest)) / 1e6))
        return True

    def _keep(self, rows: DataFrame) -> None:
        results = self._options.results
        if results & FROM_CUBE.keys():
            self._keep_part("cube", cube(rows))
        if results & {"numbers", "outliers"}:
            found = numbers(rows, self._options)
            self._keep_part("numbers", values.parts(found))
            histories = self.state("histories")
            if "outliers" in results and histories is not None:
                scored = outliers.outliers(found, histories, self._options.outlier_score)
                self._write("outliers", stamped(scored, "outliers", self._options))
        if "silence" in results:
            self.renew_devices(silence.seen(rows))
        if "lag" in results:  # last, because writing is part of it
            self._keep_part("lags", lag.lags(rows, round(time.time() * 1e6)))

    def _keep_part(self, name: str, part: DataFrame) -> None:
        path = self._commits.state_path(name, self.number)
        version = F.lit(self.number).cast("bigint").alias("version")
        part.select(version, "*").write.mode("overwrite").parquet(path)
        self._parts.setdefault(name, {})[str(self.number)] = self._last_window

    # ---- devices ----

    def state(self, name: str) -> DataFrame | None:
        """The state saved by an earlier version, or by this one."""
        if name not in self._state:
            return None
        return self._spark.read.schema(STATES[name]).parquet(self._commits.state_path(name, self._state[name]))

    def _keep_state(self, name: str, rows: DataFrame) -> str:
        path = self._commits.state_path(name, self.number)
        rows.write.mode("overwrite").parquet(path)
        self._state[name] = self.number
        return path

    def _state_or_nothing(self, name: str) -> DataFrame:
        found = self.state(name)
        return self._spark.createDataFrame([], STATES[name]) if found is None else found

    def renew_devices(self, seen: DataFrame) -> None:
        """Write the devices that fell silent, and the devices that are back."""
        devices = silence.renewed(self._state_or_nothing("devices"), seen, self.watermark, self._options)
        path = self._keep_state("devices", devices)
        told = self._spark.read.schema(f"{silence.DEVICES}, events {silence.EVENTS}").parquet(path)
        self._write("silence", stamped(silence.events(told), "silence", self._options))

    # ---- windows ----

    def close_windows(self) -> None:
        """Write the results of the windows that are now over."""
        length = self._options.window
        if not (self._some_are_over or self._before // length < self.watermark // length):
            return
        over = self._over("cube")
        if over is not None:
            over = over.persist()
            for name, compute in FROM_CUBE.items():
                if name in self._options.results:
                    self._write(name, stamped(compute(over, self._options), name, self._options))
            over.unpersist()
        lags, found = self._over("lags"), self._over("numbers")
        if lags is not None:
            self._write("lag", stamped(lag.lag(lags), "lag", self._options))
        if found is not None and "numbers" in self._options.results:
            self._write("numbers", stamped(values.values(found), "numbers", self._options))
        if found is not None and "outliers" in self._options.results:
            forgotten = self.watermark - self._options.forget
            self._keep_state("histories", outliers.renewed(self._state_or_nothing("histories"), found, forgotten))

    def _over(self, name: str) -> DataFrame | None:
        """The shares of windows that are over: of earlier batches, if not written yet, and of this one."""
        if not self._parts.get(name):
            return None
        paths = [self._commits.state_path(name, version) for version in self._parts[name]]
        end = F.col("window") + self._options.window
        new = (end > self._before) | (F.col("version") == self.number)
        return self._spark.read.schema(PARTS[name]).parquet(*paths).where((end <= self.watermark) & new)

    def _write(self, name: str, rows: DataFrame) -> None:
        if paths := self._sink.write(name, rows, self.number):
            self.written[name] = paths
            self.report.files[name] = len(paths)
