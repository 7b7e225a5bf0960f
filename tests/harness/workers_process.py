"""`serve --workers N` as a process: a supervisor, its nodes, and the Redis that it starts for them."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness.broker_process import BrokerProcess, until
from tests.harness.deadline import DEADLINE


class WorkersProcess(BrokerProcess):
    """Workers with their Redis. It is ready when all workers are.

    Args:
        directory: for its store; also its working directory.
        workers: number of workers.
        sync: of the store; "" = the store `memory`.
        settings: as for BrokerProcess.
        arguments: as for BrokerProcess.
    """

    def __init__(
        self,
        directory: Path,
        workers: int = 2,
        sync: str = "normal",
        settings: Mapping[str, object] | None = None,
        arguments: list[str] | None = None,
    ) -> None:
        super().__init__(directory, "workers", settings, arguments)
        self.workers = workers
        self.sync = sync

    def store_arguments(self) -> list[str]:
        store = ["--store", "sqlite:flockmq.db", "--sync", self.sync] if self.sync else ["--store", "memory"]
        return [*store, "--workers", str(self.workers), "--node-name", "w"]

    def wait_until_ready(self) -> "WorkersProcess":
        super().wait_until_ready()
        until(lambda: len(self.lines("is ready")) >= self.workers, "all workers are ready")
        return self

    def lines(self, words: str, since: int | None = None) -> list[dict[str, Any]]:
        """Lines of the log, since the last start or since a number, whose event ends with these words."""
        lines = self.log[self._spawned_at if since is None else since :]
        return [line for line in lines if line["event"].endswith(words)]

    @property
    def redis_directory(self) -> Path:
        """The files of Redis."""
        return self.directory / "flockmq.db.workers"

    @property
    def redis_pid(self) -> int:
        """Redis, since its last start."""
        return int(self.lines("Redis started")[-1]["pid"])

    def pids(self) -> list[int]:
        """The workers and Redis, over all lives since the last start."""
        return [int(line["pid"]) for words in ("worker started", "Redis started") for line in self.lines(words)]

    def kill_redis(self) -> None:
        """kill -9 of Redis; returns when each worker has it back."""
        seen = len(self.log)
        os.kill(self.redis_pid, signal.SIGKILL)
        # A worker that was declared dead meets Redis again by joining.
        ends = ("Redis is back", "joined the cluster")
        until(lambda: sum(len(self.lines(end, seen)) for end in ends) >= self.workers, "Redis is back", 2 * DEADLINE)

    def kill_worker(self, number: int) -> None:
        """kill -9 of a worker; returns when it is ready again."""
        seen = len(self.log)
        name = f"w-{number}"
        os.kill([line["pid"] for line in self.lines("worker started") if line["worker"] == name][-1], signal.SIGKILL)
        self.wait_for_log("is ready$", since=seen)


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
