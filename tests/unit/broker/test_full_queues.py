"""Messages that a full queue drops: noted by the turn, and logged once per session and episode."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq.broker.core import full_queues
from flockmq.broker.core.full_queues import EPISODE_SECONDS, MAX_EPISODES, FullQueues
from tests.harness.inprocess import Client, Node


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
def test_a_turn_notes_full_queues(policy: str) -> None:
    node = Node(max_queued_messages=3, queue_policy=policy)
    subscriber = Client(node, "full", clean_start=False)
    subscriber.send(Subscribe(packet_id=1, topic_filters=[("t", 1)]))
    subscriber.close()
    publisher = Client(node, "publisher")
    for number in range(1, 6):
        publisher.send(Publish(topic_name="t", qos=1, packet_id=number))
    turn = node.broker.data_plane.turn
    assert turn.take_full_queues() == {b"full": 2}
    assert turn.take_full_queues() == {}
