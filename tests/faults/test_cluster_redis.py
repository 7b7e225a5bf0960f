"""Redis away, empty, full, failed over: as clients notice it, and nodes neither crash, spin nor grow (G8, G9)."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect, Puback, Publish, Pubrec
from tests.conftest import StartCluster, StartRedis
from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, ClusterLoad
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, GivenRedis, new_seed
from tests.harness.redis_process import KEEPS, RedisProcess, Sentinels
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue
from tests.web.http_client import HttpClient

MIB = 1 << 20


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({**CLUSTER_SETTINGS, "http.listen": "127.0.0.1:0"}, redis="always")


def code_of(cluster: ClusterProcess, name: str, client_id: str, *, clean: bool) -> int | None:
    """The code of the answer to CONNECT; None: the connection was closed."""
    with SocketClient(cluster[name].port, None) as client:
        client.send(encode(Connect(client_id=client_id, clean_start=clean, keep_alive=0, protocol_level=4), 4))
        packet = client.receive()
        return None if packet is None else packet.reason_code


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_what_goes_on_without_redis(cluster: ClusterProcess, how: str) -> None:
    """F5, G8: QoS 0 at the same node and pings go on; QoS 1 and 2 wait, and are acknowledged when it is back."""
    with (
        SocketClient(cluster["a"].port, "s") as subscriber,
        SocketClient(cluster["a"].port, "p") as publisher,
        SocketClient(cluster["b"].port, "far") as far,
    ):
        subscriber.subscribe(("t", 0))
        far.subscribe(("t", 1))
        (cluster.redis.freeze if how == "frozen" else cluster.redis.kill)()
        publisher.send(Publish("t", b"zero"))
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        assert packet.payload == b"zero"
        publisher.send(Publish("t", b"one", qos=1, packet_id=1), Publish("t", b"two", qos=2, packet_id=2))
        for client in (subscriber, publisher, far):
            assert not [packet for packet in client.ping() if not isinstance(packet, Publish)]
        for name in "abc":
            assert code_of(cluster, name, f"new {name}", clean=False) == 3
        before = sum(node.cpu() for node in cluster.nodes)
        time.sleep(2)  # long enough for a loop that spins to show
        assert sum(node.cpu() for node in cluster.nodes) - before < 1
        publisher.send(Publish("t", b"zero again"))
        assert not [packet for packet in publisher.ping() if isinstance(packet, Puback | Pubrec)]
        (cluster.redis.thaw if how == "frozen" else cluster.redis.start)()
        assert publisher.receive() == Puback(packet_id=1)
        assert publisher.receive() == Pubrec(packet_id=2)
        while True:
            packet = far.receive()
            assert isinstance(packet, Publish)
            if packet.payload == b"one":
                break
    until(lambda: code_of(cluster, "b", "new again", clean=False) == 0)


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_persistent_clients_without_redis(start_cluster: StartCluster, how: str) -> None:
    """F5, G5: with no reply for a lease they are closed: others may have Redis. They stay if it is gone for all."""
    lease = 3.0
    cluster = start_cluster({**CLUSTER_SETTINGS, "cluster.lease": lease}, redis="always")
    with SocketClient(cluster["a"].port, "keeps", clean_start=False) as client:
        client.ping()
        if how == "frozen":
            cluster.redis.freeze()
            assert client.receive(timeout=3 * lease) is None
            cluster.redis.thaw()
        else:
            cluster.redis.kill()
            time.sleep(1.1 * lease)
            client.ping()
            cluster.redis.start()
            cluster["a"].wait_for_log("Redis is back")
            client.ping()
    until(lambda: code_of(cluster, "b", "keeps", clean=False) == 0)


def test_clean_clients_come_in_without_redis(cluster: ClusterProcess) -> None:
    """They need nobody; when Redis is back they are as all others: G4 and G5 hold for them."""
    cluster.redis.freeze()
    until(lambda: code_of(cluster, "a", "first", clean=False) == 3)
    with SocketClient(cluster["a"].port, "clean") as client:
        client.ping()
        cluster.redis.thaw()
        cluster["a"].wait_for_log("Redis is back")
        assert client.subscribe(("t", 1)) == [1]
        with SocketClient(cluster["b"].port, "p") as publisher:
            publisher.send(Publish("t", b"x", qos=1, packet_id=1))
            assert isinstance(publisher.receive(), Puback)
        packet = client.receive()
        assert isinstance(packet, Publish)
        client.send(Puback(packet_id=packet.packet_id))
        with SocketClient(cluster["c"].port, "clean") as other:
            other.ping()
            assert client.receive() is None


def test_functions_that_were_flushed_are_loaded_again(start_cluster: StartCluster) -> None:
    """FUNCTION FLUSH: a new connection loads them; without one no message would be acknowledged any more."""
    cluster = start_cluster(CLUSTER_SETTINGS)
    with SocketClient(cluster["b"].port, "s", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 1))
        publisher = SocketClient(cluster["a"].port, "p")
        cluster.redis.client().execute_command("FUNCTION", "FLUSH")
        publisher.send(Publish("t", b"x", qos=1, packet_id=1))
        assert isinstance(publisher.receive(), Puback)
        received = subscriber.receive()
        assert isinstance(received, Publish) and received.payload == b"x"


def test_publishers_are_held_back_without_redis(start_cluster: StartCluster) -> None:
    """G9: memory is bounded however much they would send; all of it is taken when Redis is back."""
    cluster = start_cluster(
        {**CLUSTER_SETTINGS, "flockmq.broker.core.data_plane.MAX_UNCOMMITTED_BYTES": 1 << 20}, redis="always"
    )
    with SocketClient(cluster["b"].port, "s", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 1))
    publisher = SocketClient(cluster["a"].port, "p")
    publisher.ping()
    before = cluster["a"].rss()
    cluster.redis.freeze()
    publisher.socket.settimeout(1)
    count = 0
    data = b""
    try:
        while count < 40_000:
            if not data:
                data = encode(Publish("t", bytes(5000), qos=1, packet_id=count + 1), 4)
                count += 1
            data = data[publisher.socket.send(data) :]
    except TimeoutError:
        pass
    assert count < 40_000, "it was never held back"
    assert cluster["a"].rss() - before < 24 * MIB
    cluster.redis.thaw()
    publisher.socket.settimeout(20)
    publisher.socket.sendall(data)
    assert [publisher.receive() for _ in range(count)] == [Puback(packet_id=n + 1) for n in range(count)]


def test_a_redis_that_has_lost_everything(cluster: ClusterProcess) -> None:
    """F4 at its worst: sessions are gone, and no node claims otherwise; nodes rejoin by themselves, and all works."""
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 1))
        client.send(Publish("kept", b"x", qos=1, packet_id=1, retain=True))
        assert isinstance(client.receive(), Puback)
        cluster.redis.wipe()
        assert client.receive() is None
    for name in "abc":
        cluster[name].wait_for_log("is ready again")
    until(lambda: cluster.redis.client().hlen("mq:nodes") == 3)
    with SocketClient(cluster["b"].port, "s", clean_start=False) as client:
        assert client.connack is not None
        assert not client.connack.session_present
        assert client.subscribe(("t", 1), ("kept", 1)) == [1, 1]
        with SocketClient(cluster["c"].port, "p") as publisher:
            publisher.send(Publish("t", b"x", qos=1, packet_id=1))
            assert isinstance(publisher.receive(), Puback)
        packet = client.receive()
        assert isinstance(packet, Publish)
        assert (packet.topic_name, packet.payload) == ("t", b"x")
    cluster.settle()


def test_a_node_finds_while_it_stops_that_redis_has_lost_everything(cluster: ClusterProcess) -> None:
    """It waited for the end of its ten seconds, and reported that Redis did not answer."""
    node = cluster["a"]
    with SocketClient(node.port, "p") as publisher:
        cluster.redis.kill()
        node.wait_for_log("Redis is away")
        publisher.send(Publish("t", b"x", qos=1, packet_id=1, retain=True))
        node.signal(signal.SIGTERM)
        node.wait_for_log("stopping")
    cluster.redis.wipe()
    node.wait()
    assert node.wait_for_log("fenced while stopping")["reason"]
    assert "Redis does not answer" not in node.log_text()


def wait_for_rewrite(server: RedisProcess) -> None:
    """Until the nodes have let it rewrite its append-only file, which they do after its start."""
    with server.client() as client:
        until(lambda: client.info("persistence")["aof_last_rewrite_time_sec"] >= 0, "Redis rewrites its file")


def test_a_transaction_that_a_crash_cut_off(cluster: ClusterProcess) -> None:
    """F3b: nodes let Redis rewrite its append-only file, so that the next start does not apply a part of a block."""
    server = cluster.redis
    server.repairs = False
    wait_for_rewrite(server)
    server.kill()
    (file,) = server.manifest.parent.glob("*.incr.aof")
    with open(file, "ab") as aof:
        aof.write(b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$5\r\ncut:1\r\n$1\r\nx\r\n*3\r\n$3\r\nSE")
    server.start()
    with server.client() as client:
        assert not client.exists("cut:1")
        wait_for_rewrite(server)
        with SocketClient(cluster["a"].port, "p") as publisher:
            publisher.send(Publish("kept", b"x", qos=1, packet_id=1, retain=True))
            assert isinstance(publisher.receive(), Puback)
    server.kill()
    server.start()
    with server.client() as client:
        assert not client.exists("cut:1")
        assert client.info("persistence")["aof_last_write_status"] == "ok"
    cluster.settle()


def test_a_redis_with_no_memory_left(cluster: ClusterProcess) -> None:
    """F12: publishers wait; a client with messages takes them and frees memory; it goes on by itself."""
    with SocketClient(cluster["a"].port, "s", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 1))
        with SocketClient(cluster["b"].port, "p") as publisher:
            publisher.send(Publish("t", b"before", qos=1, packet_id=1))
            assert isinstance(publisher.receive(), Puback)
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            cluster.redis.set(maxmemory=1)
            publisher.send(Publish("t", b"during", qos=1, packet_id=2))
            assert publisher.ping() == []
            cluster.wait_for_log("Redis refuses data", node="b")
            # Balancers must still send clients: clients that take their messages free memory.
            assert HttpClient(cluster["b"]).ask("GET", "//readyz").data == b"ready\n"
            subscriber.send(Puback(packet_id=packet.packet_id))
            until(lambda: len(stored_queue(cluster.redis.client(), "s")) == 0)
            time.sleep(2 * LEASE)  # no node is taken for dead in this time
            assert cluster.redis.client().hlen("mq:nodes") == 3
            assert publisher.ping() == []
            cluster.redis.set(maxmemory=0)
            assert publisher.receive() == Puback(packet_id=2)
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"during"


def test_a_redis_that_refuses_writes_is_named(cluster: ClusterProcess) -> None:
    """As with a full disk (MISCONF): heartbeats are writes too. The log has the error of Redis; QoS 0 goes on."""
    with SocketClient(cluster["a"].port, "s") as subscriber, SocketClient(cluster["a"].port, "p") as publisher:
        subscriber.subscribe(("t", 0))
        cluster.redis.set(min_replicas_to_write=1)
        for event in ("lease expired: Redis refuses heartbeats", "Redis is away", "Redis is still away"):
            assert cluster.wait_for_log(event, node="a")["reason"].startswith("NOREPLICAS")
        publisher.send(Publish("t", b"zero"))
        assert isinstance(subscriber.receive(), Publish)
        cluster.redis.set(min_replicas_to_write=0)
        for name in "abc":
            cluster.wait_for_log("Redis is back", node=name)


def test_a_password_that_was_changed_is_named(cluster: ClusterProcess) -> None:
    """The first attempt to reach Redis after the loss of the link names the cause."""
    cluster.redis.set(requirepass="new")
    with cluster.redis.client(password="new") as redis:
        redis.client_kill_filter(_type="pubsub", skipme=True)
        assert "auth" in cluster.wait_for_log("Redis is still away", node="a")["reason"].lower()
        redis.config_set("requirepass", "")
    for name in "abc":
        cluster.wait_for_log("Redis is back", node=name)


# ---- Sentinel ----


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    directory = tmp_path / "sentinels"
    directory.mkdir()
    group = Sentinels(directory)
    try:
        yield group.start()
    finally:
        group.stop()


def test_a_failover_loses_nothing_that_the_replica_has(start_cluster: StartCluster, sentinels: Sentinels) -> None:
    """F6: with cluster.replicas = 1 acknowledged messages are at the replica; delivered ones may not be."""
    settings = {**CLUSTER_SETTINGS, "cluster.replicas": 1, "cluster.lease": 4}
    cluster = start_cluster(settings, redis=GivenRedis(sentinels.servers[0], sentinels.url), running=False)
    load = ClusterLoad(cluster, new_seed())
    load.start()
    load.run(1)

    def fail_over() -> None:
        old = sentinels.master
        old.kill()
        cluster.redis = sentinels.wait_for_failover(old)
        old.arguments += ["--replicaof", "127.0.0.1", str(cluster.redis.port)]
        old.start()  # a replica again, without which nothing is acknowledged

    load.during(fail_over)
    load.run(1)
    load.finish(behind=True)


def test_a_failover_that_lost_something_is_noticed(start_cluster: StartCluster, sentinels: Sentinels) -> None:
    """Without cluster.replicas: the nodes see that Redis is behind them, and rejoin."""
    cluster = start_cluster(
        {**CLUSTER_SETTINGS, "cluster.lease": 4}, redis=GivenRedis(sentinels.servers[0], sentinels.url)
    )
    old = sentinels.master
    with old.client() as client:
        client.client_kill_filter(_type="replica")
        client.config_set("min-replicas-to-write", 0)
        sentinels.servers[1].client().replicaof("NO", "ONE")  # it receives nothing from now on
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 1))
        for number in range(5):
            client.send(Publish(f"lost/{number}", b"x", qos=1, packet_id=1, retain=True))
            assert isinstance(client.receive(), Puback)
    cluster.settle()  # all nodes have the data that will be lost
    old.kill()
    cluster.redis = sentinels.wait_for_failover(old)
    for name in "abc":
        cluster[name].wait_for_log("is ready again")
    until(lambda: cluster.redis.client().hlen("mq:nodes") == 3)
    cluster.settle()
    for name in "abc":
        with SocketClient(cluster[name].port, f"reader {name}") as client:
            assert client.subscribe(("lost/#", 1)) == [1]
            assert client.ping() == []


def test_a_node_that_comes_back_late_notices_that_lost_numbers_are_used_again(
    start_cluster: StartCluster, start_redis: StartRedis
) -> None:
    """The others have made as many changes since the failover: the number alone proves nothing."""
    master, replica = start_redis(KEEPS["always"]), start_redis(KEEPS["always"])
    settings = {**CLUSTER_SETTINGS, "cluster.lease": 60}
    cluster = start_cluster(settings, redis=master, running=False, proxies=True)
    cluster.start()
    with (
        SocketClient(cluster["c"].port, "witness") as witness,
        SocketClient(cluster["a"].port, "publisher") as publisher,
    ):
        witness.subscribe(("lost/#", 0))
        publisher.send(Publish("kept", b"x", qos=1, packet_id=1, retain=True))
        assert isinstance(publisher.receive(), Puback)
        cluster.settle()
        with master.client() as old, replica.client() as new:
            new.replicaof("127.0.0.1", str(master.port))
            until(lambda: new.info("replication").get("master_link_status") == "up")
            until(lambda: new.get("mq:change") == old.get("mq:change"))
            new.replicaof("NO", "ONE")  # it receives nothing from now on
        for number in (1, 2):
            publisher.send(Publish(f"lost/{number}", b"x", qos=1, packet_id=1, retain=True))
            assert isinstance(publisher.receive(), Puback)
            assert isinstance(witness.receive(), Publish)  # then its node has applied the change before this one
        cluster["c"].proxy.partition()
        cluster["c"].wait_for_log("Redis is away")
    last = int(master.client().get("mq:change") or 0)
    master.kill()
    cluster.redis = replica
    for name in "ab":  # they see that Redis is behind them
        cluster[name].wait_for_log("is ready again")
    number = 0
    while int(replica.client().get("mq:change") or 0) <= last:
        number += 1
        with SocketClient(cluster["a"].port, "publisher") as publisher:
            publisher.send(Publish(f"new/{number}", b"x", qos=1, packet_id=1, retain=True))
            assert isinstance(publisher.receive(), Puback)
    cluster["c"].proxy.resume()
    cluster["c"].wait_for_log("is ready again")
    fenced = cluster["c"].wait_for_log("fenced")
    assert "has used their numbers" in fenced["reason"]
    with SocketClient(cluster["c"].port, "reader") as reader:
        assert reader.subscribe(("#", 0)) == [0]
        topics = {packet.topic_name for packet in reader.ping() if isinstance(packet, Publish)}
    assert "kept" in topics
    assert not [topic for topic in topics if topic.startswith("lost/")]
