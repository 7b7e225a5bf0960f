"""deploy/redis-cluster.sh, the compose profile `redis-cluster`: it forms a Redis Cluster once, and finds it again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from cluster.redis.clients import RedisAddress
from tests.harness.broker_process import ROOT, environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

PASSWORD = "sesame"


@contextmanager
def running(directory: Path, first: int) -> Iterator[RedisAddress]:
    """The servers of the script; yields their address as COMPOSE.md writes it."""
    variables = {
        "DATA": directory / "data",
        "CONF": directory / "redis.conf",
        "PASSWORD_FILE": directory / "password",
        "FIRST_PORT": first,
        "BUS": 6,
        "SERVICE": "localhost",
    }
    process = subprocess.Popen(
        ["sh", str(ROOT / "deploy" / "redis-cluster.sh")],
        env={**environment(), **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
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
        process.wait(DEADLINE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_it_is_formed_once(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    settings = (ROOT / "deploy" / "redis.conf").read_text().replace("include /run/redis-password/redis.conf\n", "")
    (tmp_path / "redis.conf").write_text(f"requirepass {PASSWORD}\n{settings}".replace("dir /data\n", ""))
    (tmp_path / "data").mkdir()
    ports = [free_port() for _ in range(12)]  # six servers and their buses
    while ports[-1] != ports[0] + 11:
        ports = [*ports[1:], free_port()]
    first = ports[0]
    with running(tmp_path, first) as address, address.client() as client:
        client.set("{mq}:who", "me")
        until(lambda: client.info("replication")["connected_slaves"] == 1, "its replica")
    with running(tmp_path, first) as address, address.client() as client:
        until(lambda: client.get("{mq}:who") == b"me", "what was kept")
