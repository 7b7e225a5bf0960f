"""A real HAProxy as a process, with the configuration that is deployed: `deploy/haproxy.cfg`.

Only the values that the file takes from the environment differ. It listens on free ports of 127.0.0.1; `start` returns
when it answers.
"""

import csv
import io
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.harness.broker_process import ROOT, environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

CONFIGURATION = ROOT / "deploy" / "haproxy.cfg"
CONNECTIONS = 8000  # it must be allowed twice as many files


class HaproxyProcess:
    """A load balancer.

    Args:
        directory: for its log; also its working directory.
        nodes: HOST:PORT of each node, five at most.
        http_port: where all nodes answer GET /readyz.
        variables: more of the environment.
    """

    def __init__(
        self, directory: Path, nodes: list[str], http_port: int, variables: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.port = free_port()  # for MQTT
        self.metrics_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._environment = {
            **environment(),
            "MQTT_BIND": f"127.0.0.1:{self.port}",
            "METRICS_BIND": f"127.0.0.1:{self.metrics_port}",
            "MAXCONN": str(CONNECTIONS),
            "NODE_HTTP_PORT": str(http_port),
            **{f"NODE_{number}": node for number, node in enumerate(nodes, 1)},
            **(variables or {}),
        }

    def start(self) -> "HaproxyProcess":
        """Start it and wait until it answers."""
        with open(self.directory / "haproxy.log", "ab") as log:
            self.process = subprocess.Popen(
                ["haproxy", "-db", "-f", str(CONFIGURATION)],
                cwd=self.directory,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        until(self._answers, "HAProxy answers")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "HAProxy did not start\n" + self.log_text()
        return bool(self.get("/healthz"))

    def get(self, path: str) -> str:
        """The answer of its HTTP side; empty while there is none, or with an error."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=DEADLINE) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def states(self) -> dict[str, str]:
        """UP, NOLB or DOWN by the name of a server: node-1 and so on."""
        rows = csv.DictReader(io.StringIO(self.get("/;csv").removeprefix("# ")))
        return {row["svname"]: row["status"].split()[0] for row in rows if row["svname"].startswith("node-")}

    def wait_for(self, server: str, state: str) -> None:
        """Wait until a server is UP, NOLB or DOWN."""
        until(lambda: self.states().get(server) == state, f"{server} is {state}: {self.log_text()}")

    def log_text(self) -> str:
        """Its output."""
        return (self.directory / "haproxy.log").read_text()

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it; returns its exit status. Harmless when it does not run."""
        if self.process is None:
            return 0
        self.process.send_signal(signum)
        status = self.process.wait(DEADLINE)
        self.process = None
        return status
