"""Large messages, as Redis sends them to nodes: before the list that has them. And the bytes of acknowledged ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import DamagedMessage, pack, unpack
from flockmq._speedups.cluster.message_codec import decode_entry, encode_message
from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.cluster.peers import wire
from tests.conftest import StartCluster
from tests.harness.commits import commit_arguments
from tests.harness.function_caller import counted_size
from tests.harness.function_nodes import FunctionNodes
from tests.harness.redis_process import RedisProcess
from tests.harness.shared_subscriber import Worker
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue, stored_session

GROUP = b"$share/g/t"
SIZES = (0, 1000, 1021, 1022, 5000, 3, 70_000, 2048, 12)


def message(size: int, qos: int = 1) -> bytes:
    return encode_message(b"t", b"x" * size, qos, False)


class Nodes(FunctionNodes):
    """The session `a` has its connection at `n2`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sequence = 0
        self.epoch = self.claim(b"a")
        self.listen()

    def push(self, *messages: bytes) -> Any:
        """Node `n1` pushes messages into the queue of `a`."""
        self.sequence += 1
        pushes = [[b"a", self.epoch, *range(1, len(messages) + 1)]]
        return self.call("commit", b"n1", *commit_arguments(self.sequence, messages=messages, pushes=pushes))

    def acknowledge(self, done: list[int], *size: int) -> Any:
        return self.call("acks", b"n2", [[], [[b"a", self.epoch, done, [], *size]]], b"")

    def published(self) -> list[bytes]:
        """The messages that `n2` was sent."""
        found = []
        while (each := self.told.get_message(timeout=0.2 if found else 5)) is not None:
            found.append(each["data"])
        return found

    @property
    def counted(self) -> int:
        """As the session counts them."""
        return stored_session(self.redis, "a").queued_bytes

    @property
    def queue(self) -> list[bytes]:
        return stored_queue(self.redis, "a")


@pytest.fixture
def nodes(redis_server: RedisProcess) -> Iterator[Nodes]:
    made = Nodes(redis_server.port)
    yield made
    made.close()


# ---- texts apart from their list ----


def test_large_messages_come_before_their_list(nodes: Nodes) -> None:
    small, large, larger = message(10), message(1024), message(9000)
    nodes.push(small, large, small, larger)
    *apart, told = nodes.published()
    assert apart == [large, larger]
    assert unpack(told) == [b"pushed", [small, False, small, False], [[b"a", 1, 1, 2, 3, 4]]]


def test_large_messages_of_a_group_come_before_their_list(nodes: Nodes) -> None:
    changes = pack([["subscribed", b"a", nodes.epoch, GROUP, 2, 0], ["mark", 1]])
    nodes.call("commit", b"n2", *commit_arguments(1, changes=changes))
    nodes.call("acks", b"n2", [[], []], [[], [], [], [[GROUP, b"a", nodes.epoch, 5, 0, 2, 0, b""]]])
    messages = (message(9000), message(1))
    nodes.call("commit", b"n1", *commit_arguments(1, messages=messages, shares=[GROUP, [1, 2]]))
    entry, told = nodes.published()
    kind, items = unpack(told)
    assert kind == b"given"
    assert items[0][5] is False
    assert [entry, items[0][6]] == nodes.queue
    assert decode_entry(entry)[3:5] == (GROUP, 1)


def test_messages_find_their_places() -> None:
    parts = [[b"a", False, 3, [False, b"b"]], [False]]
    wire.fill(parts, apart := [b"of a list that was lost", b"1", b"2", b"3"])
    assert parts == [[b"a", b"1", 3, [b"2", b"b"]], [b"3"]]
    assert apart == [b"of a list that was lost"]
    with pytest.raises(DamagedMessage):
        wire.fill([[False, False]], [b"1"])


def test_messages_of_all_sizes_arrive_in_order(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="ab")
    payloads = [b"%d " % number + b"x" * size for number, size in enumerate(SIZES * 5)]
    subscriber = SocketClient(cluster["b"].port, "subscriber", clean_start=False)
    subscriber.subscribe(("t", 1))
    publisher = SocketClient(cluster["a"].port, "publisher")
    publisher.send(*(Publish("t", payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)))
    for payload in payloads:
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        assert packet.payload == payload
        subscriber.send(Puback(packet.packet_id))


def test_subscribers_get_messages_of_all_sizes(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="ab")
    workers = [Worker(cluster["b"].port, name, persistent=True) for name in ("one", "two")]
    publisher = SocketClient(cluster["a"].port, "publisher")
    payloads = [b"%d " % n + b"x" * SIZES[n % len(SIZES)] for n in range(45)]
    publisher.send(*(Publish("jobs/x", payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)))
    while sum(len(worker.seen) for worker in workers) < len(payloads):
        for worker in workers:
            worker.look().answer()
    assert sorted(one for worker in workers for one in worker.seen) == sorted(payloads)


# ---- the bytes of messages that are done ----


def test_acknowledgements_free_the_bytes_that_their_node_knows(nodes: Nodes) -> None:
    texts = [message(size) for size in SIZES]
    nodes.push(*texts)
    assert nodes.counted == sum(map(len, texts))
    nodes.acknowledge([1, 2], len(texts[0]) + len(texts[1]))
    assert nodes.queue == texts[2:]
    assert nodes.counted == sum(map(len, texts[2:]))


@pytest.mark.parametrize(
    "done",
    [[1, 2], [2], [2, 1], [1, 3], [1, 2, 3, 5]],
    ids=["some were done before", "out of order", "all", "a gap", "some before, and a gap"],
)
def test_bytes_of_other_acknowledgements_are_counted_in_redis(nodes: Nodes, done: list[int]) -> None:
    """Their node has repeated a call, or has acknowledgements that come before others."""
    texts = [message(size) for size in SIZES]
    nodes.push(*texts)
    nodes.acknowledge([1], len(texts[0])) if done[:1] == [1] else None
    nodes.acknowledge(done, sum(len(texts[number - 1]) for number in done))
    for number in range(1, len(texts) + 1):
        assert nodes.counted == counted_size(nodes.queue)
        nodes.acknowledge([number], len(texts[number - 1]))
    assert nodes.queue == []
    assert nodes.counted == 0


def test_a_push_to_an_empty_queue_corrects_its_bytes(nodes: Nodes) -> None:
    """After a loss of data Redis gave number 1 to another message than the node had."""
    nodes.push(message(2000))
    nodes.acknowledge([1], len(message(7)))
    assert (nodes.queue, nodes.counted) == ([], 1993)
    nodes.push(message(5))
    assert nodes.counted == len(message(5))
