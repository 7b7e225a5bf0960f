"""`flockmq analytics run` in its own process and process group, so that kill -9 takes its JVM too."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.deadline import DEADLINE


class JobProcess:
    """The job.

    Args:
        url: of Redis.
        output: its directory.
        arguments: more of the command line.
        log: takes its output.
    """

    def __init__(self, url: str, output: Path, arguments: list[str], log: Path) -> None:
        self.log = log
        command = [
            sys.executable,
            "-m",
            "flockmq.broker.cli",
            "analytics",
            "run",
            "--redis",
            url,
            "--output",
            str(output),
        ]
        with open(log, "wb") as stream:
            self.process = subprocess.Popen(
                [*command, "--master", "local[2]", *arguments],
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                },
            )

    def lines(self, event: str) -> int:
        """How many lines of its log have this event."""
        return sum(f" {event} " in line for line in self.log.read_text(errors="replace").splitlines())

    def wait_for(self, event: str, times: int = 1) -> None:
        """Wait for this line of its output."""
        end = time.monotonic() + DEADLINE
        while self.lines(event) < times:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, f"no {event!r}\n{self.log.read_text()}"
            time.sleep(0.02)

    def end(self, signum: int = signal.SIGTERM) -> int:
        """End the process, and wait; its status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signum)
        return self.wait()

    def wait(self) -> int:
        """Until it has ended; its status."""
        try:
            return self.process.wait(DEADLINE)
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9 of it and its JVM, at the same time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)
