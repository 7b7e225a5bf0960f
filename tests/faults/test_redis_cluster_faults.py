"""A Redis Cluster under the nodes: its owner is killed or failed over by hand, the keys' slot moves to and fro."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.client import NEVER_DECODE

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.cluster.redis.packed_session import PackedSession
from tests.conftest import StartCluster
from tests.faults.cluster_load import CLUSTER_SETTINGS, ClusterLoad, wait
from tests.harness.broker_process import SETTLERS, until
from tests.harness.cluster_process import ClusterProcess, GivenRedis, new_seed
from tests.harness.redis_cluster import RedisCluster
from tests.harness.redis_process import RedisProcess
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
    return start_cluster({**SETTINGS, **more}, redis=GivenRedis(servers.owner, servers.url), running=running)


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
    """The engine stops writes while it fails over: nothing is lost, also without cluster.replicas."""
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
    """While its keys are at two primaries nothing is done; packets of that time are not lost."""
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


def test_the_slots_of_three_shards_move(start_cluster: StartCluster, servers: RedisCluster) -> None:
    """Each shard has a slot of its own, at a primary of its own; the slots move one after the other."""
    cluster = start(start_cluster, servers, running=False)
    cluster.shards = 3
    load = ClusterLoad(cluster, new_seed())
    slots = [address.keys.slot for address in cluster.addresses]
    homes = []
    for servers.slot in slots:
        homes.append(servers.owner)
    assert len({home.port for home in homes}) == 3
    load.start()
    load.run(1)

    def move() -> None:
        for to in (1, 0):
            for number, servers.slot in enumerate(slots):
                servers.move_slot(homes[(number + to) % 3], during=lambda: wait(0.3))

    load.during(move)
    load.run(0.5)
    load.finish()


def test_a_primary_that_had_the_slot_before_has_no_old_notes(
    start_cluster: StartCluster, servers: RedisCluster
) -> None:
    """A node that was not there the first time took the ends of queues of that time for a loss, and gave messages back
    that Redis had: a message of QoS 2 to a group arrived twice."""
    cluster = start(start_cluster, servers, **{"cluster.lease": 20})
    for node in cluster.nodes:
        SETTLERS.pop(node.port, None)  # they would wait for a node that stands still
    home, away = servers.owner, servers.other_primary()

    def move(target: RedisProcess) -> None:
        """Until node a, which is there each time, has the slot again."""
        since = len(cluster["a"].log)
        servers.move_slot(target)
        cluster.redis = servers.owner
        cluster["a"].wait_for_log("Redis is back", since)

    with (
        SocketClient(cluster["b"].port, "s", clean_start=False) as subscriber,
        SocketClient(cluster["a"].port, "p") as publisher,
    ):
        subscriber.subscribe(("t", 2))
        publish(publisher, b"before", 1)
        completed(subscriber, b"before")
        since = len(cluster["b"].log)
        cluster["b"].signal(signal.SIGSTOP)
        move(away)
        publish(publisher, b"away", 2)
        move(home)
        cluster["b"].signal(signal.SIGCONT)
        cluster["b"].wait_for_log("Redis is back|is ready again", since)
    with (
        SocketClient(cluster["b"].port, "s", clean_start=False) as subscriber,
        SocketClient(cluster["a"].port, "p") as publisher,
    ):
        completed(subscriber, b"away")
        publish(publisher, b"home", 3)
        completed(subscriber, b"home")
        since = len(cluster["b"].log)
        move(away)
        cluster["b"].wait_for_log("Redis is back|is ready again", since)
        assert not [line for line in cluster["b"].log if "has lost" in str(line)]
        publish(publisher, b"away again", 4)
        completed(subscriber, b"away again")


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
    cluster.redis.cut("replica")  # later commits do not even wait in its socket
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 1))
        for number in range(5):
            client.send(Publish(f"lost/{number}", b"x", qos=1, packet_id=1, retain=True))
            assert client.receive() == Puback(packet_id=1)
    cluster.settle()  # all nodes have the data that will be lost
    cluster.redis.kill()
    replica.thaw()
    cluster.redis = replica
    for name in "abc":
        cluster[name].wait_for_log("is ready again")
    until(lambda: replica.client().hlen("{mq}:nodes") == 3)


def publish(client: SocketClient, payload: bytes, packet_id: int) -> None:
    client.send(Publish("t", payload, qos=2, packet_id=packet_id))
    assert client.receive() == Pubrec(packet_id)
    client.send(Pubrel(packet_id))
    assert client.receive() == Pubcomp(packet_id)


def completed(client: SocketClient, until_payload: bytes) -> tuple[dict[int, bytes], list[int]]:
    """A client's packets until the handshake of this message is complete: payloads by identifier, and all PUBRELs."""
    payloads: dict[int, bytes] = {}
    released: list[int] = []
    while not (released and payloads.get(released[-1]) == until_payload):
        packet = client.receive()
        if isinstance(packet, Publish):
            payloads[packet.packet_id] = packet.payload
            client.send(Pubrec(packet.packet_id))
        else:
            assert isinstance(packet, Pubrel), packet
            released.append(packet.packet_id)
            client.send(Pubcomp(packet.packet_id))
    return payloads, released


def head(reader: Any) -> int:
    """The queue number of the first entry of session `s`."""
    return PackedSession.decode(reader.execute_command("GET", "{mq}:s:s", **{NEVER_DECODE: True})).head


@pytest.mark.one_shard
@pytest.mark.parametrize("is_late", [False, True], ids=["before others", "after others"])
@pytest.mark.parametrize("is_received", [False, True], ids=["sent", "received"])
@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"], ids=["alone", "group"])
def test_a_packet_identifier_that_a_client_awaits_pubrel_for_is_not_used_again(
    start_cluster: StartCluster, servers: RedisCluster, topic_filter: str, is_received: bool, is_late: bool
) -> None:
    """The fail-over has lost the message: its node gives it back, also when another has used its number."""
    cluster = start(start_cluster, servers, **{"cluster.lease": 20})
    for node in cluster.nodes:
        SETTLERS.pop(node.port, None)  # they would make changes, and wait for a node that stands still
    subscriber = SocketClient(cluster["a"].port, "s", clean_start=False)
    subscriber.subscribe((topic_filter, 2))
    publisher = SocketClient(cluster["b"].port, "p")
    publish(publisher, b"early", 1)
    completed(subscriber, b"early")
    replica = servers.replica
    with replica.client() as reader:
        reader.execute_command("READONLY")
        until(lambda: head(reader) == 2, "the replica has all")
    replica.freeze()
    cluster.redis.cut("replica")
    publish(publisher, b"lost", 2)
    assert subscriber.receive() == Publish("t", b"lost", qos=2, packet_id=2)
    if is_received:
        subscriber.send(Pubrec(2))
        assert subscriber.receive() == Pubrel(2)  # it gets lost, so the client awaits it
    if is_late:
        cluster["a"].signal(signal.SIGSTOP)
    cluster.redis.kill()
    replica.thaw()
    cluster.redis = replica
    cluster["b"].wait_for_log("is ready again")
    if not is_late:
        cluster["a"].wait_for_log("is ready again")
    publish(SocketClient(cluster["b"].port, "p"), b"later", 3)
    if is_late:
        cluster["a"].signal(signal.SIGCONT)
        cluster["a"].wait_for_log("is ready again")
    subscriber = SocketClient(cluster["a"].port, "s", clean_start=False)
    assert subscriber.connack is not None and subscriber.connack.session_present
    payloads, released = completed(subscriber, b"later")
    assert payloads == ({3: b"later"} if is_received else {2: b"lost", 3: b"later"})
    assert released == [2, 3]
    until(lambda: not replica.client().exists("{mq}:q:s", "{mq}:st:s"), "all is done")
