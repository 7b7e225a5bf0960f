"""The commits of the job: kill -9 at any moment neither loses nor duplicates a row.

Each batch is a *version*, and so is each check of the clock that changes something, and each merge of files. A version
writes files whose names contain its number and the job's id. Then it writes its commit: one small file, renamed into
place. At start the job finishes a merge (compaction.py), and removes files of versions above the last commit. The
batches of those are repeated from the same messages, because Spark's checkpoint has their offsets. So after a restart
of the job, plain readers of the Parquet files (pandas, DuckDB) find each row exactly once.

Tables of Delta and Iceberg get the files after the commit (lake_tables.py).

    <checkpoint>/spark/           Spark's: offsets
    <checkpoint>/job.json         the job's id, and the options that are fixed
    <checkpoint>/commits/         the last two
    <checkpoint>/state/NAME/V     the job's state after version V, as Parquet
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from ....broker.errors import FlockError, UsageError
from ..job_options import Options
from ..tables import TABLES
from .files import Files

LAYOUT = 1
KEPT = 2  # commits
MERGING = "_merging"  # below the output: files of merges, until their commit


@dataclass(frozen=True)
class Commit:
    """The state after a version."""

    version: int = 0
    batch: int = -1  # of Spark
    watermark: int = 0  # microseconds; windows up to this time are written
    state: dict[str, int] = field(default_factory=dict)  # name -> version of the state
    parts: dict[str, dict[str, int]] = field(default_factory=dict)  # cube, ... -> version -> start of its last window
    messages: int = 0  # so far
    late: int = 0  # messages whose window had been written before
    merged: dict[str, list[str]] = field(default_factory=dict)  # hour of a table -> files that this version replaces
    added: dict[str, list[str]] = field(default_factory=dict)  # table of Delta or Iceberg -> files that it gets


class Commits:
    """The job's commits in `options.checkpoint`.

    Args:
        files: of the checkpoint and the output.
        options: of the job.
        acquire: takes the lock of a job, given its id and the directory; raises FlockError if another one has it.

    Raises:
        UsageError: the checkpoint is another job's.
    """

    def __init__(
        self, files: Files, options: Options, acquire: Callable[[str, str], None] = lambda job, directory: None
    ) -> None:
        self._files = files
        self._options = options
        self.directory = options.checkpoint
        self.id = self._identify()
        acquire(self.id, self.directory)  # before the files of another one that runs are read and removed
        self.last = self._load()
        self.sweep()

    def _identify(self) -> str:
        """The job's id, new with a new checkpoint."""
        path = f"{self.directory}/job.json"
        options = self._options
        fixed = {"layout": LAYOUT, "prefix": options.prefix, "window": options.window, "format": options.format}
        if self._files.exists(path):
            job = json.loads(self._files.read(path))
            for name, value in fixed.items():
                if job[name] != value:
                    shown = (f"{job[name] / 1e6:g} seconds" if name == "window" else job[name]) if value else value
                    raise UsageError(
                        f"--{name} can't change: it was {shown} when {self.directory} began",
                        "continue with that, or use another --checkpoint and --output",
                    )
            return str(job["id"])
        if found := [name for name in TABLES if self._files.glob(f"{self._options.output}/{name}/date=*/hour=*/*")]:
            raise UsageError(
                f"{self._options.output} has {found[0]} of a job with another checkpoint than {self.directory}",
                "name that one with --checkpoint, or an empty directory with --output",
            )
        job = {"id": secrets.token_hex(4), **fixed}
        self._files.write(path, json.dumps(job))
        return str(job["id"])

    def _load(self) -> Commit:
        names = self._files.names(f"{self.directory}/commits")
        for name in reversed([name for name in names if name.endswith(".json")]):
            try:
                return Commit(**json.loads(self._files.read(f"{self.directory}/commits/{name}")))
            except (ValueError, TypeError) as error:
                raise FlockError(f"{self.directory}/commits/{name} is damaged: {error}") from error
        return Commit()

    def check_place(self) -> None:
        """Without its checkpoint Spark would count batches from 0 again, and the job would skip them as done.

        Raises:
            FlockError: Spark's part of the checkpoint is gone.
        """
        if self.last.batch >= 0 and not self._files.names(f"{self.directory}/spark/offsets"):
            raise FlockError(
                f"{self.directory}/spark is gone, and with it the place in the logs where the job was",
                "restore it, or use another --checkpoint and --output",
            )

    def sweep(self) -> int:
        """Remove the files of uncommitted versions, and obsolete state; returns the number of files."""
        removed = 0
        self.finish_merge()
        self._files.delete(f"{self._options.output}/{MERGING}")
        self._files.delete(f"{self._options.output}/_staging")
        for name in TABLES:
            for path in self._files.glob(f"{self._options.output}/{name}/date=*/hour=*/*-{self.id}-*.parquet"):
                if int(path.rpartition("/")[2].partition("-")[0]) > self.last.version:
                    self._files.delete(path)
                    removed += 1
        return removed + self._sweep_state()

    def _sweep_state(self) -> int:
        needed = {f"{name}/{version}" for name, version in self.last.state.items()}
        needed |= {f"{name}/{version}" for name, versions in self.last.parts.items() for version in versions}
        removed = 0
        for name in self._files.names(f"{self.directory}/state"):
            for version in self._files.names(f"{self.directory}/state/{name}"):
                if f"{name}/{version}" not in needed:
                    self._files.delete(f"{self.directory}/state/{name}/{version}")
                    removed += 1
        return removed

    def commit(self, commit: Commit) -> None:
        """Commit: from now on the version's files are valid."""
        parts = {
            name: {at: start for at, start in versions.items() if start + self._options.window > commit.watermark}
            for name, versions in commit.parts.items()
        }
        before = self.last
        self.last = replace(commit, parts=parts)
        content = {name: value for name, value in asdict(self.last).items() if value or name not in ("merged", "added")}
        self._files.write(f"{self.directory}/commits/{commit.version:010}.json", json.dumps(content))
        for path in self._files.glob(f"{self.directory}/commits/*.json")[:-KEPT]:
            self._files.delete(path)
        self._remove_what_was_replaced(before)

    def _remove_what_was_replaced(self, before: Commit) -> None:
        gone = [f"{name}/{at}" for name, at in before.state.items() if self.last.state.get(name) != at]
        for name, versions in before.parts.items():
            gone += [f"{name}/{at}" for at in versions if at not in self.last.parts.get(name, {})]
        # A part that was written and closed within this version was never in a commit.
        for name in self.last.parts:
            if str(self.last.version) not in self.last.parts[name]:
                gone.append(f"{name}/{self.last.version}")
        for path in gone:
            self._files.delete(f"{self.directory}/state/{path}")

    def merging(self, version: int) -> str:
        """The directory of the files that a version merges."""
        return f"{self._options.output}/{MERGING}/{version}"

    def finish_merge(self) -> None:
        """Replace the files that the last version has merged, as far as that is not done."""
        version = self.last.version
        for hour, names in self.last.merged.items():
            newest = max(names).partition("-")[0]  # the order of files by name stays the order of their columns
            for path in self._files.glob(f"{self.merging(version)}/part-*.parquet"):
                number = int(path.rpartition("/")[2].split("-")[1])
                self._files.rename(path, f"{self._options.output}/{hour}/{newest}-{self.id}-{version}m{number}.parquet")
            for name in names:
                self._files.delete(f"{self._options.output}/{hour}/{name}")
            self._files.delete(self.merging(version))

    def state_path(self, name: str, version: int | str) -> str:
        """The directory of a version's state."""
        return f"{self.directory}/state/{name}/{version}"
