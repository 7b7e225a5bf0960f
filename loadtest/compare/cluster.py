"""Starts a cluster: one Redis of its own and nodes a, b, c over it, of FlockMQ or of Aedes, all on the same cores."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.compare import aedes
from loadtest.compare.brokers import BrokerError, Process, free_port, gives_connack, run_process, wait_until_ready
from loadtest.generator.cost import Groups, wake_ups

NAMES = ("a", "b", "c")
# The append-only file is synced once a second. It is not rewritten meanwhile, because that is a process of its own,
# whose CPU time would be counted nowhere.
_REDIS_OPTIONS = {"save": "", "appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}


@dataclass(frozen=True)
class Cluster:
    """A cluster whose nodes answer."""

    ports: tuple[int, ...]  # of the nodes
    pids: tuple[int, ...]
    redis_port: int
    redis_pid: int

    @property
    def groups(self) -> Groups:
        """Processes by name: each node; `nodes`, those that clients use; `redis`; `all` of them."""
        return {
            **{name: (pid,) for name, pid in zip(NAMES, self.pids, strict=False)},
            "nodes": self.pids[:2],
            "redis": (self.redis_pid,),
            "all": (*self.pids, self.redis_pid),
        }

    def counts(self) -> dict[str, float]:
        """Return what Redis has executed, what has passed between it and each node, and how often that was woken."""
        result: dict[str, float] = {"redis_commands": _redis_info(self.redis_port)["total_commands_processed"]}
        received, sent = _bytes_by_process(self.redis_port)
        for name, pid in zip(NAMES, self.pids, strict=False):
            result[f"bytes_from_redis_{name}"] = received.get(pid, 0)
            result[f"bytes_to_redis_{name}"] = sent.get(pid, 0)
            result[f"wake_ups_{name}"] = wake_ups(pid)
        return result


@dataclass(frozen=True)
class Place:
    """Where clients connect: what a column of the cluster's tables stands for."""

    kind: str = "FlockMQ"  # a key of `COMMANDS`
    publish_at: int = 0  # nodes, by number
    subscribe_at: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the load, in place of the scenario's


PLACES = {
    "A to B": Place(subscribe_at=1),
    "within A": Place(),
    "logged": Place("FlockMQ that logs"),
    "Aedes A to B": Place("Aedes", subscribe_at=1),
    "Aedes within A": Place("Aedes"),
    "at 1 msg/s": Place(subscribe_at=1, parameters={"rate": 1.0}),
}


@contextlib.contextmanager
def start_cluster(kind: str, cores: set[int], saturated: bool = False, nodes: int = 3) -> Iterator[Cluster]:
    """Run Redis and nodes while the block lasts.

    Args:
        kind: a key of `COMMANDS`.
        cores, saturated: as in `brokers.start`, for all of them.
        nodes: how many; at least two.

    Raises:
        BrokerError: something is not installed, ends at once, or doesn't answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-") as directory, contextlib.ExitStack() as stack:

        def run(name: str, command: list[str], is_ready: Callable[[], bool]) -> Process:
            output = Path(directory, name.replace(" ", "-"))
            process = stack.enter_context(run_process(name, command, output, cores, saturated))
            wait_until_ready(process, is_ready)
            return process

        redis_port = free_port()
        redis = run("Redis", _redis(redis_port, Path(directory)), lambda: redis_answers(redis_port))
        ports, pids = [], []
        for name in NAMES[:nodes]:
            port = free_port()
            command = COMMANDS[kind](port, redis_port, name)
            pids.append(run(f"{kind} {name}", command, lambda port=port: gives_connack(port)).pid)  # type: ignore[misc]
            ports.append(port)
        yield Cluster(tuple(ports), tuple(pids), redis_port, redis.pid)


def redis_version() -> str:
    """Return the version of Redis, or why there is none."""
    if (program := shutil.which("redis-server")) is None:
        return "not installed"
    found = re.search(r"v=(\S+)", subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout)
    return found[1] if found else "unknown"


def _redis(port: int, directory: Path) -> list[str]:
    if (program := shutil.which("redis-server")) is None:
        raise BrokerError("redis-server is not installed")
    options = {"bind": "127.0.0.1", "port": str(port), "dir": str(directory), **_REDIS_OPTIONS}
    return [program, *(word for name, value in options.items() for word in (f"--{name}", value))]


def _flockmq(port: int, redis_port: int, name: str) -> list[str]:
    where = ["--redis", f"redis://127.0.0.1:{redis_port}/0", "--node-name", name, "--listen", f"127.0.0.1:{port}"]
    return [sys.executable, "-m", "broker.cli", "serve", *where]


def _aedes(port: int, redis_port: int, name: str) -> list[str]:
    return ["node", str(aedes.installed_server()), str(port), str(redis_port)]


def _flockmq_logging(port: int, redis_port: int, name: str) -> list[str]:
    return [*_flockmq(port, redis_port, name), "--analytics", "#"]


COMMANDS: dict[str, Callable[[int, int, str], list[str]]] = {
    "FlockMQ": _flockmq,
    "FlockMQ that logs": _flockmq_logging,
    "Aedes": _aedes,
}


def redis_answers(port: int) -> bool:
    """Return whether a Redis answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
        client.sendall(b"PING\r\n")
        return client.recv(7) == b"+PONG\r\n"


def _redis_info(port: int) -> dict[str, int]:
    """Return the whole numbers of INFO stats."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client, client.makefile("rb") as reader:
        client.sendall(b"INFO stats\r\n")
        text = reader.read(int(reader.readline()[1:])).decode()
    return {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)\r$", text, re.MULTILINE)}


def _bytes_by_process(redis_port: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bytes that each process has received from Redis and sent to it over its open connections."""
    if (program := shutil.which("ss")) is None:
        raise BrokerError("ss (iproute2) is not installed")
    command = [program, "-HtnOip", "state", "established", "dst", f"127.0.0.1:{redis_port}"]
    text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout
    received: dict[int, int] = {}
    sent: dict[int, int] = {}
    for line in text.splitlines():
        if (owner := re.search(r"pid=(\d+)", line)) is None:
            continue  # our own, for INFO, is on its way out
        for name, totals in (("bytes_received", received), ("bytes_acked", sent)):
            found = re.search(rf"\b{name}:(\d+)", line)
            totals[int(owner[1])] = totals.get(int(owner[1]), 0) + (int(found[1]) if found else 0)
    return received, sent
