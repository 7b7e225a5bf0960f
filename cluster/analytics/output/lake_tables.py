"""The job's tables in Delta or Iceberg: they follow the commits of the job.

A version writes its Parquet files where they stay. The commit of the job names them. Then each table gets its files, in
one commit that has the version as its number. A job that dies in between adds the files at its next start: the number
in a table says whether it has them.
"""

import os
import time

from ....broker import logs
from ...tables.formats import open_table
from ...tables.table import Overtaken, TableError
from ..job_options import Options
from ..tables import TABLES
from .commits import Commit
from .stored import local_path, place_of

TRIES = 20  # of a commit, while other programs commit to the table
TIDY_SECONDS = 3600.0

log = logs.get("flockmq.analytics")


class LakeTables:
    """All tables of a job; each is created with its first rows.

    Args:
        options: of the job.
        job: its id, which names the commits.

    Raises:
        FlockError: a library or a catalog is missing, or can't be reached.
    """

    def __init__(self, options: Options, job: str) -> None:
        if path := local_path(options.output):
            os.makedirs(path, exist_ok=True)  # for the catalog
        kind, output, writer = options.format, options.output, f"flockmq-analytics-{job}"
        self._tables = {
            name: open_table(kind, place_of(kind, output, name, writer, options.table_options)) for name in TABLES
        }
        self._numbers = {name: table.number() for name, table in self._tables.items()}
        self._tidies = options.compact
        self._tidy_at = dict.fromkeys(TABLES, time.monotonic() + TIDY_SECONDS)

    def follow(self, commit: Commit) -> None:
        """Add the files of a commit of the job to the tables that don't have them yet.

        Raises:
            TableError: a table can't be reached. The next start of the job adds the files.
        """
        for name, files in commit.added.items():
            self._add(name, files, commit.version)

    def _add(self, name: str, files: list[str], version: int) -> None:
        table = self._tables[name]
        for _ in range(TRIES):
            if self._numbers[name] >= version:
                return
            try:
                table.add_files(files, version)
                self._numbers[name] = version
            except Overtaken as reason:
                log.info("another program has committed to the table; again", table=name, reason=reason)
                self._numbers[name] = table.number()
        if self._numbers[name] < version:
            raise TableError(f"{name}: other programs commit all the time", "let one program tidy the tables")

    def step(self) -> bool:
        """Tidy one table whose time has come; returns whether there was one."""
        due = min(self._tidy_at, key=self._tidy_at.__getitem__)
        if not self._tidies or self._tidy_at[due] > time.monotonic():
            return False
        self._tidy_at[due] = time.monotonic() + TIDY_SECONDS
        try:
            if done := self._tables[due].tidy():
                log.info("table tidied", table=due, done=done)
        except (TableError, Overtaken) as reason:
            log.warning("the table is not tidied", table=due, reason=reason)
        return True

    def hurry(self) -> None:
        """Let the next steps tidy all tables."""
        self._tidy_at = dict.fromkeys(TABLES, 0.0)
