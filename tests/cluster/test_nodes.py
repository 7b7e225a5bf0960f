"""Two nodes over one Redis: when a link breaks, they lose nothing, and do not wait in vain."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Connack, Connect, Disconnect, Puback, Publish, Suback, Subscribe
from flockmq.broker.core.will import Will
from flockmq.cluster.redis.packed_session import PackedSession
from flockmq.cluster.sessions.wills import encode_will
from tests.harness.broker_process import SETTLERS, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import change_session

MIB = 1024 * 1024
StartCluster = Callable[..., ClusterProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts a cluster of two nodes whose clients don't wait for each other."""
    started: list[ClusterProcess] = []

    def run(settings: dict[str, object] | None = None) -> ClusterProcess:
        cluster = ClusterProcess(tmp_path, settings, nodes=("a", "b"), proxies=True)
        started.append(cluster)
        cluster.start()
        for node in cluster.nodes:
            SETTLERS.pop(node.port, None)
        return cluster

    yield run
    for cluster in started:
        cluster.close()
        cluster.check()


def at(cluster: ClusterProcess, node: str, client_id: str, **connect: object) -> SocketClient:
    return SocketClient(cluster[node].port, client_id, **connect)


def publish(client: SocketClient, topic: str, payload: bytes = b"x", retain: bool = False) -> None:
    client.send(Publish(topic, payload, 1, retain, False, 7))
    assert isinstance(client.receive(), Puback)


def eventually(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_node_tells_of_itself_to_its_own_clients_only(start: StartCluster) -> None:
    cluster = start({"mqtt.sys_interval": "1s"})
    reader = at(cluster, "a", "reader")
    reader.subscribe(("$SYS/broker/uptime", 0))
    keys = cluster.redis.client().keys("mq:routes:*")
    assert keys == []
    assert isinstance(reader.receive(), Publish)


def test_a_claim_is_answered_when_the_other_node_had_no_link(start: StartCluster) -> None:
    cluster = start()
    first = at(cluster, "a", "c", clean_start=False)
    cluster["a"].proxy.refuse()
    cluster["a"].proxy.cut()
    cluster.wait_for_log("Redis is away", node="a")
    second = SocketClient(cluster["b"].port)
    second.send(Connect(client_id="c", clean_start=False, keep_alive=0, protocol_level=4))
    time.sleep(0.3)  # node a does not get the messages that are sent to it now
    cluster["a"].proxy.resume()
    answer = second.receive()
    assert isinstance(answer, Connack)
    assert answer.session_present
    assert first.receive() is None


def test_suback_comes_when_the_other_node_had_no_link(start: StartCluster) -> None:
    cluster = start()
    client = at(cluster, "a", "c")
    client.subscribe(("t", 1))
    cluster["b"].proxy.refuse()
    cluster["b"].proxy.cut()
    cluster.wait_for_log("Redis is away", node="b")
    client.send(Subscribe(packet_id=2, topic_filters=[("u", 1)]))
    time.sleep(0.2)
    cluster["b"].proxy.resume()
    assert isinstance(client.receive(), Suback)


def test_suback_comes_when_its_own_node_had_no_link(start: StartCluster) -> None:
    cluster = start()
    client = at(cluster, "a", "c")
    cluster["b"].proxy.stall()
    client.send(Subscribe(packet_id=2, topic_filters=[("u", 1)]))
    time.sleep(0.2)
    cluster["a"].proxy.refuse()
    cluster["a"].proxy.cut()
    cluster["b"].proxy.resume()
    time.sleep(0.2)
    cluster["a"].proxy.resume()
    assert isinstance(client.receive(), Suback)


def test_a_queue_larger_than_what_redis_lets_a_subscriber_have(start: StartCluster) -> None:
    cluster = start({"limits.max_queued_bytes": "64MiB"})
    reader = at(cluster, "a", "reader", clean_start=False)
    reader.subscribe(("t", 1))
    reader.close()
    writer = at(cluster, "b", "writer")
    for _ in range(40):
        publish(writer, "t", b"x" * MIB)
    reader = at(cluster, "b", "reader", clean_start=False)
    for _ in range(40):
        message = reader.receive()
        assert isinstance(message, Publish)
        assert len(message.payload) == MIB
        reader.send(Puback(packet_id=message.packet_id))
    assert not [line for line in cluster.log if "Redis is away" in line["event"]]


def test_more_retained_than_redis_lets_a_subscriber_have(start: StartCluster) -> None:
    cluster = start()
    writer = at(cluster, "a", "writer")
    for i in range(40):
        publish(writer, f"t/{i}", b"x" * MIB, retain=True)
    cluster.add("c")
    cluster.start()
    SETTLERS.pop(cluster["c"].port, None)
    reader = at(cluster, "c", "reader")
    reader.subscribe(("t/#", 0))
    for _ in range(40):
        assert isinstance(reader.receive(), Publish)


def test_more_routes_than_redis_lets_a_subscriber_have(start: StartCluster) -> None:
    cluster = start()
    reader = at(cluster, "a", "reader")
    filters = [f"{i}/{'x' * 30_000}" for i in range(1200)]
    for i in range(0, len(filters), 20):
        reader.subscribe(*((name, 0) for name in filters[i : i + 20]))
    cluster.add("c")
    cluster.start()
    SETTLERS.pop(cluster["c"].port, None)
    writer = at(cluster, "c", "writer")
    publish(writer, filters[777])
    assert isinstance(reader.receive(), Publish)


def test_what_was_published_before_a_subscription_does_not_come_after_a_broken_link(start: StartCluster) -> None:
    cluster = start()
    early = at(cluster, "a", "early")
    early.subscribe(("t/1", 1))
    writer = at(cluster, "b", "writer")
    cluster.add("c")
    cluster.start()
    SETTLERS.pop(cluster["c"].port, None)
    publish(writer, "t/1", b"old")
    late = at(cluster, "c", "late")
    late.subscribe(("t/1", 1))
    cluster["c"].proxy.refuse()
    cluster["c"].proxy.cut()
    cluster.wait_for_log("Redis is away", node="c")
    publish(writer, "t/1", b"new")
    cluster["c"].proxy.resume()
    message = late.receive()
    assert isinstance(message, Publish)
    assert message.payload == b"new"


def test_a_will_that_was_given_to_a_node_without_a_link(start: StartCluster) -> None:
    cluster = start({"cluster.lease": "3s"})
    reader = at(cluster, "b", "reader")
    reader.subscribe(("will", 1))
    redis = cluster.redis.client(decode_responses=False)
    (name,) = [node for node in redis.hkeys("mq:nodes") if node.startswith(b"b-")]
    redis.hset(b"mq:wills:" + name, 9999, encode_will(b"c", Will(b"will", b"gone", 1, False)))
    cluster["b"].proxy.cut()
    message = reader.receive()
    assert isinstance(message, Publish)
    assert message.payload == b"gone"
    eventually(lambda: redis.hlen(b"mq:wills:" + name) == 0)


def test_a_purge_of_a_session_that_nobody_has_comes_to_an_end(start: StartCluster) -> None:
    cluster = start()
    redis = cluster.redis.client()
    (name,) = [node for node in redis.hkeys("mq:nodes") if node.startswith("a-")]
    redis.set("mq:s:c", PackedSession(3, 12, owner=name.encode()).encode())
    redis.fcall("flockmq_purge", 0, "mq:", "c")
    time.sleep(0.3)
    before = int(redis.info("stats")["total_commands_processed"])
    time.sleep(0.5)
    assert int(redis.info("stats")["total_commands_processed"]) - before < 200


def test_the_last_messages_of_a_node_that_dies_in_an_outage_are_read_even_at_the_second_attempt(
    start: StartCluster,
) -> None:
    cluster = start({"cluster.lease": "30s"})
    reader = at(cluster, "b", "reader")
    reader.subscribe(("t", 1))
    publisher = at(cluster, "a", "publisher")
    cluster["b"].proxy.partition()
    cluster.wait_for_log("Redis is away", node="b")
    publisher.send(Publish("t", b"last", qos=1, packet_id=1))
    assert isinstance(publisher.receive(), Puback)
    cluster["a"].kill()
    late = cluster.add("late").start()  # finds that `a` is dead: nodes of one machine see it at once
    until(lambda: cluster.redis.client().hlen("mq:nodes") == 2)
    cluster["b"].proxy.cut_at(b"flockmq_logs\r\n")
    cluster["b"].proxy.resume()
    packet = reader.receive()
    assert isinstance(packet, Publish) and packet.payload == b"last"
    assert not cluster["b"].proxy.waits_to_cut
    assert late.stop() == 0


def test_a_connection_is_reset_when_disconnect_could_not_be_stored(start: StartCluster) -> None:
    cluster = start({"cluster.lease": "3s"})
    client = at(cluster, "a", "c", clean_start=False, will_topic="will", will_payload=b"w")
    reader = at(cluster, "b", "reader")
    reader.subscribe(("will", 1))
    cluster["a"].proxy.partition()
    cluster.wait_for_log("Redis is away", node="a")
    client.send(Disconnect())
    with pytest.raises(ConnectionResetError):  # an orderly end would discard the will
        client.socket.recv(1)
    assert isinstance(reader.receive(), Publish)
    cluster["a"].proxy.resume()


@pytest.mark.one_shard
def test_a_queue_that_has_lost_messages_does_not_hide_later_ones(start: StartCluster) -> None:
    """After a fail-over to a replica that lacks them, their numbers are used again, for other messages."""
    cluster = start()
    reader = at(cluster, "a", "reader", clean_start=False)
    reader.subscribe(("t", 1))
    with at(cluster, "b", "writer") as writer:
        writer.send(Publish("t", b"lost", 1, packet_id=1))
        assert writer.receive() == Puback(1)
        received = reader.receive()
        assert isinstance(received, Publish) and received.payload == b"lost"
        change_session(cluster.redis.client(), "reader", entries=[])
        cluster["a"].proxy.cut()
        cluster["a"].wait_for_log("fenced", reason="Redis has lost committed data")
        until(lambda: reader.receive() is None, "the node has closed the connection")
        cluster.settle()
        reader = at(cluster, "a", "reader", clean_start=False)
        assert reader.connack is not None and reader.connack.session_present
        writer.send(Publish("t", b"later", 1, packet_id=2))
        assert writer.receive() == Puback(2)
        received = reader.receive()
        assert isinstance(received, Publish) and received.payload == b"later"
