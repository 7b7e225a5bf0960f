"""deploy/redis-cluster.sh, the compose profile `redis-cluster`: it forms a Redis Cluster once, and finds it again."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from flockmq.cluster.redis.clients import RedisAddress
from tests.harness.broker_process import ROOT, environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

PASSWORD = "sesame"


def start(directory: Path, first: int) -> subprocess.Popen[str]:
    variables = {
        "DATA": directory / "data",
        "CONF": directory / "redis.conf",
        "PASSWORD_FILE": directory / "password",
        "FIRST_PORT": first,
        "BUS": 6,
        "SERVICE": "localhost",
    }
    return subprocess.Popen(
        ["sh", str(ROOT / "deploy" / "redis-cluster.sh")],
        env={**environment(), **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def running(directory: Path, first: int) -> Iterator[RedisAddress]:
    """The servers of the script; yields their address as COMPOSE.md writes it."""
    process = start(directory, first)
    hosts = ",".join(f"localhost:{first + number}" for number in range(3))
    address = RedisAddress.parse(f"redis+cluster://{hosts}?password_file={directory}/password")
    try:
        with address.client() as client:

            def up() -> bool:
                try:
                    return "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO"))
                except redis.RedisError:
                    return False

            until(up, "a Redis Cluster")
            yield address
        process.terminate()
        process.communicate(timeout=DEADLINE)
        for port in range(first, first + 6):
            with pytest.raises(ConnectionRefusedError):  # it has written its files, and ended
                socket.create_connection(("127.0.0.1", port))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def first(tmp_path: Path) -> int:
    """The first of the ports; the script's files are in the test's directory."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    settings = (ROOT / "deploy" / "redis.conf").read_text().replace("include /run/redis-password/redis.conf\n", "")
    (tmp_path / "redis.conf").write_text(f"requirepass {PASSWORD}\n{settings}".replace("dir /data\n", ""))
    (tmp_path / "data").mkdir()
    ports = [free_port() for _ in range(12)]  # six servers and their buses
    while ports[-1] != ports[0] + 11:
        ports = [*ports[1:], free_port()]
    return ports[0]


def test_it_is_formed_once(tmp_path: Path, first: int) -> None:
    with running(tmp_path, first) as address, address.client() as client:
        client.set("{mq}:who", "me")
        until(lambda: client.info("replication")["connected_slaves"] == 1, "its replica")
    with running(tmp_path, first) as address, address.client() as client:

        def kept() -> bool:
            try:
                return bool(client.get("{mq}:who") == b"me")
            except redis.ConnectionError:  # others may have the cluster's state before its owner is up
                return False

        until(kept, "what was kept")


def test_a_server_that_cannot_start_ends_all(tmp_path: Path, first: int) -> None:
    with socket.socket() as occupant:
        occupant.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections may have ended there lately
        occupant.bind(("", first + 2))
        occupant.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        process = start(tmp_path, first)
        errors = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 1
    assert f"the server on port {first + 2} has ended" in errors
