"""Traps of shared subscriptions that other brokers' users have met, each by name, over nodes.

Others are in `test_shared_subscriptions.py` (here S) and in `tests/faults/test_shared_kill.py` (K).

| trap | test |
| --- | --- |
| subscribers that are away keep getting their share | `test_subscribers_that_are_away_get_no_share` |
| an unacknowledged message is lost | S `test_what_a_subscriber_has_not_acknowledged_goes_to_another_node` |
| QoS 2 is lost, or doubled | K; S `test_a_persistent_subscriber_that_stays_away_loses_messages` |
| turns are counted per publisher: skew | `test_many_publishers_of_one_message_make_no_skew` |
| subscribers with a persistent session get more, or less | `test_clean_and_persistent_sessions_get_the_same_share` |
| only subscribers at the publisher's node are served | S `test_subscribers_at_all_nodes_take_turns` |
| a node that returns gets nothing for its subscribers | `test_a_node_that_returns_has_subscribers_again` |
| a node that died is selected again and again | `test_a_node_that_died_is_selected_no_more` |
| nothing for persistent sessions | S `test_it_gets_them_again_if_it_is_back_in_time` |
| too large for one subscriber | `test_a_message_too_large_for_one_subscriber_goes_to_another_node` |
"""

import re

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Suback, Subscribe, Unsuback, Unsubscribe
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.function_nodes import call_function
from tests.harness.shared_subscriber import JOBS, Worker, gathered, publish
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue
from tests.web.http_client import HttpClient


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"cluster.lease": 3, "cluster.timeout": 0.7, "shared.redispatch": 1, "shared.window": 4})


@pytest.mark.parametrize("qos", [1, 2])
def test_subscribers_that_are_away_get_no_share(cluster: ClusterProcess, qos: int) -> None:
    for number in range(3):
        Worker(cluster["abc"[number]].port, f"away-{number}", qos, persistent=True).client.close()
    worker = Worker(cluster["b"].port, "w", qos)
    payloads = [b"%d" % number for number in range(20)]
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        publish(publisher, *payloads, qos=qos)
        found: list[bytes] = []

        def all_there() -> bool:
            found.extend(worker.look().answer())
            return len(found) >= len(payloads)

        until(all_there)
    assert sorted(found, key=int) == payloads
    assert not any(len(stored_queue(cluster.redis.client(), f"away-{number}")) for number in range(3))


@pytest.mark.parametrize("qos", [0, 1])
def test_many_publishers_of_one_message_make_no_skew(cluster: ClusterProcess, qos: int) -> None:
    workers = [Worker(cluster[name].port, f"w-{name}", qos) for name in "abc"]
    for number in range(30):
        with SocketClient(cluster["a"].port, f"p{number}", level=5) as publisher:
            publish(publisher, b"%d" % number, qos=qos)
            cluster.settle("a")
        for worker in workers:
            worker.look().answer()
        cluster.settle()

    def all_there() -> bool:
        for worker in workers:
            worker.look().answer()
        return sum(len(worker.seen) for worker in workers) == 30

    until(all_there)
    assert [len(worker.seen) for worker in workers] == [10, 10, 10]


@pytest.mark.parametrize("qos", [1, 2])
def test_clean_and_persistent_sessions_get_the_same_share(cluster: ClusterProcess, qos: int) -> None:
    """A node gives assigned messages to its clean sessions: its persistent ones get theirs from Redis."""
    workers = [Worker(cluster[name].port, f"clean-{name}", qos) for name in "ab"]
    workers.append(Worker(cluster["b"].port, "persistent", qos, persistent=True))
    cluster.settle()
    for worker in workers:
        worker.look()
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        for number in range(1, 31):
            publish(publisher, b"%d" % number, qos=qos)
            until(lambda: sum(len(worker.look().seen) for worker in workers) == number)  # noqa: B023
            for worker in workers:
                worker.answer()
                worker.look().answer()
    assert [len(worker.seen) for worker in workers] == [10, 10, 10]


def test_a_node_that_returns_has_subscribers_again(cluster: ClusterProcess) -> None:
    worker = Worker(cluster["b"].port, "w")
    cluster["b"].restart()
    cluster.settle()
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        worker = Worker(cluster["b"].port, "w")
        publish(publisher, b"one")
        assert gathered([worker], 1) == [b"one"]


def test_a_node_that_died_is_selected_no_more(cluster: ClusterProcess) -> None:
    dies = Worker(cluster["b"].port, "dies")  # a client that is collected is closed
    worker = Worker(cluster["c"].port, "w")
    cluster["b"].kill()
    dies.client.close()
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        publish(publisher, *(b"%d" % number for number in range(8)))
        assert sorted(gathered([worker], 8)) == [b"%d" % number for number in range(8)]
        cluster.settle("a", "c")
        publish(publisher, b"9")
        publish(publisher, b"10")
        assert gathered([worker], 2) == [b"9", b"10"]


def test_a_node_that_joins_while_the_last_subscriber_leaves_keeps_its_room(cluster: ClusterProcess) -> None:
    """Its room reaches Redis just before the change that makes it a subscriber; between them the group may end."""
    last = Worker(cluster["b"].port, "last")
    redis = cluster.redis.client()
    (node,) = (name for name in redis.hkeys("mq:nodes") if name.startswith("c-"))
    with cluster.redis.client(decode_responses=False) as client:
        call_function(client, "acks", node, [[], []], [[], [JOBS, 4, 1, 0, 0], [], []])
    last.client.close()
    until(lambda: not redis.exists("mq:gs:" + JOBS))
    assert redis.hget("mq:go:" + JOBS, node) == "4"
    assert redis.zscore("mq:gr:" + JOBS, node) == 0
    worker = Worker(cluster["c"].port, "w")
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        publish(publisher, b"1")
        assert gathered([worker], 1) == [b"1"]


def test_a_message_too_large_for_one_subscriber_goes_to_another_node(cluster: ClusterProcess) -> None:
    small = SocketClient(cluster["a"].port, "small", level=5, properties={"maximum_packet_size": 100})
    small.send(Subscribe(1, [(JOBS, 1)]))
    assert isinstance(small.receive(), Suback)
    worker = Worker(cluster["c"].port, "w")
    payloads = [b"%d" % number * 200 for number in range(4)]
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, *payloads)
        assert sorted(gathered([worker], 4)) == payloads
        publish(publisher, b"y")  # they do not hold up what the other subscriber may have
        publish(publisher, b"z")
        packet = small.receive()
    assert isinstance(packet, Publish) and packet.payload in (b"y", b"z")


@pytest.mark.parametrize("persistent", [False, True])
def test_messages_too_large_for_one_subscriber_are_neither_late_nor_out_of_order(
    start_cluster: StartCluster, persistent: bool
) -> None:
    """Redis assigns them to no node whose subscribers take no such packets, as long as another one has room."""
    cluster = start_cluster({"shared.window": 20, "http.listen": "127.0.0.1:0"})
    small = Worker(cluster["a"].port, "small", maximum_packet_size=100)
    worker = Worker(cluster["c"].port, "w", persistent=persistent)
    cluster.settle()
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        for number in range(40):
            publish(publisher, b"%d " % number + bytes(200 * (number % 3 > 0)), topic=f"jobs/{number % 4}")
            small.look().answer()
            worker.look().answer()

    def all_there() -> bool:
        small.look().answer()
        worker.look().answer()
        return len(small.seen) + len(worker.seen) >= 40

    until(all_there)
    large = [payload for payload in worker.seen if len(payload) > 100]
    assert [int(payload.split(b" ")[0]) for payload in large] == [number for number in range(40) if number % 3]
    assert all(len(payload) < 100 for payload in small.seen) and small.seen
    metrics = [HttpClient(cluster[name]).ask("GET", "//metrics").data.decode() for name in "abc"]
    returned = [line for page in metrics for line in page.splitlines() if re.match(r"flockmq\w*shared_returned", line)]
    assert len(returned) == 3 and all(line.endswith(" 0") for line in returned), returned


@pytest.mark.parametrize("persistent", [False, True], ids=["clean", "persistent"])
def test_a_subscriber_whose_session_was_full_of_other_messages_gets_work_again(
    start_cluster: StartCluster, persistent: bool
) -> None:
    """It had no room when it acknowledged its last message of the group. Its node announced that, and never more."""
    cluster = start_cluster({"limits.max_inflight": 4}, nodes="ab")
    worker = Worker(cluster["a"].port, persistent=persistent)
    worker.client.send(Subscribe(2, [("events", 1)]))
    assert isinstance(worker.client.receive(), Suback)
    cluster.settle()
    with SocketClient(cluster["b"].port, "publisher") as publisher:
        publish(publisher, b"job 1")
        until(lambda: worker.look().held)
        job = worker.held.pop()
        for number in range(10):
            publish(publisher, b"%d" % number, topic="events")
        until(lambda: len(worker.look().held) == 3)
        worker.client.send(Puback(job.packet_id))
        until(lambda: len(worker.look().held) == 4)
        worker.wait_for(11)
        publish(publisher, b"job 2")
        assert worker.wait_for(12)[-1] == b"job 2"


def test_a_subscriber_that_subscribes_anew_at_once_gets_work_again(start_cluster: StartCluster) -> None:
    """As the last subscriber of its node it left, and was back in the same block: Redis counted its former
    assignments."""
    cluster = start_cluster(nodes="ab")
    worker = Worker(cluster["a"].port)
    with SocketClient(cluster["b"].port, "publisher") as publisher:
        cluster.settle()
        for number in range(40):
            publish(publisher, b"%d" % number)
        worker.wait_for(40)
        worker.client.send(Unsubscribe(1, [JOBS]), Subscribe(2, [(JOBS, 1)]))
        assert [type(worker.client.receive()) for _ in range(2)] == [Unsuback, Suback]
        cluster.settle()
        publish(publisher, b"last")
        assert worker.wait_for(41)[-1] == b"last"


def test_a_subscriber_that_subscribes_anew_amid_messages_gets_work_again(start_cluster: StartCluster) -> None:
    """A message that its former membership had counted made the count of the new one negative."""
    cluster = start_cluster(nodes="ab")
    worker = Worker(cluster["a"].port, persistent=True, maximum_packet_size=100_000)
    with SocketClient(cluster["b"].port, "publisher") as publisher:
        for number in range(1, 401):
            publisher.send(Publish("jobs/x", b"%d" % number, 1, packet_id=number))
            if number % 10 == 0:
                worker.client.send(Unsubscribe(1, [JOBS]), Subscribe(2, [(JOBS, 1)]))
                worker.look().answer()
        assert [publisher.receive() for _ in range(400)] == [Puback(number) for number in range(1, 401)]
        publish(publisher, b"last")
        until(lambda: worker.answer() is not None and b"last" in worker.look().seen)
