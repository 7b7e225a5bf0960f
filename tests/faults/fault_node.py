"""A node that kills itself at a chosen point of its work."""

import subprocess
from pathlib import Path
from typing import Any

from tests.harness.broker_process import BrokerProcess
from tests.harness.deadline import DEADLINE


class FaultNode(BrokerProcess):
    """A node with a SQLite store.

    Args:
        directory: for its store.
        sync: the store's synchronous level.
        settings: as for BrokerProcess.
    """

    def __init__(self, directory: Path, sync: str = "normal", settings: dict[str, object] | None = None) -> None:
        super().__init__(directory, "sqlite", settings, ["--sync", sync])
        self.kill_at = ""  # POINT:COUNT of kill_points.py for the next start

    def command(self) -> list[str]:
        command = super().command()
        if self.kill_at:
            at = command.index("flockmq.broker.cli")
            command[at : at + 1] = ["tests.faults.kill_points", self.kill_at]
        return command

    def died(self, wait: float = 0) -> bool:
        """Whether the node has killed itself, by now or within `wait` seconds."""
        if self.process is None:
            return True
        try:
            self.process.wait(wait)
        except subprocess.TimeoutExpired:
            return False
        status: Any = self.wait()
        assert status == -9, f"exit status {status}\n{self.log_text()}"
        return True

    def must_die(self) -> None:
        """Wait until the node has killed itself."""
        assert self.died(DEADLINE), "it did not come to that point"
