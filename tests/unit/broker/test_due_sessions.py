"""Sessions of a node alone that expire together, in process."""

import pytest

from flockmq._speedups.codec.packets import Connack, Publish, Subscribe
from flockmq.broker.coordination import expiry
from tests.harness.inprocess import Client, Node

SECOND = 4  # ticks


def leave(node: Node, name: str, topic_filter: str, seconds: int = 1) -> None:
    """A client with a session that expires, and with a message that it has not acknowledged if there is one."""
    client = Client(node, name, level=5, properties={"session_expiry_interval": seconds})
    client.send(Subscribe(1, [(topic_filter, 1)]))
    client.take()
    client.socket.close()
    node.run()


def ends(node: Node, ticks: int) -> list[int]:
    """How many sessions end in each tick in which some do."""
    counts = []
    for _ in range(ticks):
        before = node.sessions.count
        node.advance(1)
        counts.append(before - node.sessions.count)
    return [count for count in counts if count]


def test_many_that_are_due_at_once_end_tick_by_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SESSIONS_AT_ONCE", 2)
    node = Node()
    for number in range(5):
        leave(node, f"c{number}", "t")
    assert ends(node, 3 * SECOND) == [2, 2, 1]
    assert node.router.filters.count == 0


def test_a_session_whose_time_is_over_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SESSIONS_AT_ONCE", 1)
    node = Node()
    for number in range(5):
        leave(node, f"c{number}", "t")
    node.advance(SECOND + 2)
    left = [session.client_id.decode() for session in node.sessions]
    assert left
    client = Client(node, left[-1], level=5, clean_start=False, properties={"session_expiry_interval": 100})
    connack = client.take()[0]
    assert isinstance(connack, Connack)
    assert not connack.session_present
    ends(node, SECOND)
    assert [session.client_id.decode() for session in node.sessions] == [left[-1]]


def test_messages_of_groups_come_back_tick_by_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "RETURNS_AT_ONCE", 2)
    node = Node(shared={"redispatch": 1.0})
    publisher = Client(node, "publisher")
    workers = [Client(node, f"w{number}", level=5, properties={"session_expiry_interval": 100}) for number in range(5)]
    for worker in workers:
        worker.send(Subscribe(1, [("$share/g/t", 1)]))
    for number in range(5):
        publisher.send(Publish("t", b"%d" % number, 1, packet_id=1))
    assert all(any(isinstance(packet, Publish) for packet in worker.take()) for worker in workers)
    for worker in workers:
        worker.socket.close()
    node.run()
    (group,) = node.router.filters.groups.values()
    counts = []
    for _ in range(3 * SECOND):
        before = group.waiting
        node.advance(1)
        counts.append(group.waiting - before)
    assert [count for count in counts if count] == [2, 2, 1]
