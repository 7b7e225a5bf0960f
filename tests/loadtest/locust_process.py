"""A real `locust` as a process: its command line, its exit status, its output and files.

Locust patches the standard library when it is imported, so no test imports it.
"""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.broker_process import ROOT, environment
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

LOCUSTFILE = ROOT / "loadtest" / "locustfile.py"


class LocustProcess:
    """One locust, started.

    Args:
        directory: for its files.
        scenario: the text of a scenario.
        hosts: as for `--host`.
        arguments: more of the command line.
        processes: how many; 0 is one without a master.
    """

    def __init__(self, directory: Path, scenario: str, hosts: str, *arguments: str, processes: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        (directory / "scenario.toml").write_text(scenario)
        self._output = (directory / "output.txt").open("w")
        # A process that a shell runs in the background ignores SIGINT, and so do its children, unless they change that.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "locust"]
        command += ["-f", str(LOCUSTFILE), "--host", hosts]
        command += ["--scenario", "scenario.toml", "--csv", "result", *arguments]
        if processes:
            port = str(free_port())
            command += ["--processes", str(processes), "--master-port", port]
            command += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        """Its output so far."""
        return (self.directory / "output.txt").read_text()

    def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        try:
            return self.process.wait(DEADLINE)
        finally:
            self.close()

    def close(self) -> None:
        """End it, and its workers."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._output.close()

    def events(self) -> dict[str, int]:
        """How many of each event there were, failures included, by locust's files."""
        path = self.directory / "result_stats.csv"
        if not path.exists():
            return {}
        try:
            with path.open() as file:
                return {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
        except (ValueError, TypeError):  # locust is writing it
            return {}

    def failures(self) -> dict[tuple[str, str], int]:
        """How many of each failure there were: of which event, with which words."""
        with (self.directory / "result_failures.csv").open() as file:
            return {(row["Name"], row["Error"]): int(row["Occurrences"]) for row in csv.DictReader(file)}
