"""RUNBOOK.md on several primaries: a shard moves to another machine, and a primary is lost with its disk."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartRedis
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.command import flockmq
from tests.harness.redis_process import KEEPS, RedisProcess, urls
from tests.harness.socket_client import SocketClient

SHARDS = 3
MOVED = 1
# A client of each shard.
CLIENTS = [next(f"c{i}" for i in range(100) if shard_of(b"c%d" % i, SHARDS) == shard) for shard in range(SHARDS)]
SETTINGS = {"cluster.lease": 1.5, "cluster.timeout": 0.7, "mqtt.sys_interval": 0}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RedisProcess]]:
    """Three Redis with files."""
    with ExitStack() as stack:
        found = []
        for number in range(SHARDS):
            place = tmp_path / f"primary-{number}"
            place.mkdir()
            found.append(RedisProcess(place, KEEPS["everysec"]).start())
            stack.callback(found[-1].kill)
        yield found


def nodes(tmp_path: Path, name: str, servers: list[RedisProcess]) -> ClusterProcess:
    """A node with these primaries, not started."""
    directory = tmp_path / name
    directory.mkdir()
    redis = GivenRedis(servers[0], urls(servers))
    return ClusterProcess(directory, SETTINGS, nodes=name, redis=redis, orderly=False)


def publish(cluster: ClusterProcess, payload: bytes) -> None:
    """A message to each client; all are kept."""
    with SocketClient(cluster.port, "publisher") as publisher:
        for number, client_id in enumerate(CLIENTS, 1):
            publisher.send(Publish(f"to/{client_id}", payload, 1, packet_id=number))
            assert publisher.receive() == Puback(packet_id=number)


def subscribe(cluster: ClusterProcess) -> None:
    """Each client has been there, and waits for its messages."""
    for client_id in CLIENTS:
        with SocketClient(cluster.port, client_id, clean_start=False) as client:
            client.subscribe((f"to/{client_id}", 1))


def received(cluster: ClusterProcess, client_id: str, count: int) -> list[bytes]:
    """The messages that wait for a client."""
    with SocketClient(cluster.port, client_id, clean_start=False) as client:
        assert client.connack is not None and client.connack.session_present
        packets = [client.receive() for _ in range(count)]
        assert client.ping() == []
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def test_a_shard_moves_to_another_machine(servers: list[RedisProcess], tmp_path: Path) -> None:
    """Stop the nodes and the primary, copy its files, change the URL, start."""
    with nodes(tmp_path, "a", servers) as cluster:
        subscribe(cluster)
        publish(cluster, b"before")
    servers[MOVED].stop()
    place = tmp_path / "elsewhere"
    shutil.copytree(servers[MOVED].directory, place)
    other = RedisProcess(place, KEEPS["everysec"])
    try:
        moved = [*servers[:MOVED], other.start(), *servers[MOVED + 1 :]]
        with nodes(tmp_path, "b", moved) as cluster:
            publish(cluster, b"after")
            assert all(received(cluster, client_id, 2) == [b"before", b"after"] for client_id in CLIENTS)
    finally:
        other.kill()


def test_a_primary_is_lost(servers: list[RedisProcess], tmp_path: Path, start_redis: StartRedis) -> None:
    """Its shard is taken from a backup, or begins empty; the other shards have what they had."""
    backup = tmp_path / "b.tar"
    with nodes(tmp_path, "a", servers) as cluster:
        subscribe(cluster)
        publish(cluster, b"before")
        flockmq("backup", backup, urls(servers))
        publish(cluster, b"after")
        cluster.kill()
    servers[MOVED].kill()
    spare = [start_redis() for _ in range(SHARDS)]
    flockmq("restore", backup, urls(spare))
    mended = [*servers[:MOVED], spare[MOVED], *servers[MOVED + 1 :]]
    with nodes(tmp_path, "b", mended) as cluster:
        publish(cluster, b"again")
        for shard, client_id in enumerate(CLIENTS):
            expected = [b"before", b"again"] if shard == MOVED else [b"before", b"after", b"again"]
            assert received(cluster, client_id, len(expected)) == expected
    with spare[MOVED].client() as client:
        client.flushall()
    with nodes(tmp_path, "c", mended) as cluster:
        for shard, client_id in enumerate(CLIENTS):
            with SocketClient(cluster.port, client_id, clean_start=False) as found:
                assert found.connack is not None and found.connack.session_present == (shard != MOVED)
