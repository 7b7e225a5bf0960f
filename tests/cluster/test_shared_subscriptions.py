"""Shared subscriptions over nodes: each message goes to one subscriber, and to another if that one ends (G13)."""

import random
import signal
import socket
from collections import Counter, defaultdict

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import (
    Connect,
    Disconnect,
    Publish,
    Pubrel,
)
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.shared_subscriber import JOBS, NEVER, Worker, gathered, publish
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue, stored_session
from tests.web.http_client import HttpClient


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"cluster.lease": 1.5, "cluster.timeout": 0.7, "shared.redispatch": 1, "shared.window": 4})


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_at_all_nodes_take_turns(cluster: ClusterProcess, qos: int) -> None:
    workers = [Worker(cluster[name].port, f"w-{name}", qos) for name in "abc"]
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        for number in range(30):
            publish(publisher, b"%d" % number, qos=qos)
            if number % 3 == 2 and qos:
                cluster.settle()
                for worker in workers:
                    worker.look().answer()
        cluster.settle()

        def all_there() -> bool:
            for worker in workers:
                worker.look().answer()
            return sum(len(worker.seen) for worker in workers) == 30

        until(all_there)
    assert sorted(int(payload) for worker in workers for payload in worker.seen) == list(range(30))
    assert [len(worker.seen) for worker in workers] == [10, 10, 10]


def test_messages_wait_in_redis_and_come_in_order(cluster: ClusterProcess) -> None:
    Worker(cluster["a"].port, "away", persistent=True).client.close()
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, *(b"%d" % number for number in range(50)))
    worker = Worker(cluster["c"].port, "w")
    assert gathered([worker], 50) == [b"%d" % number for number in range(50)]
    cluster.settle()
    until(lambda: not cluster.redis.client().keys("mq:gl:*"))


@pytest.mark.parametrize("end", ["closes", "killed", "stopped"])
def test_what_a_subscriber_has_not_acknowledged_goes_to_another_node(cluster: ClusterProcess, end: str) -> None:
    first = Worker(cluster["a"].port, "first")
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, *(b"%d" % number for number in range(10)))
    until(lambda: len(first.look().held) == 4)  # its window
    second = Worker(cluster["b"].port, "second")
    assert gathered([second], 6) == [b"%d" % number for number in range(4, 10)]
    if end == "closes":
        first.client.close()
    elif end == "killed":
        cluster["a"].kill()
    else:
        cluster["a"].signal(signal.SIGTERM)
    assert sorted(gathered([second], 4)) == [b"0", b"1", b"2", b"3"]


def test_a_persistent_subscriber_that_stays_away_loses_what_it_has(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first", 2, persistent=True)
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one")
        publish(publisher, b"two", qos=2)
        until(lambda: len(first.look().held) == 2)
        second = Worker(cluster["b"].port, "second", 2)
        first.client.close()
        publish(publisher, b"three")
    assert sorted(gathered([second], 2)) == [b"one", b"three"]
    first = Worker(cluster["c"].port, "first", 2, persistent=True)
    until(lambda: [packet.payload for packet in first.look().held if isinstance(packet, Publish)] == [b"two"])
    first.answer()
    until(lambda: bool(first.look().held))
    assert [type(packet) for packet in first.held] == [Pubrel]


def test_it_gets_them_again_if_it_is_back_in_time(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first", persistent=True)
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one")
    until(lambda: len(first.look().held) == 1)
    first.client.close()
    first = Worker(cluster["b"].port, "first", persistent=True)
    until(lambda: len(first.look().held) == 1)
    (packet,) = first.held
    assert isinstance(packet, Publish) and packet.dup
    first.answer()
    cluster.settle()
    until(lambda: len(stored_queue(cluster.redis.client(), "first")) == 0)


def test_a_connection_that_waited_for_an_earlier_one_gives_nothing_back(start_cluster: StartCluster) -> None:
    """QoS 2: while the node of the earlier connection has no link, only that node has the number of sent messages."""
    settings = {"cluster.lease": 30, "cluster.timeout": 0.7, "shared.redispatch": 1, "shared.window": 4}
    cluster = start_cluster(settings, proxies=True)
    redis = cluster.redis.client()
    first = Worker(cluster["a"].port, "first", 2, persistent=True)
    publisher = SocketClient(cluster["b"].port, "p", level=5)
    publish(publisher, b"once", qos=2)
    until(lambda: len(first.look().held) == 1)
    second = Worker(cluster["c"].port, "second", 2)
    cluster["a"].proxy.partition()
    first.client.close()
    with socket.create_connection(("127.0.0.1", cluster["b"].port)) as again:
        again.sendall(encode(Connect(client_id="first", protocol_level=5, clean_start=False, properties=NEVER), 5))
        until(lambda: stored_session(redis, "first").waits != b"")
        cluster["b"].proxy.cut()
        while again.recv(100):  # the node, without its link, refuses it
            pass
    until(lambda: stored_session(redis, "first").owner == b"")
    cluster["a"].proxy.resume()
    until(lambda: stored_session(redis, "first").waits == b"")
    publish(publisher, b"later", qos=2)
    assert gathered([second], 1) == [b"later"]
    first = Worker(cluster["b"].port, "first", 2, persistent=True)
    until(lambda: first.look().seen == [b"once"])


def test_nothing_stays_when_the_last_subscriber_has_left(cluster: ClusterProcess) -> None:
    redis = cluster.redis.client()
    worker = Worker(cluster["a"].port, "w")
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, *(b"%d" % number for number in range(10)))
    until(lambda: len(worker.look().held) == 4)
    worker.client.send(Disconnect())
    until(lambda: not [key for key in redis.scan_iter("mq:g*") if redis.type(key) != "none"])


@pytest.mark.parametrize("qos", [1, 2])
def test_subscribers_and_nodes_come_and_go(cluster: ClusterProcess, qos: int) -> None:
    """Nothing is lost; QoS 2 for persistent subscribers is never doubled."""
    rng = random.Random(new_seed())
    persistent = qos == 2

    def make(node: str, name: str) -> Worker:
        return Worker(cluster[node].port, name, qos, persistent=persistent)

    workers = {f"w{number}": make("abc"[number], f"w{number}") for number in range(3)}
    publisher = SocketClient(cluster["a"].port, "p", level=5)
    seen: dict[bytes, set[str]] = defaultdict(set)
    taken: Counter[bytes] = Counter()
    ids: dict[str, set[int]] = defaultdict(set)  # the client's QoS 2 packet identifiers that are under way

    def look(name: str) -> None:
        worker = workers[name].look()
        for packet in worker.held:
            if isinstance(packet, Publish):
                seen[packet.payload].add(name)
                if packet.qos < 2 or packet.packet_id not in ids[name]:
                    taken[packet.payload] += 1
                if packet.qos == 2:
                    ids[name].add(packet.packet_id)
            else:
                ids[name].discard(packet.packet_id)
        worker.answer()

    for number in range(120):
        publish(publisher, b"%d" % number, qos=qos)
        if rng.random() < 0.5:
            look(rng.choice(list(workers)))
        if rng.random() < 0.15:
            name = rng.choice(list(workers))
            look(name)
            workers[name].client.close()
            workers[name] = make(rng.choice("abc"), name)
    until(lambda: [look(name) for name in workers] != [] and len(taken) == 120)
    cluster.settle()
    for name in workers:
        look(name)
    assert len(taken) == 120
    if qos == 2:
        assert max(taken.values()) == 1
        assert all(len(names) == 1 for names in seen.values())


def test_the_api_has_groups_of_all_nodes(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0", "shared.window": 4}, nodes="ab")
    Worker(cluster["a"].port, "away", persistent=True).client.close()
    until(lambda: not HttpClient(cluster["a"]).get("/client", client_id="away")["connected"])
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, *(b"%d" % number for number in range(10)))
        worker = Worker(cluster["b"].port, "w")
        until(lambda: len(worker.look().held) == 4)
        for name in "ab":
            api = HttpClient(cluster[name])
            until(lambda api=api: api.get("/groups")["items"][0]["connected"] == 1)  # type: ignore[misc]
            (found,) = api.get("/groups")["items"]
            assert (found["subscribers"], found["waiting"], found["unacknowledged"], found["given"]) == (2, 6, 4, 4)
            one = api.get("/group", group=JOBS)
            assert [(subscriber["client_id"], subscriber["connected"]) for subscriber in one["sessions"]] == [
                ("away", False),
                ("w", True),
            ]
        assert api.ask("DELETE", "/group/messages", group=JOBS).json == {"dropped": 6}
        worker.answer()
        assert worker.look().held == []
