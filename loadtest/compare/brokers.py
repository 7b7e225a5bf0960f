"""Starts and stops the compared brokers, each on a free loopback port and pinned to cores."""

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
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 15.0  # seconds until a broker replies
STOP_LIMIT = 10.0  # seconds until it is killed
START_ATTEMPTS = 5  # with another port each, if the port is taken
# The words of brokers, Redis and Node.js for a port in use, in lower case.
LAST_LINES = 12  # of the output of a server that has ended, for its error
PORT_IN_USE = ("address already in use", "address in use", "eaddrinuse")
T = TypeVar("T")


class BrokerError(Exception):
    """A broker is not installed or does not start."""


class PortInUse(BrokerError):
    """The port was taken between its choice and the start of the broker."""


@dataclass(frozen=True)
class Running:
    """A broker that accepts clients."""

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
        store: "memory", "sqlite-normal" or "sqlite-full"; only FlockMQ uses it.
        cores: where it may run.
        saturated: SCHED_BATCH: on a shared core, the broker does not preempt the generator when it is woken, so that it
            always has much to read, like a fully loaded broker.

    Raises:
        BrokerError: it is not installed, ends at once, or does not reply in time.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-") as directory, contextlib.ExitStack() as stack:

        def attempt(port: int, attempt_stack: contextlib.ExitStack) -> Running:
            command = COMMANDS[name](port, store, Path(directory))
            output = Path(directory, "output")
            process = attempt_stack.enter_context(run_process(name, command, output, cores, saturated))
            wait_until_ready(process, lambda: accepts_clients(port))
            return Running(port, process.pid)

        yield start_on_free_port(attempt, stack)


def start_on_free_port(attempt: Callable[[int, contextlib.ExitStack], T], stack: contextlib.ExitStack) -> T:
    """Call `attempt` with a free port, and again with another port if the first was taken.

    Args:
        attempt: starts a program on a port; puts on the stack it is given what must be undone.
        stack: receives what the last attempt has put on its stack.

    Raises:
        BrokerError: as `attempt` raises it.
    """
    for last in [False] * (START_ATTEMPTS - 1) + [True]:
        with contextlib.ExitStack() as attempt_stack:
            try:
                result = attempt(free_port(), attempt_stack)
            except PortInUse:
                if last:
                    raise
                continue
            stack.push(attempt_stack.pop_all())
            return result
    raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True)
class Process:
    """A process started by `run_process`."""

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
    """Run a command while the block lasts; `output` receives its output; the others are as in `start`."""
    with open(output, "w+b") as file, placed(cores, saturated):
        popen = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield Process(name, output, popen)
    finally:
        popen.terminate()
        try:
            popen.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def free_port() -> int:
    """Return a port without a listener; another process may take it before it is used."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _flockmq(port: int, store: str, directory: Path) -> list[str]:
    command = [sys.executable, "-m", "flockmq.broker.cli", "serve", "--listen", f"127.0.0.1:{port}", "--store"]
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
        "max_queued_messages 0\n"  # no limit: it must not save CPU time by dropping messages
        "log_dest stderr\n"
        "log_type error\n"
    )
    return [program, "-c", str(config)]


def _flashmq(port: int, store: str, directory: Path) -> list[str]:
    if (program := shutil.which("flashmq")) is None:
        raise BrokerError("flashmq is not installed")
    config = directory / "flashmq.conf"
    config.write_text(
        "allow_anonymous true\n"
        "thread_count 1\n"
        "log_level error\n"
        f"listen {{\n  protocol mqtt\n  inet4_bind_address 127.0.0.1\n  port {port}\n}}\n"
    )
    return [program, "--config-file", str(config)]


def _baseline(port: int, store: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "flockmq.loadtest.compare.baseline", str(port)]


COMMANDS: dict[str, Callable[[int, str, Path], list[str]]] = {
    "FlockMQ": _flockmq,
    "Mosquitto": _mosquitto,
    "FlashMQ": _flashmq,
    "baseline": _baseline,
}


@contextlib.contextmanager
def placed(cores: set[int], saturated: bool = False) -> Iterator[None]:
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
    """Wait until `is_ready` returns true.

    Raises:
        PortInUse: the process ended because its port is taken.
        BrokerError: the process ended, or START_LIMIT has passed.
    """
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end:
        if process.popen.poll() is not None:
            lines = process.output.read_text(errors="replace").strip().splitlines()
            said = "\n".join(lines[-LAST_LINES:]) or "no output"
            in_use = any(words in line.lower() for line in lines for words in PORT_IN_USE)
            error = PortInUse if in_use else BrokerError
            raise error(f"{process.name} ended with status {process.popen.returncode}: {said}")
        with contextlib.suppress(OSError):
            if is_ready():
                return
        time.sleep(0.05)
    raise BrokerError(f"{process.name} did not reply within {START_LIMIT:g} s")


def accepts_clients(port: int) -> bool:
    """Return whether a client can connect: a broker that is still loading may already listen."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
        client.sendall(b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05probe")
        if client.recv(4) != b"\x20\x02\x00\x00":
            return False
        client.sendall(b"\xe0\x00")
    return True
