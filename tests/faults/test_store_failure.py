"""The thread of the store meets an exception: the node ends, and has acknowledged only what it stored."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from flockmq.broker.coordination import standalone
from flockmq.broker.storage import sqlite
from flockmq.broker.storage.sqlite import SqliteStore
from tests.faults.failing_store import POISON
from tests.harness.broker_process import BrokerProcess
from tests.harness.inprocess import Node
from tests.harness.socket_client import SocketClient


class FailingNode(BrokerProcess):
    """A node whose store fails at a block with POISON."""

    def command(self) -> list[str]:
        return ["tests.faults.failing_store" if part == "flockmq.broker.cli" else part for part in super().command()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FailingNode]:
    node = FailingNode(tmp_path, "sqlite", {"http.drain": 3600})
    yield node
    node.close()


def test_the_node_ends_when_its_store_fails(node: FailingNode, tmp_path: Path) -> None:
    """It went on serving, and QoS 1 and 2 waited for ever."""
    node.start()
    reader = SocketClient(node.port, "reader", clean_start=False)
    reader.send(Subscribe(packet_id=1, topic_filters=[("t/#", 1)]))
    reader.receive()
    publisher = SocketClient(node.port, "publisher")
    publisher.send(Publish("t/1", b"one", qos=1, packet_id=1))
    assert publisher.receive() == Puback(packet_id=1)
    publisher.send(Publish("t/1", POISON, qos=1, packet_id=2))
    assert publisher.receive() is None
    assert node.wait() == 1
    assert "a fault of the code" in node.log_text()

    again = BrokerProcess(tmp_path, "sqlite").start()
    with SocketClient(again.port, "reader", clean_start=False) as back:
        packets = back.ping()
        assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [b"one"]
    assert again.stop() == 0
    again.check()


def test_a_store_that_cant_write_at_the_stop_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status was 0."""
    monkeypatch.setattr(standalone, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(sqlite, "RETRY_SECONDS", 0.01)
    node = Node(SqliteStore(tmp_path / "store.db"))
    node.router.publish(b"t/1", b"kept", 1, True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        asyncio.run(node.broker.coordinator.life.stop())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert node.failures == [node.store.failure]
    assert "could not be written" in str(node.store.failure)
