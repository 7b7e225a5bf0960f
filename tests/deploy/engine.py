"""A Docker engine for one test, out of everybody's way, and docker-compose on it.

It runs in separate namespaces (network, mounts, processes): bridges, firewall rules and containers are not this
machine's. The end of its first process is the end of them all, and so is the end of the test's process, in any way. One
pair of virtual interfaces leads in: ports that are published at `address` can be reached from here, and containers
reach servers at `gateway`.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.harness.broker_process import ROOT, environment, until

NEEDED = ("dockerd", "docker", "docker-compose", "iptables", "ip", "unshare", "setpriv")
MEMORY = Path("/proc/meminfo")
IN_MEMORY = 4 << 30  # bytes that images and containers may take there; they take about 1.5 GB
# Inside: wait until the interface is there, then be the engine. /run is its own: locks of iptables are there.
SCRIPT = """
set -e
mount -t tmpfs tmpfs /run
test "$4" = 0 || mount -t tmpfs -o "size=$4" tmpfs "$1/data"
ip link set lo up
read -r address
ip address add "$address/30" dev eth0
ip link set eth0 up
exec dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" --host "unix://$1/socket" \
    --cgroup-parent "$2" --storage-driver "$3"
"""


class NoEngine(Exception):
    """Why there can be none here."""


def why_not() -> str:
    """Why no engine can run here; empty if one may."""
    if os.geteuid() != 0:
        return "a Docker engine needs root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def in_memory(driver: str) -> int:
    """Bytes of memory that its data may take; 0: they are on disk.

    The end of its namespaces frees memory. A disk takes minutes to remove so many files, if it discards each at once.
    """
    available = int(next(line for line in MEMORY.read_text().splitlines() if "MemAvailable" in line).split()[1]) << 10
    return IN_MEMORY if driver == "overlay2" and available > 2 * IN_MEMORY else 0


class Engine:
    """An engine; `start` it, `close` it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="flockmq-"))  # short: paths of sockets must be
        (self.directory / "nobodys.env").touch()
        (self.directory / "data").mkdir()
        self.name = f"fq{random.randrange(16**8):08x}"  # of the interface, and of the control group
        # From the network for tests of network devices (RFC 2544), where nobody lives.
        network = f"198.{random.choice((18, 19))}.{random.randrange(256)}"
        last = 4 * random.randrange(64)
        self.gateway, self.address = f"{network}.{last + 1}", f"{network}.{last + 2}"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            **environment(),
            "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
            "DOCKER_HOST": f"unix://{self.directory}/socket",
            "DOCKER_CONFIG": str(self.directory),  # without credentials
            "COMPOSE_PROJECT_NAME": "flockmq",
        }

    # ---- life ----

    def start(self) -> "Engine":
        """Start it, on overlay2 where the file system can do that.

        Raises:
            NoEngine: with its last words.
        """
        for driver in ("overlay2", "vfs"):
            self._spawn(driver)
            with contextlib.suppress(NoEngine):
                self._wait()
                return self
            self._end()
        raise NoEngine((self.directory / "log").read_text()[-1000:])

    def _spawn(self, driver: str) -> None:
        namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    *namespaces,
                    "sh",
                    "-c",
                    SCRIPT,
                    "sh",
                    str(self.directory),
                    f"/{self.name}",
                    driver,
                    str(in_memory(driver)),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def _wait(self) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            inside = str(until(self._first_process, "there is a first process"))
            self._run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", inside)
            self._run("ip", "address", "add", f"{self.gateway}/30", "dev", self.name)
            self._run("ip", "link", "set", self.name, "up")
            process.stdin.write(self.address.encode() + b"\n")
            process.stdin.close()
            until(lambda: process.poll() is not None or self._answers(), "the engine answers")
        except (AssertionError, OSError, subprocess.CalledProcessError) as error:
            raise NoEngine(str(error)) from error
        if process.poll() is not None:
            raise NoEngine("it ended")

    def _first_process(self) -> int:
        """The process in the new namespaces whose end is the end of all others; 0 while there is none."""
        assert self._process is not None
        # It is in its own network from the start: unshare(2) comes before fork(2).
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):
            return int((children.read_text().split() or ["0"])[0])
        return 0

    def _answers(self) -> bool:
        return subprocess.run(["docker", "version"], env=self._environment, capture_output=True).returncode == 0

    def _end(self) -> None:
        if self._process is None:
            return
        if first := self._first_process():
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def close(self) -> None:
        """End it and all that is in it; nothing stays."""
        self._end()
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True)  # gone with the namespace, in a moment
        groups = [*Path("/sys/fs/cgroup").glob(f"*/{self.name}"), *Path("/sys/fs/cgroup").glob(self.name)]
        for group in groups:
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(self.directory)

    # ---- use ----

    def set(self, **variables: str) -> None:
        """Variables of docker-compose.yml."""
        self._environment.update(variables)

    def docker(self, *arguments: str | Path) -> str:
        """The output of the client."""
        return self._run("docker", *arguments)

    def compose(self, *arguments: str) -> str:
        """The output of docker-compose, with the file at the top."""
        files = ["--file", str(ROOT / "docker-compose.yml"), "--env-file", str(self.directory / "nobodys.env")]
        return self._run("docker-compose", *files, *arguments)

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """The engine's description of the project's containers, running or not.

        The engine is asked itself: docker-compose is Python, and takes a second to begin.
        """
        labels = ["project=flockmq", "oneoff=False", *([f"service={service}"] if service else [])]
        filters = [f"--filter=label=com.docker.compose.{label}" for label in labels]
        return self.inspect(*self.docker("ps", "--all", "--quiet", "--no-trunc", *filters).split())

    def log(self, container: str) -> str:
        """The log of a container, with both of its outputs."""
        done = subprocess.run(
            ["docker", "logs", container], env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.decode()

    def inspect(self, *names: str) -> list[dict[str, Any]]:
        """The engine's description of containers."""
        return list(json.loads(self.docker("inspect", *names))) if names else []

    def _run(self, *command: str | Path) -> str:
        done = subprocess.run(command, env=self._environment, cwd=self.directory, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout
