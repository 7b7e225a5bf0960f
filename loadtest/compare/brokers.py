"""Starts and stops the brokers that are compared, each on a free loopback port and pinned to a core."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_START_LIMIT = 15.0  # seconds until a broker answers
_STOP_LIMIT = 10.0  # seconds until it is killed


class BrokerError(Exception):
    """A broker is not installed or does not start."""


@dataclass(frozen=True)
class Running:
    """A broker that answers."""

    port: int
    pid: int


def find_mosquitto() -> str | None:
    """Return the path of Mosquitto, which Debian keeps outside an ordinary PATH."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def mosquitto_version() -> str:
    """Return the version, or why there is none."""
    if (program := find_mosquitto()) is None:
        return "not installed"
    words = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout.split()
    return words[2] if len(words) > 2 else "unknown"


@contextlib.contextmanager
def start(name: str, store: str, cores: set[int], saturated: bool = False) -> Iterator[Running]:
    """Run a broker of `COMMANDS` while the block lasts.

    Args:
        name: a key of `COMMANDS`.
        store: "memory", "sqlite-normal" or "sqlite-full"; only FlockMQ looks at it.
        cores: where it may run.
        saturated: on a core shared with the generator it does not preempt it when it is woken (SCHED_BATCH), so that
            it always finds much to read, as a fully loaded broker does.

    Raises:
        BrokerError: it is not installed, ends at once, or doesn't answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-") as directory:
        port = free_port()
        command = COMMANDS[name](port, store, Path(directory))
        with run_process(name, command, Path(directory, "output"), cores, saturated) as process:
            wait_until_ready(process, lambda: gives_connack(port))
            yield Running(port, process.pid)


@dataclass(frozen=True)
class Process:
    """What `run_process` started."""

    name: str
    output: Path
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid


@contextlib.contextmanager
def run_process(
    name: str, command: list[str], output: Path, cores: set[int], saturated: bool = False
) -> Iterator[Process]:
    """Run a command while the block lasts; `output` takes what it prints; the others are as in `start`."""
    with open(output, "w+b") as file, _placed(cores, saturated):
        popen = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield Process(name, output, popen)
    finally:
        popen.terminate()
        try:
            popen.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _flockmq(port: int, store: str, directory: Path) -> list[str]:
    command = [sys.executable, "-m", "broker.cli", "serve", "--listen", f"127.0.0.1:{port}", "--store"]
    if store == "memory":
        return [*command, "memory"]
    return [*command, f"sqlite:{directory / 'flockmq.db'}", "--sync", store.removeprefix("sqlite-")]


def _mosquitto(port: int, store: str, directory: Path) -> list[str]:
    if (program := find_mosquitto()) is None:
        raise BrokerError("mosquitto is not installed")
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\n"
        "allow_anonymous true\n"
        "persistence false\n"
        "set_tcp_nodelay true\n"
        "max_queued_messages 0\n"  # no limit: it should not be cheap because it drops
        "log_dest none\n"
    )
    return [program, "-c", str(config)]


def _floor(port: int, store: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "loadtest.compare.baseline", str(port)]


COMMANDS: dict[str, Callable[[int, str, Path], list[str]]] = {
    "FlockMQ": _flockmq,
    "Mosquitto": _mosquitto,
    "floor": _floor,
}


@contextlib.contextmanager
def _placed(cores: set[int], saturated: bool) -> Iterator[None]:
    """Change this thread's cores and policy, so that a child started in the block inherits them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    os.sched_setscheduler(0, os.SCHED_BATCH if saturated else os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, before)


def wait_until_ready(process: Process, is_ready: Callable[[], bool]) -> None:
    """Wait until `is_ready` says so.

    Raises:
        BrokerError: the process ended, or time is up.
    """
    end = time.monotonic() + _START_LIMIT
    while time.monotonic() < end:
        if process.popen.poll() is not None:
            lines = process.output.read_text(errors="replace").strip().splitlines()
            last = lines[-1] if lines else "no output"
            raise BrokerError(f"{process.name} ended with status {process.popen.returncode}: {last}")
        with contextlib.suppress(OSError):
            if is_ready():
                return
        time.sleep(0.05)
    raise BrokerError(f"{process.name} did not answer within {_START_LIMIT:g} s")


def gives_connack(port: int) -> bool:
    """Return whether a client is let in: a listening socket alone may belong to a broker that is still loading."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
        client.sendall(b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05probe")
        if client.recv(4) != b"\x20\x02\x00\x00":
            return False
        client.sendall(b"\xe0\x00")
    return True
