"""The add-on as a process, as its container runs it, but for its folders, the Supervisor's address and its ports."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.deploy.homeassistant.supervisor_server import SupervisorServer
from tests.harness.broker_process import ROOT, environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

ADDON = ROOT / "deploy" / "homeassistant" / "flockmq"
DEFAULTS = {
    "logins": [],
    "require_certificate": False,
    "certfile": "fullchain.pem",
    "keyfile": "privkey.pem",
    "log_level": "info",
}


class AddonProcess:
    """The add-on.

    Args:
        root: the container's root: `data`, `ssl` and `config` are there.
        supervisor: its Supervisor.
        token: that it has from the Supervisor.
    """

    def __init__(self, root: Path, supervisor: SupervisorServer, token: str) -> None:
        self.root = root
        self.port, self.tls_port, http_port = free_port(), free_port(), free_port()
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._variables = {
            **environment(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SUPERVISOR_API": supervisor.url,
            "SUPERVISOR_TOKEN": token,
            "FLOCKMQ_LISTEN": f"127.0.0.1:{self.port}",
            "FLOCKMQ_HTTP_LISTEN": f"127.0.0.1:{http_port}",
            "FLOCKMQ_AUTH_FAILURE_DELAY": "0",
        }
        for name in ("data", "ssl", "config"):
            (root / name).mkdir(parents=True)

    def start(self, *, tls: bool = False, **options: Any) -> "AddonProcess":
        """Start it with these options, and wait until it has told others."""
        self.spawn(tls=tls, **options)
        until(lambda: "service mqtt" in self.log(), "the add-on announces the broker")
        return self

    def spawn(self, *, tls: bool = False, **options: Any) -> None:
        """Start it, and don't wait."""
        (self.root / "data" / "options.json").write_text(json.dumps({**DEFAULTS, **options}))
        variables = dict(self._variables)
        if tls:
            variables["FLOCKMQ_LISTEN"] += f",mqtts://127.0.0.1:{self.tls_port}"
        self._lines.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flockmq_addon", self.root],
            cwd=ADDON,
            env={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._lines.append(line)

    def log(self) -> str:
        """What it and the node have logged since its start."""
        return "".join(self._lines)

    def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        assert self._process is not None
        status = self._process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None
        return status

    def stop(self) -> int:
        """End it as the Supervisor does; returns the exit status. Harmless when it does not run."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill_node(self) -> None:
        """kill -9 of the node."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        (node,) = (pid for pid in children if "serve" in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(int(node), signal.SIGKILL)
