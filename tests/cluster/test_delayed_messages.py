"""Delayed messages of a cluster: each is published once, whichever node accepted it and whichever dies."""

import time
from types import SimpleNamespace

import pytest
import uvloop

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.cluster.sessions.delayed_messages import RedisDelayed
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient

LEASE = 1.5  # seconds


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"cluster.lease": LEASE, "cluster.timeout": 0.7})


def publish(port: int, count: int, delay: int, first: int = 0) -> None:
    """Publish numbered messages with QoS 1, and have them acknowledged."""
    with SocketClient(port, "publisher") as client:
        client.send(
            *(
                Publish(f"$delayed/{delay}/t", b"%d" % (first + number), 1, packet_id=number + 1)
                for number in range(count)
            )
        )
        for number in range(count):
            assert client.receive() == Puback(number + 1)


def subscribe(port: int) -> None:
    with SocketClient(port, "s", clean_start=False) as subscriber:
        subscriber.subscribe(("t", 2))


def take(subscriber: SocketClient, count: int) -> list[int]:
    """Take messages of QoS 1 and 2 as long as not all have come; returns their numbers in the order of arrival."""
    found: list[int] = []
    while len(found) < count:
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        if packet.qos == 1:
            subscriber.send(Puback(packet.packet_id))
        else:
            subscriber.send(Pubrec(packet.packet_id))
            assert subscriber.receive() == Pubrel(packet.packet_id)
            subscriber.send(Pubcomp(packet.packet_id))
        found.append(int(packet.payload))
    return found


def first_node(cluster: ClusterProcess) -> str:
    """The node that publishes the messages that are due."""
    client = cluster.redis.client()
    names = {client.hget(f"mq:node:{node}", "name"): node for node in client.hkeys("mq:nodes")}
    return min(names, key=lambda name: names[name])


def nothing_is_left(cluster: ClusterProcess) -> None:
    client = cluster.redis.client()
    until(lambda: not client.exists("mq:later", "mq:later:messages"))
    until(lambda: not any(client.hlen(key) for key in client.scan_iter("mq:wills:*")))
    assert int(client.hget("mq:later:state", "b")) == 0


def test_any_node_accepts_and_each_message_comes_once(cluster: ClusterProcess) -> None:
    """In the order of due times, then of acceptance, although three nodes accepted them."""
    subscribe(cluster["a"].port)
    for number, name in enumerate("abc"):
        publish(cluster[name].port, 300, 2, 300 * number)
    with SocketClient(cluster["c"].port, "s", clean_start=False) as subscriber:
        assert take(subscriber, 900) == list(range(900))
        assert subscriber.ping() == []
    nothing_is_left(cluster)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_node_is_killed(cluster: ClusterProcess, is_first: bool) -> None:
    """Neither the node that accepted the messages is needed, nor the node that would publish them."""
    first = first_node(cluster)
    killed = first if is_first else next(name for name in "abc" if name != first)
    other = next(name for name in "abc" if name not in (first, killed))
    subscribe(cluster[other].port)
    publish(cluster[killed].port, 500, 3)
    cluster[killed].kill()
    with SocketClient(cluster[other].port, "s", clean_start=False) as subscriber:
        assert take(subscriber, 500) == list(range(500))
        assert subscriber.ping() == []
    nothing_is_left(cluster)
    cluster[killed].start()


def test_the_node_is_killed_while_it_publishes(cluster: ClusterProcess) -> None:
    """Messages that Redis had handed to it are published by the node that buries it: none is lost, none doubled."""
    first = first_node(cluster)
    other = next(name for name in "abc" if name != first)
    subscribe(cluster[other].port)
    for start in range(0, 5000, 500):
        publish(cluster[other].port, 500, 1, start)
    with SocketClient(cluster[other].port, "s", clean_start=False) as subscriber:
        found = take(subscriber, 1)
        cluster[first].kill()
        found += take(subscriber, 4999)
        assert sorted(found) == list(range(5000))
        assert subscriber.ping() == []
    nothing_is_left(cluster)
    cluster[first].start()


def test_a_node_leaves_while_it_publishes(cluster: ClusterProcess) -> None:
    first = first_node(cluster)
    other = next(name for name in "abc" if name != first)
    subscribe(cluster[other].port)
    for start in range(0, 5000, 500):
        publish(cluster[other].port, 500, 1, start)
    with SocketClient(cluster[other].port, "s", clean_start=False) as subscriber:
        found = take(subscriber, 1)
        cluster[first].stop()
        found += take(subscriber, 4999)
        assert sorted(found) == list(range(5000))
        assert subscriber.ping() == []
    nothing_is_left(cluster)
    cluster[first].start()


def test_redis_is_killed_and_everything_restarts(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"cluster.lease": LEASE, "cluster.timeout": 0.7}, redis="always")
    subscribe(cluster["a"].port)
    began = time.monotonic()
    publish(cluster["a"].port, 100, 3)
    publish(cluster["b"].port, 100, 8, 100)
    cluster.redis.kill()
    cluster.redis.start()
    with _connected(cluster) as subscriber:
        assert take(subscriber, 100) == list(range(100))
        subscriber.ping()  # the acknowledgements are stored
    for node in cluster.nodes:
        node.kill()
    cluster.redis.kill()
    cluster.redis.start()
    for node in cluster.nodes:
        node.start()
    with SocketClient(cluster["b"].port, "s", clean_start=False) as subscriber:
        assert take(subscriber, 100) == list(range(100, 200))
        assert time.monotonic() - began >= 8
        assert subscriber.ping() == []
    nothing_is_left(cluster)


def _connected(cluster: ClusterProcess) -> SocketClient:
    """The subscriber, when its node admits persistent sessions again."""
    found: list[SocketClient] = []

    def admitted() -> bool:
        client = SocketClient(cluster["b"].port, "s", clean_start=False)
        assert client.connack is not None
        found.append(client)
        return client.connack.reason_code == 0

    until(admitted)
    return found[-1]


def test_the_limit_counts_all_nodes(start_cluster: StartCluster) -> None:
    """A node learns the number of the others' messages within about a second."""
    cluster = start_cluster({"limits.max_delayed_messages": 10}, nodes="ab")
    publish(cluster["a"].port, 10, 600)

    def is_refused() -> bool:
        with SocketClient(cluster["b"].port, "p", level=5) as client:
            client.send(Publish("$delayed/600/t", b"", 1, packet_id=1))
            answer = client.receive()
            assert isinstance(answer, Puback)
            return answer.reason_code == 0x97

    until(is_refused)


def test_messages_that_are_due_at_once_are_announced_twice() -> None:
    """The timer for one that is due now is none of the loop's timers, and takes the place of a later one."""
    loop = uvloop.new_event_loop()
    taken: list[tuple[object, ...]] = []
    link = SimpleNamespace(connected=True, closed=False, function=lambda *call: taken.append(call))
    wills = SimpleNamespace(missed=0)
    delayed = RedisDelayed(None, link, wills, lambda: True, loop)  # type: ignore[arg-type]
    for wait in (10_000, 0, 0, 10_000):
        delayed.announced(wait)
    loop.call_later(0.0, loop.stop)
    loop.run_forever()
    loop.close()
    assert len(taken) == 1
