"""Sessions in which messages wait behind one that the client does not acknowledge: found, logged, counted."""

from collections.abc import Iterator
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe
from flockmq.broker.core import stuck_sessions
from flockmq.broker.metrics import METRICS
from tests.harness.inprocess import Client, Node

MINUTE = 240  # ticks
ROUND = stuck_sessions.ROUND_TICKS


class Lines:
    """Takes the place of the logger."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append((event.partition(" ")[0], values))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    lines = Lines()
    monkeypatch.setattr(stuck_sessions, "log", lines)
    yield lines


def subscribed(node: Node, name: str = "slow", qos: int = 1, **connect: Any) -> Client:
    client = Client(node, name, clean_start=False, **connect)
    client.connack()
    client.send(Subscribe(packet_id=1, topic_filters=[(f"{name}/#", qos)]))
    client.take_one(Suback)
    return client


def publish(node: Node, topic: str, count: int, qos: int = 1) -> None:
    publisher = Client(node, "publisher")
    for number in range(1, count + 1):
        publisher.send(Publish(topic, b"%d" % number, qos=qos, packet_id=number))
        if qos == 2:
            publisher.send(Pubrel(packet_id=number))
    publisher.read().close()


def stuck(node: Node, name: bytes = b"slow") -> dict[str, Any] | None:
    session = node.sessions.get(name)
    assert session is not None
    return node.broker.data_plane.stuck_sessions.described(session)


def counted(node: Node) -> float:
    """The metric."""
    (metric,) = (metric for metric in METRICS if metric.name == "sessions_stuck")
    return metric.read(node.broker, {})


def test_one_warning_and_one_end_per_episode(log: Lines) -> None:
    node = Node(max_inflight=2)
    client = subscribed(node)
    publish(node, "slow/t", 5)
    node.advance(MINUTE)
    assert (log.take(), counted(node), stuck(node)) == ([], 0, None)
    node.advance(2 * ROUND)
    ((event, values),) = log.take()
    assert (event, values.pop("client_id")) == ("messages", "slow")
    assert 60 <= values["seconds"] <= 66
    assert values == {"packet_id": 1, "topic": "slow/t", "seconds": values["seconds"], "waiting": 3}
    assert counted(node) == 1
    node.advance(MINUTE)
    assert log.take() == []
    later = stuck(node)
    assert later is not None and 120 <= later["seconds"] <= 130
    client.send(Puback(packet_id=2))  # another one
    node.advance(ROUND)
    assert counted(node) == 1
    client.send(Puback(packet_id=1))
    assert stuck(node) is None
    node.advance(ROUND)
    ((event, values),) = log.take()
    assert (event, values["client_id"], counted(node)) == ("no", "slow", 0)
    assert values["seconds"] >= 120
    node.advance(MINUTE + ROUND)
    (_, values), *_ = log.take()
    assert (values["packet_id"], counted(node)) == (3, 1)


def test_as_many_messages_as_there_are_packet_identifiers_behind_one(log: Lines) -> None:
    node = Node(max_queued_messages=100_000)
    client = subscribed(node)
    publisher = Client(node, "publisher")
    publisher.connack()
    for _ in range(656):
        publisher.send(*(Publish("slow/t", qos=1, packet_id=number) for number in range(1, 101)))
        publisher.take()
        while received := [p.packet_id for p in client.take() if isinstance(p, Publish) and p.packet_id != 1]:
            client.send(*map(Puback, received))
        node.store.told.clear()  # no restart follows
        node.store.done = 0
    node.advance(MINUTE + 2 * ROUND)
    ((_, values),) = log.take()
    assert (values["packet_id"], values["waiting"]) == (1, 65_600 - 65_534)
    client.send(Puback(1))
    node.advance(ROUND)
    assert (counted(node), len(client.take())) == (0, 66)


def test_the_second_half_of_qos_2_counts_too(log: Lines) -> None:
    node = Node(max_inflight=1)
    client = subscribed(node, qos=2)
    publish(node, "slow/t", 2, qos=2)
    client.send(Pubrec(1))
    node.advance(MINUTE + 2 * ROUND)
    ((_, values),) = log.take()
    assert (values["packet_id"], values["topic"]) == (1, "")
    client.send(Pubcomp(1))
    node.advance(ROUND)
    assert counted(node) == 0


def test_others_are_not_stuck(log: Lines) -> None:
    node = Node(max_inflight=2)
    subscribed(node, "last")
    publish(node, "last/t", 2)  # nothing waits behind them
    away = subscribed(node, "away")
    publish(node, "away/t", 5)
    away.close()
    busy = subscribed(node, "busy")
    publish(node, "busy/t", 200)
    for _ in range(2 * MINUTE // ROUND):
        node.advance(ROUND)
        (first, *_) = (packet for packet in busy.take() if isinstance(packet, Publish))
        busy.send(Puback(first.packet_id), Puback(first.packet_id + 1))
    assert (log.take(), counted(node)) == ([], 0)


def test_an_episode_ends_with_the_connection(log: Lines) -> None:
    node = Node(max_inflight=1)
    client = subscribed(node)
    publish(node, "slow/t", 2)
    node.advance(MINUTE + 2 * ROUND)
    assert counted(node) == 1
    client.close()
    assert stuck(node) is None
    node.advance(ROUND)
    assert ([event for event, _ in log.take()], counted(node)) == (["messages", "no"], 0)
    Client(node, "slow", clean_start=False)
    node.advance(MINUTE + 2 * ROUND)
    assert counted(node) == 1


def test_rounds_and_lines_are_bounded(log: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round takes as many ticks as it needs, and sessions past the most episodes are only counted."""
    monkeypatch.setattr(stuck_sessions, "LOOKS", 2)
    monkeypatch.setattr(stuck_sessions, "MAX_EPISODES", 3)
    node = Node(max_inflight=1, stuck_after=1.0)
    looks: list[object] = []
    look = stuck_sessions.StuckSessions._look
    monkeypatch.setattr(stuck_sessions.StuckSessions, "_look", lambda *given: (looks.append(0), look(*given)))
    clients = [subscribed(node, f"s{number}") for number in range(5)]
    for number in range(5):
        publish(node, f"s{number}/t", 2)
    node.advance(1)
    assert len(looks) == 2
    node.advance(20)
    assert (len(log.take()), counted(node)) == (3, 5)
    for client in clients:
        client.send(Puback(1))
    node.advance(20)
    assert (len(log.take()), counted(node)) == (3, 0)
