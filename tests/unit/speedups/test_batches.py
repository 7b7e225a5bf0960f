"""Batches of other nodes: each is delivered once, whatever has been delivered before, and its sender gets credit."""

from typing import Any

import pytest

from flockmq._speedups.cluster.batches import Batches, Progress
from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq.cluster.peers.wire import LOGGED, QOS_0, batch_header
from tests.harness.inprocess import Client, Node

MIB = 1024 * 1024


class World:
    """A node with a subscriber, and two other nodes, one of which has left."""

    def __init__(self) -> None:
        self.node = Node()
        self.client = Client(self.node, "client")
        self.client.send(Subscribe(packet_id=1, topic_filters=[("#", 0)]))
        self.client.take()
        self.here, self.left = Progress(), Progress()
        self.confirmed: list[tuple[bytes, int]] = []
        self.others: list[bytes] = []
        self.batches = Batches(
            self.node.router,
            {b"here": self.here},
            {b"left": self.left},
            lambda *confirmed: self.confirmed.append(confirmed),
            self.others.append,
        )

    def receive(self, kind: bytes, node: bytes, number: int, *payloads: bytes) -> list[bytes]:
        """The payloads that the subscriber gets of a batch."""
        packets = b"".join(bytes([0x30, 3 + len(payload)]) + b"\0\x01t" + payload for payload in payloads)
        count = self.batches.receive(b"channel", batch_header(kind, node, number) + packets)
        self.node.end_turn()
        found = [packet.payload for packet in self.client.take() if isinstance(packet, Publish)]
        assert count == len(found)
        return found

    def close(self) -> None:
        self.node.close()


@pytest.fixture
def world() -> Any:
    world = World()
    yield world
    world.close()


@pytest.mark.parametrize("node", [b"here", b"left"])
def test_a_batch_of_the_log_is_delivered_once(world: World, node: bytes) -> None:
    assert world.receive(LOGGED, node, 1, b"a", b"b") == [b"a", b"b"]
    assert world.receive(LOGGED, node, 1, b"a", b"b") == []
    assert world.receive(LOGGED, node, 5, b"c") == [b"c"]
    assert world.receive(LOGGED, node, 4, b"x") == []
    assert (world.here if node == b"here" else world.left).seen == 5


def test_qos_0_is_delivered_whatever_its_number_and_confirmed_after_a_mebibyte(world: World) -> None:
    for number in (MIB - 1, MIB, MIB + 1, 2 * MIB, 5):
        assert world.receive(QOS_0, b"here", number, b"a") == [b"a"]
    assert world.confirmed == [(b"here", MIB), (b"here", 2 * MIB)]
    assert (world.here.credited, world.here.seen) == (2 * MIB, 0)


def test_qos_0_of_a_node_that_has_left_is_dropped(world: World) -> None:
    """Its publishers may have sent more over another node. Messages in a log were committed before it left."""
    assert world.receive(LOGGED, b"gone", 1, b"a") == [b"a"]
    assert world.receive(QOS_0, b"gone", 9 * MIB, b"b") == []
    assert world.confirmed == []


@pytest.mark.parametrize(
    "data", [b"", b"L", b"Q", b"Q\x05here", b"L\x04here1234567", b"\x93\x01\x02\x03", b"M\0" + bytes(8)]
)
def test_what_is_no_whole_batch_is_for_others(world: World, data: bytes) -> None:
    assert world.batches.receive(b"channel", data) == 0
    assert world.others == [data]


def test_a_batch_that_can_not_be_read_is_an_error(world: World) -> None:
    with pytest.raises(ValueError, match="batch"):
        world.batches.receive(b"channel", batch_header(QOS_0, b"here", 1) + b"\x30\x7f")
