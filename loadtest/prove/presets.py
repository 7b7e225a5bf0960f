"""Brokers that `flockmq prove` can start by name, on free ports of this machine and with their state in a folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ..compare.brokers import find_mosquitto, free_port
from .node import Node, ProveError

CLUSTER_NODES = 3
MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
autosave_interval 1
autosave_on_changes true
max_queued_messages 0
"""


def flockmq(folder: Path, stack: ExitStack) -> list[Node]:
    """One node on its SQLite store."""
    return [_flockmq_node("flockmq", folder, "--store", f"sqlite:{folder}/flockmq.db")]


def flockmq_cluster(folder: Path, stack: ExitStack) -> list[Node]:
    """Three nodes over their own Redis, which is not killed."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise ProveError("redis-server is not installed: apt install redis-server")
    at = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(at), "--dir", str(folder), "--appendonly", "yes"]
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    stack.callback(redis.wait)
    stack.callback(redis.terminate)
    return [
        _flockmq_node(
            f"node {number}",
            folder,
            "--redis",
            f"unix://{at}",
            "--set",
            "cluster.lease=2",
            "--set",
            "cluster.timeout=1",
        )
        for number in range(1, CLUSTER_NODES + 1)
    ]


def _flockmq_node(name: str, folder: Path, *options: str) -> Node:
    port = free_port()
    command = [sys.executable, "-m", "flockmq.broker.cli", "serve", "--listen", f"127.0.0.1:{port}", *options]
    return Node(name, shlex.join(command), ("127.0.0.1", port), folder / f"{name}.log")


def mosquitto(folder: Path, stack: ExitStack) -> list[Node]:
    """Mosquitto, which saves its state after each change: as much as it can promise."""
    program = find_mosquitto()
    if program is None:
        raise ProveError("mosquitto is not installed: apt install mosquitto")
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(MOSQUITTO.format(port=port, folder=folder))
    if os.geteuid() == 0:
        folder.chmod(0o777)  # started by root, Mosquitto becomes its own user
    return [Node("mosquitto", shlex.join([program, "-c", str(config)]), ("127.0.0.1", port), folder / "mosquitto.log")]


PRESETS: dict[str, Callable[[Path, ExitStack], list[Node]]] = {
    "flockmq": flockmq,
    "flockmq-cluster": flockmq_cluster,
    "mosquitto": mosquitto,
}
