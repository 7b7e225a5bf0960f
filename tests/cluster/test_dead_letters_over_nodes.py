"""Dead letters of a cluster: the number of deliveries goes with the message, and each dead letter is published once."""

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Pubrec, Pubrel
from flockmq._speedups.codec.reason_codes import ReasonCode
from flockmq.broker.core import dead_letters
from tests.cluster.test_declared_groups_over_nodes import declare
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.shared_subscriber import Worker, publish
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue

DEAD = "dead/jobs"
SETTINGS = {
    "cluster.lease": 1.5,
    "cluster.timeout": 0.7,
    "shared.redispatch": 0.2,
    "http.listen": "127.0.0.1:0",
    "shared.max_deliveries": 3,
    "shared.dead_letter_topic": DEAD,
}


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster(SETTINGS)


class Watcher(Worker):
    """A persistent subscriber of the dead letters."""

    topic_filter = DEAD

    def letters(self) -> list[Publish]:
        """The dead letters that have not been asked for."""
        found = [packet for packet in self.look().held if isinstance(packet, Publish)]
        self.answer()
        return found


def refuse(worker: Worker) -> int:
    """Refuse all that is there; how many."""
    count = 0
    for packet in worker.look().held:
        assert not isinstance(packet, Pubrel)
        answer = Puback if packet.qos == 1 else Pubrec
        worker.client.send(answer(packet.packet_id, ReasonCode.QUOTA_EXCEEDED))
        count += 1
    worker.held.clear()
    return count


def refused(workers: list[Worker], wanted: int) -> None:
    """Wait until the workers have got so many messages, and refused them."""
    count = 0

    def enough() -> bool:
        nonlocal count
        count += sum(refuse(worker) for worker in workers)
        return count >= wanted

    until(enough)
    assert count == wanted


@pytest.mark.parametrize("persistent", [False, True], ids=["clean", "persistent"])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_number_of_deliveries_goes_over_nodes(cluster: ClusterProcess, qos: int, persistent: bool) -> None:
    watcher = Watcher(cluster["c"].port, "watcher", 2, persistent=True)
    workers = [Worker(cluster[name].port, f"w-{name}", qos, persistent=persistent) for name in "ab"]
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one", qos=qos)
    refused(workers, 3)
    letters: list[Publish] = []
    until(lambda: bool(letters.extend(watcher.letters()) or letters))
    (letter,) = letters
    assert (letter.topic_name, letter.payload, letter.qos) == (DEAD, b"one", qos)
    assert letter.properties["user_property"] == [
        (dead_letters.GROUP, "$share/workers/jobs/#"),
        (dead_letters.TOPIC, "jobs/x"),
        (dead_letters.DELIVERIES, "3"),
        (dead_letters.REASON, "refused: 0x97 quota exceeded"),
    ]
    cluster.settle()
    assert not any(refuse(worker) for worker in workers)
    redis = cluster.redis.client()
    until(lambda: not redis.keys("mq:gl:*"))
    until(lambda: not any(len(stored_queue(redis, f"w-{name}")) for name in "ab"))


@pytest.mark.parametrize("persistent", [False, True], ids=["clean", "persistent"])
def test_subscribers_that_end_with_a_message(cluster: ClusterProcess, persistent: bool) -> None:
    watcher = Watcher(cluster["c"].port, "watcher", 2, persistent=True)
    stays = Worker(cluster["c"].port, "away", persistent=True)
    stays.client.close()
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one")
    for turn, name in enumerate("aba"):
        worker = Worker(cluster[name].port, f"w{turn}", persistent=persistent)
        until(lambda worker=worker: bool(worker.look().held))  # type: ignore[misc]
        worker.client.close()
    letters: list[Publish] = []
    last = Worker(cluster["b"].port, "last")
    until(lambda: bool(letters.extend(watcher.letters()) or letters))
    (letter,) = letters
    history = dict(letter.properties["user_property"])
    assert (history[dead_letters.DELIVERIES], history[dead_letters.REASON]) == ("3", "not acknowledged")
    cluster.settle()
    assert last.look().seen == []


@pytest.mark.parametrize("victim", ["subscriber", "both"])
def test_a_node_that_dies_keeps_the_count(cluster: ClusterProcess, victim: str) -> None:
    """Clean subscribers: failures that a node has reported to Redis still count when it dies."""
    watcher = Watcher(cluster["c"].port, "watcher", 2, persistent=True)
    worker = Worker(cluster["a"].port, "w", qos=1)
    Worker(cluster["c"].port, "away", persistent=True).client.close()
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one")
    refused([worker], 2)
    until(lambda: bool(worker.look().held))
    cluster.settle()
    cluster["a"].kill()
    if victim == "both":
        cluster["b"].kill()
    other = Worker(cluster["c"].port, "other")
    refused([other], 1)
    letters: list[Publish] = []
    until(lambda: bool(letters.extend(watcher.letters()) or letters))
    assert [dict(letter.properties["user_property"])[dead_letters.DELIVERIES] for letter in letters] == ["3"]
    cluster["a"].start()
    cluster.settle("a", "c")
    assert watcher.letters() == []


def test_a_declared_group_has_its_own_limit_and_may_keep_the_newest_message_only(cluster: ClusterProcess) -> None:
    declare(cluster, last_value=True, window=1, max_deliveries=2)
    watcher = Watcher(cluster["c"].port, "watcher", 2, persistent=True)
    worker = Worker(cluster["a"].port, "w", persistent=True)
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one")
        until(lambda: bool(worker.look().held))
        publish(publisher, b"two")
    letters: list[Publish] = []

    def is_dead() -> bool:  # the older one may be a dead letter too, or the newer one takes its place
        refuse(worker)
        letters.extend(watcher.letters())
        return any(letter.payload == b"two" for letter in letters)

    until(is_dead)
    assert {dict(letter.properties["user_property"])[dead_letters.DELIVERIES] for letter in letters} == {"2"}
    redis = cluster.redis.client()
    until(lambda: not redis.keys("mq:gl:*") and not len(stored_queue(redis, "w")))


def test_a_newer_message_takes_the_place_of_one_that_came_back(cluster: ClusterProcess) -> None:
    declare(cluster, last_value=True, window=1, max_deliveries=5)
    worker = Worker(cluster["a"].port, "w", persistent=True)
    redis = cluster.redis.client()
    with SocketClient(cluster["b"].port, "p", level=5) as publisher:
        publish(publisher, b"one")
        refused([worker], 1)
        until(lambda: bool(worker.look().held))
        worker.client.close()
        until(lambda: redis.zcard("mq:gq:$share/workers/jobs/#") == 1)
        publish(publisher, b"two")
        cluster.settle()
    assert redis.zcard("mq:gq:$share/workers/jobs/#") == 1
    worker = Worker(cluster["a"].port, "w", persistent=True)
    until(lambda: bool(worker.look().held))
    assert worker.seen == [b"two"]
