"""Merges the small files of hours that are over: a batch every few seconds leaves hundreds of files an hour.

A merge is a version with its own commit, which names the files that it replaces. Its file is put beside them after
the commit, and they are removed then. If the job dies during the merge, its next start does the rest. A program that
reads the table in these milliseconds may see rows twice, or find that a file is gone: it reads again.
"""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from ..tables import TABLES, time_of
from .commits import Commits
from .files import Files

HOUR = 3600 * 1_000_000  # microseconds
DAY = 24 * HOUR  # a check lists so much again of earlier checks: messages may be late
SETTLED = HOUR // 6  # an hour is merged so long after its end: files with messages that were late are in it
SMALL = 64 << 20  # bytes: larger files stay as they are
MERGED = 128 << 20  # bytes of each new file, about
AT_ONCE = 512 << 20  # bytes of a merge: the next batch waits for it


class Compaction:
    """Merges hours one at a time.

    Args:
        spark: a session whose time zone is UTC.
        files: of the output.
        output: the directory of the tables.
        commits: of the job.
    """

    def __init__(self, spark: SparkSession, files: Files, output: str, commits: Commits) -> None:
        self._spark = spark
        self._files = files
        self._output = output
        self._commits = commits
        self._until = 0  # microseconds: hours up to this time have been listed
        self._hours: list[str] = []  # `<table>/date=.../hour=...`, whose files may be small

    def step(self) -> bool:
        """Merge files of one hour, if there are any to merge; returns whether there were."""
        until = (self._commits.last.watermark - SETTLED) // HOUR * HOUR
        if until > self._until:
            over = self._over(self._until - DAY, until)
            self._hours = [hour for hour in self._hours if hour not in over] + over
            self._until = until
        while self._hours:
            if self._merge(self._hours[-1]):
                return True
            self._hours.pop()
        return False

    def _over(self, since: int, until: int) -> list[str]:
        """The hours up to `until` with several small files, the newest last; of the dates that end after `since`."""
        found = []
        for name in TABLES:
            for date in self._files.names(f"{self._output}/{name}"):
                if date.startswith("date=") and _end_of(date, "hour=23") > since:
                    small = Counter(hour for hour, size in self._sizes(f"{name}/{date}/hour=*") if size < SMALL)
                    found += [(_end_of(date, hour), f"{name}/{date}/{hour}") for hour in small if small[hour] > 1]
        return [hour for end, hour in sorted(found) if end <= until]

    def _sizes(self, hours: str) -> list[tuple[str, int]]:
        """The hours of the job's files, and their bytes."""
        found = self._files.sizes(f"{self._output}/{hours}/*-{self._commits.id}-*.parquet")
        return [(path.split("/")[-2], size) for path, size in found]

    def _merge(self, hour: str) -> bool:
        """Merge small files of an hour; False: there is at most one."""
        paths, total = [], 0
        for path, size in self._files.sizes(f"{self._output}/{hour}/*-{self._commits.id}-*.parquet"):
            if size < SMALL and total + size <= AT_ONCE:
                paths.append(path)
                total += size
        if len(paths) < 2:
            return False
        rows = self._spark.read.option("mergeSchema", True).parquet(*paths)  # --properties may have changed
        rows = rows.coalesce(max(1, total // MERGED)).sortWithinPartitions(time_of(hour.partition("/")[0]))
        last = self._commits.last
        rows.write.mode("overwrite").parquet(self._commits.merging(last.version + 1))
        names = [path.rpartition("/")[2] for path in paths]
        self._commits.commit(replace(last, version=last.version + 1, merged={hour: names}))
        self._commits.finish_merge()
        return True


def _end_of(date: str, hour: str) -> int:
    """The end of an hour `date=2026-01-31`, `hour=9`, in microseconds since 1970."""
    day = datetime.strptime(date, "date=%Y-%m-%d").replace(tzinfo=UTC)
    return round(day.timestamp()) * 1_000_000 + (int(hour.partition("=")[2]) + 1) * HOUR
