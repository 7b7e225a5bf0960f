"""Delayed wills of a node alone, in process."""

import pytest

from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq.broker.coordination import expiry
from tests.harness.inprocess import Client, Node


def test_many_that_are_due_at_once_are_published_tick_by_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "WILLS_AT_ONCE", 2)
    node = Node()
    watcher = Client(node, "watcher")
    watcher.send(Subscribe(1, [("wills/#", 0)]))
    watcher.take()
    for number in range(5):
        client = Client(
            node,
            f"c{number}",
            level=5,
            will_topic=f"wills/{number}",
            will_properties={"will_delay_interval": 1},
            properties={"session_expiry_interval": 100},
        )
        client.take()
        client.socket.close()
        node.run()
    found: list[list[str]] = []
    for _ in range(12):
        node.advance(1)
        if seen := [packet.topic_name for packet in watcher.take() if isinstance(packet, Publish)]:
            found.append(seen)
    assert [len(seen) for seen in found] == [2, 2, 1]
    assert sorted(name for seen in found for name in seen) == [f"wills/{number}" for number in range(5)]
