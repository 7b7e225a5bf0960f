"""Starts a cluster on given cores: its own Redis and nodes a, b, c, of FlockMQ or of Aedes."""

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
from functools import partial
from pathlib import Path
from typing import Any

from ..generator.cost import Groups, wake_ups
from . import aedes
from .brokers import (
    BrokerError,
    Process,
    accepts_clients,
    run_process,
    start_on_free_port,
    wait_until_ready,
)

NAMES = ("a", "b", "c", "d")
# The append-only file is synced once a second, and never rewritten: that process would not be measured.
REDIS_OPTIONS = {"save": "", "appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}


@dataclass(frozen=True)
class Cluster:
    """A cluster whose nodes accept clients."""

    ports: tuple[int, ...]  # of the nodes
    pids: tuple[int, ...]
    redis_port: int
    redis_pid: int
    primaries: tuple[int, ...] = ()  # process ids of all Redis

    @property
    def groups(self) -> Groups:
        """Processes by name: each node; `nodes`, those with clients; `redis`; `all` of them."""
        return {
            **{name: (pid,) for name, pid in zip(NAMES, self.pids, strict=False)},
            "nodes": self.pids[:2],
            "redis": (self.redis_pid,),
            "all": (*self.pids, self.redis_pid),
        }

    def counts(self) -> dict[str, float]:
        """Return the commands executed by Redis, its traffic with each node, and the wake-ups of each node."""
        result: dict[str, float] = {"redis_commands": _redis_info(self.redis_port)["total_commands_processed"]}
        received, sent = _bytes_by_process(self.redis_port)
        for name, pid in zip(NAMES, self.pids, strict=False):
            result[f"bytes_from_redis_{name}"] = received.get(pid, 0)
            result[f"bytes_to_redis_{name}"] = sent.get(pid, 0)
            result[f"wake_ups_{name}"] = wake_ups(pid)
        return result


@dataclass(frozen=True)
class Place:
    """The nodes that clients connect to: a column of the cluster's tables."""

    kind: str = "FlockMQ"  # a key of `COMMANDS`
    publish_at: int = 0  # nodes, by number
    subscribe_at: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the load; replace the scenario's


PLACES = {
    "A to B": Place(subscribe_at=1),
    "within A": Place(),
    "logged": Place("FlockMQ that logs"),
    "Aedes A to B": Place("Aedes", subscribe_at=1),
    "Aedes within A": Place("Aedes"),
    "at 1 msg/s": Place(subscribe_at=1, parameters={"rate": 1.0}),
}


@contextlib.contextmanager
def start_cluster(
    kind: str, cores: set[int], saturated: bool = False, nodes: int = 3, primaries: int = 1
) -> Iterator[Cluster]:
    """Run Redis and nodes while the block lasts.

    Args:
        kind: a key of `COMMANDS`.
        cores, saturated: as in `brokers.start`, for all of them.
        nodes: their number, up to four.
        primaries: number of Redis; more than one for FlockMQ only.

    Raises:
        BrokerError: a program is not installed, ends at once, or does not reply in time.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-") as directory, contextlib.ExitStack() as stack:

        def run(name: str, command: Callable[[int], list[str]], is_ready: Callable[[int], bool]) -> tuple[int, Process]:
            def attempt(port: int, attempt_stack: contextlib.ExitStack) -> tuple[int, Process]:
                output = Path(directory, name.replace(" ", "-"))
                process = attempt_stack.enter_context(run_process(name, command(port), output, cores, saturated))
                wait_until_ready(process, lambda: is_ready(port))
                return port, process

            return start_on_free_port(attempt, stack)

        servers = []
        for number in range(primaries):
            place = Path(directory, f"redis{number}")
            place.mkdir()
            servers.append(run(f"Redis {number}", partial(redis_command, directory=place), redis_replies))
        ports, pids = [], []
        for name in NAMES[:nodes]:
            command = partial(COMMANDS[kind], redis_ports=[port for port, _ in servers], name=name)
            port, process = run(f"{kind} {name}", command, accepts_clients)
            ports.append(port)
            pids.append(process.pid)
        redis_pids = tuple(process.pid for _, process in servers)
        yield Cluster(tuple(ports), tuple(pids), servers[0][0], redis_pids[0], redis_pids)


def redis_version() -> str:
    """Return the version of Redis, or why there is none."""
    if (program := shutil.which("redis-server")) is None:
        return "not installed"
    found = re.search(r"v=(\S+)", subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout)
    return found[1] if found else "unknown"


def redis_command(port: int, directory: Path, **options: str) -> list[str]:
    """The command of a Redis; raises BrokerError if it is not installed."""
    if (program := shutil.which("redis-server")) is None:
        raise BrokerError("redis-server is not installed")
    options = {"bind": "127.0.0.1", "port": str(port), "dir": str(directory), **(options or REDIS_OPTIONS)}
    return [program, *(word for name, value in options.items() for word in (f"--{name}", value))]


def _flockmq(port: int, redis_ports: list[int], name: str) -> list[str]:
    urls = " ".join(f"redis://127.0.0.1:{each}/0" for each in redis_ports)
    where = ["--redis", urls, "--node-name", name, "--listen", f"127.0.0.1:{port}"]
    return [sys.executable, "-m", "flockmq.broker.cli", "serve", *where]


def _aedes(port: int, redis_ports: list[int], name: str) -> list[str]:
    return ["node", str(aedes.installed_server()), str(port), str(redis_ports[0])]


def _flockmq_logging(port: int, redis_ports: list[int], name: str) -> list[str]:
    return [*_flockmq(port, redis_ports, name), "--analytics", "#"]


COMMANDS: dict[str, Callable[..., list[str]]] = {
    "FlockMQ": _flockmq,
    "FlockMQ that logs": _flockmq_logging,
    "Aedes": _aedes,
}


def redis_replies(port: int) -> bool:
    """Return whether a Redis replies."""
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
            continue  # our own, for INFO, is closing
        for name, totals in (("bytes_received", received), ("bytes_acked", sent)):
            found = re.search(rf"\b{name}:(\d+)", line)
            totals[int(owner[1])] = totals.get(int(owner[1]), 0) + (int(found[1]) if found else 0)
    return received, sent
