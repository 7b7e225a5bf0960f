"""A Redis Cluster under the nodes: its owner is killed or failed over by hand, the keys' slot moves to and fro."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from _speedups.codec.packets import Puback, Publish
from tests.conftest import StartCluster
from tests.faults.cluster_load import CLUSTER_SETTINGS, ClusterLoad, wait
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.redis_cluster import RedisCluster
from tests.harness.socket_client import SocketClient

SETTINGS = {**CLUSTER_SETTINGS, "cluster.lease": 4}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[RedisCluster]:
    group = RedisCluster(tmp_path / "servers")
    try:
        yield group.start()
    finally:
        group.stop()


def start(
    start_cluster: StartCluster, servers: RedisCluster, *, running: bool = True, **more: object
) -> ClusterProcess:
    return start_cluster({**SETTINGS, **more}, redis=servers.owner, redis_url=servers.url, running=running)


def loaded(cluster: ClusterProcess) -> ClusterLoad:
    load = ClusterLoad(cluster, new_seed())
    load.start()
    load.run(1)
    return load


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_the_owner_is_gone(start_cluster: StartCluster, servers: RedisCluster, how: str) -> None:
    """With cluster.replicas = 1 what is acknowledged is at the replica."""
    cluster = start(start_cluster, servers, running=False, **{"cluster.replicas": 1})
    load = loaded(cluster)

    def end() -> None:
        if how == "frozen":
            servers.freeze_owner()
        else:
            old = servers.kill_owner()
            old.start()  # a replica again, without which nothing is acknowledged
            servers.wait_until_whole()
        cluster.redis = servers.owner

    for _ in range(2):
        load.during(end)
        load.run(1)
    load.finish()


def test_it_is_failed_over_by_hand(start_cluster: StartCluster, servers: RedisCluster) -> None:
    """The engine stops writes meanwhile: nothing is lost, also without cluster.replicas."""
    cluster = start(start_cluster, servers, running=False)
    load = loaded(cluster)

    def fail_over() -> None:
        servers.fail_over()
        cluster.redis = servers.owner

    for _ in range(3):
        load.during(fail_over)
        load.run(0.5)
    load.finish()


def test_the_slot_moves_to_and_fro(start_cluster: StartCluster, servers: RedisCluster) -> None:
    """While its keys are at two primaries nothing is done; what clients sent meanwhile is not lost."""
    cluster = start(start_cluster, servers, running=False)
    load = loaded(cluster)
    home, away = servers.owner, servers.other_primary()

    def move() -> None:
        for target in (away, home):
            servers.move_slot(target, during=lambda: wait(1))
            cluster.redis = servers.owner

    for _ in range(2):
        load.during(move)
        load.run(0.5)
    load.finish()


def test_a_move_that_is_left_half_done(start_cluster: StartCluster, servers: RedisCluster) -> None:
    """Messages wait, unacknowledged, until somebody completes the move; no key is made at either primary."""
    cluster = start(start_cluster, servers)
    with (
        SocketClient(cluster["a"].port, "s", clean_start=False) as subscriber,
        SocketClient(cluster["b"].port, "p") as publisher,
    ):
        subscriber.subscribe(("t", 1))
        for number in range(3):
            publisher.send(Publish(f"kept/{number}", b"x", qos=1, packet_id=1, retain=True))
            assert publisher.receive() == Puback(packet_id=1)
        source, target = servers.owner, servers.other_primary()

        def half_done() -> None:
            cluster["a"].wait_for_log("is away")
            publisher.send(Publish("t", b"during", qos=1, packet_id=2))
            before = source.key_names() + target.key_names()
            assert not [packet for packet in publisher.ping() if isinstance(packet, Puback)]
            wait(1)
            assert sorted(source.key_names() + target.key_names()) == sorted(before)

        servers.move_slot(target, half_done)
        assert publisher.receive() == Puback(packet_id=2)
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        assert packet.payload == b"during"
    cluster.redis = servers.owner
    until(lambda: cluster.redis.client().hlen("{mq}:nodes") == 3)
    assert not [key for key in cluster.redis.key_names() if not key.startswith("{mq}:")]


def test_a_fail_over_that_lost_something_is_noticed(start_cluster: StartCluster, servers: RedisCluster) -> None:
    """Without cluster.replicas: the nodes see that Redis is behind them, and rejoin."""
    cluster = start(start_cluster, servers)
    replica = servers.replica
    replica.freeze()
    cluster.redis.cut("replica")  # what follows does not even wait in its socket
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 1))
        for number in range(5):
            client.send(Publish(f"lost/{number}", b"x", qos=1, packet_id=1, retain=True))
            assert client.receive() == Puback(packet_id=1)
    cluster.settle()  # all nodes know what will be lost
    cluster.redis.kill()
    replica.thaw()
    cluster.redis = replica
    for name in "abc":
        cluster[name].wait_for_log("is ready again")
    until(lambda: replica.client().hlen("{mq}:nodes") == 3)
