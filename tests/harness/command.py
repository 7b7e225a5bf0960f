"""`flockmq COMMAND` as a process."""

import subprocess
import sys

from tests.harness.broker_process import environment
from tests.harness.deadline import DEADLINE


def flockmq(*arguments: object, status: int = 0, entered: str | None = None) -> str:
    """Run the command; its output, and its errors behind it if it is to end with another status than 0.

    Args:
        arguments: of the command line.
        status: that it is to end with.
        entered: on its standard input.
    """
    done = subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", *map(str, arguments)],
        capture_output=True,
        input=entered,
        text=True,
        timeout=DEADLINE,
        env=environment(),
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + (done.stderr if status else "")
