"""Wills are published once, whichever node dies; retained messages are the same at all nodes (G6, G7)."""

import signal
import socket
import threading

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect, Disconnect, Puback, Publish, Subscribe
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue

LEASE = 1.5  # seconds
WILL = {"will_topic": "will", "will_qos": 1}


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"cluster.lease": LEASE, "cluster.timeout": 0.7})


@pytest.fixture
def watcher(cluster: ClusterProcess) -> SocketClient:
    """Gets all wills."""
    client = SocketClient(cluster["b"].port, "watcher")
    client.subscribe(("will", 1))
    return client


def next_will(watcher: SocketClient) -> bytes:
    packet = watcher.receive()
    assert isinstance(packet, Publish), packet
    watcher.send(Puback(packet_id=packet.packet_id))
    return packet.payload


def no_more(cluster: ClusterProcess, watcher: SocketClient, *names: str) -> None:
    """Once all nodes have all changes there is no further will."""
    cluster.settle(*names)
    assert watcher.ping() == []


@pytest.mark.parametrize("clean", [True, False])
def test_wills_of_a_killed_node(cluster: ClusterProcess, watcher: SocketClient, clean: bool) -> None:
    """A9: each once, though two survivors look; within two leases."""
    clients = [
        SocketClient(cluster["a"].port, f"c{number}", clean_start=clean, will_payload=b"%d" % number, **WILL)
        for number in range(20)
    ]
    clients[0].send(Disconnect())
    assert clients[0].receive() is None
    clients[1].close()
    assert next_will(watcher) == b"1"
    cluster["a"].kill()
    assert {next_will(watcher) for _ in range(18)} == {b"%d" % number for number in range(2, 20)}
    no_more(cluster, watcher)
    cluster["a"].start()
    until(lambda: cluster.redis.client().hlen("mq:nodes") == 3)
    no_more(cluster, watcher)


def test_a_client_that_came_back_before_its_node_was_found_dead(cluster: ClusterProcess, watcher: SocketClient) -> None:
    """The will of the connection that was lost is published once; the new connection's is not."""
    for number in range(5):
        SocketClient(cluster["a"].port, f"c{number}", clean_start=False, will_payload=b"old %d" % number, **WILL)
    cluster["a"].kill()
    back = [
        SocketClient(cluster["c"].port, f"c{number}", clean_start=False, will_payload=b"new %d" % number, **WILL)
        for number in range(5)
    ]
    assert {next_will(watcher) for _ in range(5)} == {b"old %d" % number for number in range(5)}
    no_more(cluster, watcher)
    back[0].close()
    assert next_will(watcher) == b"new 0"
    for client in back[1:]:
        client.send(Disconnect())
        assert client.receive() is None
    no_more(cluster, watcher)


def test_a_take_over_at_another_node_publishes_the_will(cluster: ClusterProcess, watcher: SocketClient) -> None:
    """Once, and before anything that the new connection does."""
    for number in range(20):
        old = SocketClient(cluster["a"].port, "c", will_payload=b"old", **WILL)
        with SocketClient(cluster["c"].port, "c", will_payload=b"new", **WILL) as new:
            new.send(Publish("will", b"alive", qos=1, packet_id=1))
            assert isinstance(new.receive(), Puback)
            assert [next_will(watcher), next_will(watcher)] == [b"old", b"alive"], number
            assert old.receive() is None
            new.send(Disconnect())
            assert new.receive() is None
    no_more(cluster, watcher)


def test_a_node_that_wakes_up_publishes_no_will_again(cluster: ClusterProcess, watcher: SocketClient) -> None:
    """F21: dead to the others, they published its clients' wills; then it goes on."""
    clients = [
        SocketClient(cluster["a"].port, f"c{number}", will_payload=b"%d" % number, **WILL) for number in range(10)
    ]
    cluster["a"].signal(signal.SIGSTOP)
    assert {next_will(watcher) for _ in range(10)} == {b"%d" % number for number in range(10)}
    cluster["a"].signal(signal.SIGCONT)
    for client in clients:
        assert client.receive() is None
    cluster["a"].wait_for_log("is ready again")
    no_more(cluster, watcher)


def test_a_node_that_stops_publishes_its_wills(cluster: ClusterProcess, watcher: SocketClient) -> None:
    for number in range(10):
        SocketClient(cluster["a"].port, f"c{number}", will_payload=b"%d" % number, **WILL)
    assert cluster["a"].stop() == 0
    assert {next_will(watcher) for _ in range(10)} == {b"%d" % number for number in range(10)}
    no_more(cluster, watcher)


def test_the_whole_cluster_is_killed(cluster: ClusterProcess) -> None:
    """Wills are published once, by the first node that is back."""
    with SocketClient(cluster["b"].port, "watcher", clean_start=False) as watcher:
        watcher.subscribe(("will", 1))
    for number in range(9):
        SocketClient(cluster["abc"[number % 3]].port, f"c{number}", will_payload=b"%d" % number, **WILL)
    cluster.kill()
    cluster.start()
    with SocketClient(cluster["c"].port, "watcher", clean_start=False) as watcher:
        assert {next_will(watcher) for _ in range(9)} == {b"%d" % number for number in range(9)}
        until(lambda: cluster.redis.client().hlen("mq:nodes") == 3)
        no_more(cluster, watcher)


# ---- retained messages ----


def retained(port: int) -> dict[str, bytes]:
    """The retained messages that a new subscriber is given."""
    with SocketClient(port, "new subscriber") as client:
        client.subscribe(("kept/#", 0))
        packets = client.ping()
        assert all(isinstance(packet, Publish) and packet.retain for packet in packets)
        return {packet.topic_name: packet.payload for packet in packets if isinstance(packet, Publish)}


def test_all_nodes_end_up_with_the_same(cluster: ClusterProcess) -> None:
    """Three publishers at three nodes write the same topics at once, and clear some; a later node agrees."""

    def write(name: str) -> None:
        with SocketClient(cluster[name].port, f"writer {name}") as client:
            for number in range(1500):
                payload = b"" if number % 7 == 0 else f"{name} {number}".encode() + bytes(number % 300)
                client.send(Publish(f"kept/{number % 50}", payload, qos=number % 2, packet_id=number % 2, retain=True))
                if number % 2:
                    assert isinstance(client.receive(), Puback)
            client.ping()

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    cluster.settle()
    late = cluster.add("late").start()
    found = [retained(node.port) for node in (*cluster.nodes, late)]
    assert found[0]
    assert all(values == found[0] for values in found)
    redis = cluster.redis.client(decode_responses=False)
    in_redis = {key.decode() for prefix in cluster.prefixes for key in redis.hkeys(f"{prefix}retained")}
    assert in_redis == set(found[0])


def test_who_is_acknowledged_sees_its_message_everywhere(cluster: ClusterProcess) -> None:
    """PUBACK of a retained message, then SUBSCRIBE at another node."""
    with SocketClient(cluster["a"].port, "p") as publisher:
        for number in range(60):
            publisher.send(Publish("kept/x", b"%d" % number, qos=1, packet_id=1, retain=True))
            assert isinstance(publisher.receive(), Puback)
            assert retained(cluster["bc"[number % 2]].port) == {"kept/x": b"%d" % number}


def test_a_node_that_loses_redis_again_while_it_catches_up_misses_nothing(start_cluster: StartCluster) -> None:
    """Changes of retained messages come without their values, which are read afterwards: here from a third link."""
    cluster = start_cluster({"cluster.lease": 30}, nodes="ab", proxies=True)
    late = cluster["b"].proxy
    with SocketClient(cluster["a"].port, "p") as publisher:
        late.partition()
        for number in range(3):
            publisher.send(Publish(f"kept/{number}", b"new", qos=1, packet_id=1, retain=True))
            assert isinstance(publisher.receive(), Puback)
    late.cut_at(b"\r\nflockmq_values\r\n")
    late.resume()
    until(lambda: not late.waits_to_cut)
    assert retained(cluster["b"].port) == {f"kept/{number}": b"new" for number in range(3)}


@pytest.mark.one_shard
def test_retained_messages_go_on_after_a_lost_reply(start_cluster: StartCluster) -> None:
    """The node reads the queue again before it is sent that its commit was applied."""
    cluster = start_cluster({"limits.max_inflight": 5, "cluster.lease": 30}, nodes="a", proxies=True)
    port, network = cluster["a"].port, cluster["a"].proxy
    topics = {f"kept/{number}" for number in range(20)}
    with SocketClient(port, "p") as publisher:
        for topic in topics:
            publisher.send(Publish(topic, b"value", qos=1, packet_id=1, retain=True))
            assert isinstance(publisher.receive(), Puback)
    with SocketClient(port, "c", clean_start=False) as client, cluster.redis.client() as store:
        network.slow(0.3)
        client.send(Subscribe(1, [("kept/#", 1)]))
        until(lambda: len(stored_queue(store, "c")))
        network.cut()
        network.resume()
        while topics:
            if isinstance(packet := client.receive(), Publish):
                topics.discard(packet.topic_name)
                client.send(Puback(packet.packet_id))


def test_connect_with_a_will_that_is_never_let_in(cluster: ClusterProcess, watcher: SocketClient) -> None:
    """Closed before its CONNACK came: the will is published or not, never twice, and no key stays."""
    for number in range(30):
        client = SocketClient(cluster["ac"[number % 2]].port, None)
        packet = Connect(
            client_id="hasty", keep_alive=0, protocol_level=4, will_topic="will", will_payload=b"%d" % number
        )
        client.send(encode(packet, 4))
        client.close()
    redis = cluster.redis.client()
    until(lambda: sum(redis.hlen(key) for key in redis.scan_iter("mq:wills:*")) == 0)
    until(lambda: not cluster.redis.key_names("mq:s:hasty"))
    cluster.settle()
    found = [packet.payload for packet in watcher.ping() if isinstance(packet, Publish)]
    assert len(found) == len(set(found))


def test_no_orderly_end_before_a_will_is_discarded(cluster: ClusterProcess) -> None:
    """The node is killed when it has handled DISCONNECT, and Redis has not: the will may be published."""
    node = cluster["a"]
    client, other = SocketClient(node.port, "client", will_payload=b"x", **WILL), SocketClient(node.port, "other")
    cluster.redis.freeze()
    client.send(Disconnect())
    other.socket.sendall(b"\xc0\0" * 2)
    assert other.socket.recv(4, socket.MSG_WAITALL) == b"\xd0\0" * 2
    node.kill()
    with pytest.raises(ConnectionResetError):
        client.socket.recv(1)
    cluster.redis.thaw()
