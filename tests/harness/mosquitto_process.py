"""A real Mosquitto: the other end of a link, or the broker whose state is imported."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port


class MosquittoProcess:
    """A Mosquitto on a free port, which later starts take again.

    Args:
        directory: for its configuration and its log.
        lines: more of its configuration.
    """

    def __init__(self, directory: Path, *lines: str) -> None:
        self._directory = directory
        self._lines = lines
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @staticmethod
    def is_installed() -> bool:
        """Whether it can be started."""
        return shutil.which("mosquitto") is not None or Path("/usr/sbin/mosquitto").exists()

    def start(self) -> "MosquittoProcess":
        """Start it, and wait until it accepts connections; another port is tried if the port has been taken."""
        until(self._try, "Mosquitto accepts connections")
        return self

    def _try(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            self.port = self.port or free_port()
            path = self._directory / "mosquitto.conf"
            path.write_text("\n".join([f"listener {self.port} 127.0.0.1", "allow_anonymous true", *self._lines, ""]))
            with (self._directory / "mosquitto.log").open("ab") as log:
                program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
                self._process = subprocess.Popen([program, "-v", "-c", str(path)], stdout=log, stderr=log)
        try:
            socket.create_connection(("127.0.0.1", self.port), DEADLINE).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM: it writes its persistence file, and ends."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(DEADLINE)
            self._process = None

    def save(self, path: Path) -> None:
        """SIGUSR1: it writes its persistence file, which is new when this returns."""
        assert self._process is not None
        until(lambda: " running" in self.log_text(), "Mosquitto runs")  # before, the signal ends it
        before = path.stat().st_ino if path.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        until(lambda: path.exists() and path.stat().st_ino != before, "Mosquitto has written its file")

    def log_text(self) -> str:
        """All that it has logged."""
        return (self._directory / "mosquitto.log").read_text(errors="replace")
