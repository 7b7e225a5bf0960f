"""Messages that a full queue in Redis drops: counted, and logged once per session and episode."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from _speedups.codec.packets import Puback, Publish
from cluster.sessions import full_queues
from cluster.sessions.full_queues import EPISODE_SECONDS, MAX_EPISODES, FullQueues
from tests.conftest import StartCluster
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient


class Lines:
    """Takes the place of the logger."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    lines = Lines()
    monkeypatch.setattr(full_queues, "log", lines)
    yield lines


def test_one_warning_per_session_and_episode(log: Lines) -> None:
    queues = FullQueues(lambda: (3, 1000, False))
    queues.dropped({b"pump": 2, b"\xff": 1})
    assert [values["client_id"] for _, values in log.take()] == ["pump", "\\xff"]
    queues.dropped({b"pump": 5})
    queues.tick(time.monotonic() + EPISODE_SECONDS / 2)
    assert log.take() == []
    queues.tick(time.monotonic() + EPISODE_SECONDS)
    assert [(values["client_id"], values["dropped"]) for _, values in log.take()] == [("pump", 7), ("\\xff", 1)]
    queues.tick(time.monotonic() + 2 * EPISODE_SECONDS)
    assert log.take() == []
    queues.dropped({b"pump": 1})
    ((_, values),) = log.take()
    assert values == {"client_id": "pump", "max_queued_messages": 3, "max_queued_bytes": 1000, "policy": "drop-new"}
    queues.close()
    ((_, values),) = log.take()
    assert values["dropped"] == 1


def test_the_number_of_episodes_is_bounded(log: Lines) -> None:
    queues = FullQueues(lambda: (3, 1000, True))
    queues.dropped({b"%d" % number: 1 for number in range(2 * MAX_EPISODES)})
    assert len(log.take()) == MAX_EPISODES
    queues.close()
    assert len(log.take()) == MAX_EPISODES


@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
def test_the_node_that_accepted_them_names_the_session(start_cluster: StartCluster, policy: str) -> None:
    settings = {"limits.max_queued_messages": 3, "limits.queue_policy": policy}
    cluster: ClusterProcess = start_cluster(settings, nodes="ab")
    for name in ("full", "roomy"):
        with SocketClient(cluster["a"].port, name, clean_start=False) as client:
            client.subscribe(("t" if name == "full" else "u", 1))
    with SocketClient(cluster["b"].port, "publisher") as publisher:
        for number in range(1, 6):
            publisher.send(Publish(topic_name="t", payload=b"%d" % number, qos=1, packet_id=number))
        publisher.send(Publish(topic_name="u", payload=b"", qos=1, packet_id=6))
        assert [publisher.receive() for _ in range(6)] == [Puback(packet_id=number) for number in range(1, 7)]
        line = cluster.wait_for_log("queue is full", node="b")
        assert (line["client_id"], line["max_queued_messages"], line["policy"]) == ("full", 3, policy)
    cluster["b"].stop()
    line = cluster.wait_for_log("no longer dropping", node="b")
    assert (line["client_id"], line["dropped"]) == ("full", 2)
    assert len([line for line in cluster.log if "queue is full" in line["event"]]) == 1
    with SocketClient(cluster["a"].port, "full", clean_start=False) as client:
        kept = [client.receive() for _ in range(3)]
        assert [packet.payload for packet in kept] == (  # type: ignore[union-attr]
            [b"1", b"2", b"3"] if policy == "drop-new" else [b"3", b"4", b"5"]
        )
