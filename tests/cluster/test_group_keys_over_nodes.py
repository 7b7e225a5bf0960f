"""Order by key in shared subscriptions over nodes: messages of one topic keep their order, whichever subscriber gets
them.

A message is named by its topic and its number: `a1` is the first to `jobs/a`. Also: how messages of QoS 0 are divided.
"""

import string
from collections.abc import Callable

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Suback, Subscribe, Unsubscribe
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.shared_subscriber import JOBS as GROUP
from tests.harness.shared_subscriber import Worker, publish
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

JOBS = "$share/workers/jobs"
MESSAGES = 10_000
REFUSED = 0x80


def test_equal_subscribers_over_three_nodes_get_equal_parts(start_cluster: StartCluster) -> None:
    cluster = start_cluster({})
    subscribers = [SocketClient(cluster[name].port, f"m{number}") for number, name in enumerate("aaabbbcccc")]
    for subscriber in subscribers:
        subscriber.send(Subscribe(1, [(JOBS, 0)]))
        assert isinstance(subscriber.receive(), Suback)
    cluster.settle()
    counts = [0] * len(subscribers)

    def received() -> int:
        for number, subscriber in enumerate(subscribers):
            counts[number] += sum(isinstance(packet, Publish) for packet in subscriber.ping())
        return sum(counts)

    with SocketClient(cluster["a"].port, "p1") as first, SocketClient(cluster["c"].port, "p2") as second:
        for number in range(0, MESSAGES, 200):
            for publisher in (first, second):
                publisher.send(*(Publish("jobs", b"%d" % number) for _ in range(100)))
                publisher.ping()
            received()
    until(lambda: received() == MESSAGES)
    mean = MESSAGES / len(subscribers)
    assert all(abs(count - mean) < 0.05 * mean for count in counts), counts


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    """Three nodes, and a group whose messages keep their order by topic."""
    cluster = start_cluster(
        {
            "cluster.lease": 1.5,
            "cluster.timeout": 0.7,
            "shared.redispatch": 1,
            "shared.window": 4,
            "shared.max_deliveries": 9,
            "http.listen": "127.0.0.1:0",
        },
        proxies=True,
    )
    assert HttpClient(cluster["a"]).ask("PUT", "/group", {"strategy": "topic"}, group=GROUP).status == 204
    return cluster


def send(cluster: ClusterProcess, *names: str, node: str = "c", qos: int = 1) -> None:
    """Publish messages, each acknowledged before the next."""
    with SocketClient(cluster[node].port, "p", level=5) as publisher:
        for name in names:
            publish(publisher, name.encode(), qos=qos, topic="jobs/" + name[0])
        publisher.ping()  # else the next connection of this client may end the node's interest in what it has sent


def names(worker: Worker) -> list[str]:
    """The messages that the worker has got so far."""
    return [payload.decode() for payload in worker.look().seen]


def has(worker: Worker, *wanted: str) -> Callable[[], bool]:
    return lambda: names(worker) == list(wanted)


def finish_the_first(back: Worker, other: Worker) -> None:
    """A subscriber that is back completes `a1`, of QoS 2; one of the two gets `a2`."""
    back.answer()
    until(lambda: len(back.look().held) == 1)
    back.answer()
    until(lambda: [*names(back), *names(other)].count("a2") == 1)


def test_messages_of_a_key_follow_to_the_subscriber_that_has_the_first(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first")
    send(cluster, "a1")
    until(has(first, "a1"))
    other = Worker(cluster["b"].port, "other")
    send(cluster, "a2", "a3", "b1", "c1", "d1")
    until(lambda: len(names(first)) + len(names(other)) == 6)
    assert [name for name in names(first) if name[0] == "a"] == ["a1", "a2", "a3"]
    assert len(names(other)) >= 2, "other keys go to any subscriber"
    first.answer()
    other.answer()
    until(lambda: not cluster.redis.client().exists("mq:gk:" + GROUP))


def test_a_subscriber_without_room_holds_up_its_keys_only(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first")
    send(cluster, "a1", "b1", "c1", "d1")
    until(has(first, "a1", "b1", "c1", "d1"))  # its window
    other = Worker(cluster["b"].port, "other")
    send(cluster, "a2", "e1", "b2", "f1", "a3")
    until(has(other, "e1", "f1"))
    other.answer()
    cluster.settle()
    assert names(other) == ["e1", "f1"]
    first.answer()
    until(lambda: len(names(first)) + len(names(other)) == 9)
    found = names(first) if "a2" in names(first) else names(other)
    assert found.index("a2") < found.index("a3")


@pytest.mark.parametrize("end", ["closes", "killed"])
def test_what_a_clean_subscriber_leaves_behind_keeps_its_order(cluster: ClusterProcess, end: str) -> None:
    first = Worker(cluster["a"].port, "first")
    send(cluster, "a1", "a2", "a3", "a4", "a5", "a6")
    until(has(first, "a1", "a2", "a3", "a4"))
    other = Worker(cluster["b"].port, "other")
    send(cluster, "a7")
    if end == "killed":
        cluster["a"].kill()
    first.client.close()
    until(lambda: len(names(other)) == 4)
    send(cluster, "a8")
    assert [payload.decode() for payload in other.wait_for(8)] == [f"a{number}" for number in range(1, 9)]


@pytest.mark.parametrize("end", ["closes", "killed"])
def test_a_key_waits_for_a_persistent_subscriber_until_its_grace_is_over(cluster: ClusterProcess, end: str) -> None:
    first = Worker(cluster["a"].port, "first", persistent=True)
    send(cluster, "a1", "a2")
    until(has(first, "a1", "a2"))
    other = Worker(cluster["b"].port, "other")
    if end == "killed":
        cluster["a"].kill()
    first.client.close()
    send(cluster, "a3", "b1")
    until(lambda: "b1" in names(other))
    other.answer()
    assert names(other)[0] == "b1"
    assert [payload.decode() for payload in other.wait_for(4)] == ["b1", "a1", "a2", "a3"]


@pytest.mark.parametrize("node", ["a", "c"])
def test_a_key_waits_until_a_subscriber_is_back_and_has_answered(cluster: ClusterProcess, node: str) -> None:
    first = Worker(cluster["a"].port, "first", 2, persistent=True)
    send(cluster, "a1", qos=2)
    until(has(first, "a1"))
    other = Worker(cluster["b"].port, "other", 2)
    first.client.close()
    send(cluster, "a2", "b1", qos=2)
    until(has(other, "b1"))
    back = Worker(cluster[node].port, "first", 2, persistent=True)
    until(has(back, "a1"))
    other.answer()
    cluster.settle()
    assert names(other) == ["b1"]
    finish_the_first(back, other)


def test_a_key_waits_for_qos_2_over_the_death_of_its_node(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first", 2, persistent=True)
    send(cluster, "a1", qos=2)
    until(has(first, "a1"))
    other = Worker(cluster["b"].port, "other", 2)
    cluster["a"].kill()
    first.client.close()
    send(cluster, "a2", "b1", qos=2)
    until(has(other, "b1"))
    other.answer()
    back = Worker(cluster["c"].port, "first", 2, persistent=True)
    until(has(back, "a1"))
    cluster.settle("b", "c")
    assert names(other) == ["b1"]
    finish_the_first(back, other)


def test_a_session_that_ends_gives_its_keys_free(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first", 2, persistent=True)
    send(cluster, "a1", qos=2)
    until(has(first, "a1"))
    other = Worker(cluster["b"].port, "other", 2)
    first.client.close()
    send(cluster, "a2", qos=2)
    with SocketClient(cluster["c"].port, "first", level=5, clean_start=True):
        until(has(other, "a2"))


def test_a_subscriber_that_leaves_the_group_gives_up_what_waits_for_it(cluster: ClusterProcess) -> None:
    first = Worker(cluster["a"].port, "first")
    send(cluster, *(f"a{number}" for number in range(1, 8)))
    until(has(first, "a1", "a2", "a3", "a4"))
    other = Worker(cluster["b"].port, "other")
    first.client.send(Unsubscribe(2, [GROUP]))
    until(has(other, "a5", "a6", "a7"))
    other.answer()
    first.look().answer()
    send(cluster, "a8")
    until(has(other, "a5", "a6", "a7", "a8"))


def test_a_message_that_no_subscriber_of_the_node_takes_goes_elsewhere_with_its_key(cluster: ClusterProcess) -> None:
    small = SocketClient(cluster["a"].port, "small", level=5, properties={"maximum_packet_size": 100})
    small.send(Subscribe(1, [(GROUP, 1)]))
    assert isinstance(small.receive(), Suback)
    with SocketClient(cluster["c"].port, "p", level=5) as publisher:
        publish(publisher, b"a1" * 200, b"a2", topic="jobs/a")
        other = Worker(cluster["b"].port, "other")
        assert other.wait_for(2) == [b"a1" * 200, b"a2"]


def test_a_refused_message_is_given_again_before_those_behind_it(cluster: ClusterProcess) -> None:
    for persistent in (False, True):
        first = Worker(cluster["a"].port, "first", persistent=persistent)
        send(cluster, "a1", "a2")
        until(has(first, "a1", "a2"))
        held = [packet for packet in first.held if isinstance(packet, Publish)]
        first.held.clear()
        first.client.send(*(Puback(packet.packet_id, REFUSED) for packet in held))
        assert [payload.decode() for payload in first.wait_for(4)] == ["a1", "a2", "a1", "a2"]
        first.client.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dead_letter_gives_its_key_free(cluster: ClusterProcess, *, persistent: bool) -> None:
    settings = {"strategy": "topic", "max_deliveries": 2}
    assert HttpClient(cluster["b"]).ask("PUT", "/group", settings, group=GROUP).status == 204
    first = Worker(cluster["a"].port, "first", persistent=persistent)
    send(cluster, "a1", "a2")
    until(has(first, "a1", "a2"))
    for wanted in (["a1", "a2", "a1"], ["a1", "a2", "a1", "a3"]):
        (held,) = [packet for packet in first.held if isinstance(packet, Publish) and packet.payload == b"a1"]
        first.held.remove(held)
        first.client.send(Puback(held.packet_id, REFUSED))
        if "a3" in wanted:
            send(cluster, "a3")
        until(has(first, *wanted))
    first.answer()
    until(lambda: not cluster.redis.client().keys("mq:gl:*"))


def test_a_lost_link_to_redis_keeps_the_order(cluster: ClusterProcess) -> None:
    workers = [Worker(cluster[name].port, f"w-{name}", persistent=name == "b") for name in "ab"]
    found: list[str] = []

    def work() -> None:
        for worker in workers:
            worker.look()
            found.extend(payload.decode() for payload in worker.answer())

    sent = []
    for number in range(1, 31):
        batch = [f"{key}{number}" for key in "abcd"]
        send(cluster, *batch)
        sent += batch
        if number in (10, 20):
            cluster["a" if number == 10 else "b"].proxy.cut()
        work()

    def done() -> bool:
        work()
        return set(found) >= set(sent)

    until(done)
    for key in "abcd":
        firsts = list(dict.fromkeys(name for name in found if name[0] == key))
        assert firsts == [name for name in sent if name[0] == key]


def test_messages_of_qos_0_go_to_the_node_of_their_key(cluster: ClusterProcess) -> None:
    workers = [Worker(cluster[name].port, f"w-{name}", 0) for name in "abc"]
    cluster.settle()
    keys = string.ascii_letters  # so many that each node has some: node ids are random
    for node in "abc":
        send(cluster, *(f"{key}{node}" for key in keys), node=node, qos=0)
    until(lambda: sum(len(names(worker)) for worker in workers) == 3 * len(keys))
    for key in keys:
        assert sum(any(name[0] == key for name in names(worker)) for worker in workers) == 1
    assert all(worker.seen for worker in workers)
