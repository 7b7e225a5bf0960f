"""Members with persistent sessions: Redis puts messages of their group into their queues when it gets them."""

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import redis

from flockmq._speedups.base.msgpack import pack, unpack
from flockmq._speedups.cluster.message_codec import decode_entry, decode_message, encode_message
from flockmq._speedups.codec.packets import Subscribe, Unsubscribe
from flockmq.cluster.redis.packed_session import GROUPED
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.commits import commit_arguments
from tests.harness.function_nodes import NODES, FunctionNodes
from tests.harness.redis_process import RedisProcess
from tests.harness.shared_subscriber import JOBS, Worker, gathered, publish
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue, stored_session

GROUP = b"$share/g/t"
IDENTIFIER = b"\x0b\x07"


class Nodes(FunctionNodes):
    """The subscribers `a` and `b` have connections to `n2`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sequence = dict.fromkeys(NODES, 0)
        self.epochs = {cid: self.claim(cid) for cid in (b"a", b"b")}
        for cid, epoch in self.epochs.items():
            self.commit(b"n2", changes=pack([["subscribed", cid, epoch, GROUP, 2, 0], ["mark", 1]]))
        self.listen()

    def commit(self, node: bytes = b"n1", **parts: Any) -> Any:
        self.sequence[node] += 1
        return self.call("commit", node, *commit_arguments(self.sequence[node], **{"shares": [], **parts}))

    def share(self, *messages: bytes, node: bytes = b"n1", **parts: Any) -> Any:
        """New messages of the group."""
        shares = [GROUP, range(1, len(messages) + 1)]
        return self.commit(node, messages=list(messages), shares=shares, **parts)

    def announce(
        self, cid: bytes, limit: int, *, epoch: int = 0, qos: int = 2, more: tuple[int, bytes] = (0, b"")
    ) -> Any:
        """Node `n2` announces the room of a subscriber."""
        subscriber = [GROUP, cid, epoch or self.epochs[cid], abs(limit), int(limit < 0), qos, *more]
        return self.call("acks", b"n2", [[], []], [[], [], [], [subscriber]])

    def acknowledge(self, cid: bytes, *numbers: int) -> Any:
        """Node `n2` has acknowledgements of a client, and nothing to announce."""
        return self.call("acks", b"n2", [[], [[cid, self.epochs[cid], list(numbers), [], b""]]], b"")

    def queue(self, cid: bytes) -> list[Any]:
        """The entries of a queue, see `decode_entry`."""
        return [decode_entry(entry) for entry in stored_queue(self.redis, cid)]

    @property
    def waiting(self) -> int:
        return int(self.redis.llen(b"mq:gw:" + GROUP) + self.redis.zcard(b"mq:gq:" + GROUP))

    def items(self) -> list[Any]:
        """The items that `n2` was sent last."""
        kind, items = unpack(self.told.get_message(timeout=5)["data"])
        assert kind == b"given"
        return items  # type: ignore[no-any-return]


@pytest.fixture
def nodes(redis_server: RedisProcess) -> Iterator[Nodes]:
    made = Nodes(redis_server.port)
    yield made
    made.close()


def message(payload: bytes, qos: int = 1, *, retain: bool = False) -> bytes:
    return encode_message(b"t", payload, qos, retain)


def test_messages_go_round_and_wait_when_no_member_has_room(nodes: Nodes) -> None:
    nodes.announce(b"a", 2)
    nodes.announce(b"b", 3)
    nodes.share(*(message(b"%d" % n) for n in range(7)))
    assert [len(nodes.queue(cid)) for cid in (b"a", b"b")] == [2, 3]
    assert nodes.waiting == 2
    places = sorted(entry[4] for cid in (b"a", b"b") for entry in nodes.queue(cid))
    assert places == [1, 2, 3, 4, 5]
    assert stored_session(nodes.redis, b"a").flags & GROUPED
    reply = nodes.announce(b"a", 3)  # its room is one message, the others keep waiting
    assert [item[:5] for item in reply[2]] == [[b"a", 3, GROUP, nodes.epochs[b"a"], 3]]
    assert nodes.waiting == 1
    assert nodes.redis.hget(b"mq:g:" + GROUP, "b") == str(len(message(b"6"))).encode()


@pytest.mark.parametrize("size", [1, 3, 5, 7, 9, 13, 100])
def test_nodes_get_messages_by_the_number_of_their_members(nodes: Nodes, size: int) -> None:
    """Whatever the number of messages in a call."""
    subscribers = {b"n1": 4, b"n2": 3}
    for node, count in subscribers.items():
        nodes.call("acks", node, [[], []], [[], [GROUP, 10_000, count, 0, 0], [], []])
    calls = 910 // size
    for _ in range(calls):
        nodes.share(*[message(b"x")] * size)
    assignments = {node: int(nodes.redis.hlen(b"mq:gl:" + node + b" " + GROUP)) for node in subscribers}
    assert sum(assignments.values()) == calls * size
    assert abs(assignments[b"n1"] - calls * size * 4 / 7) <= max(2, size / 4), assignments


def test_the_node_of_the_member_is_sent_entries_and_their_numbers(nodes: Nodes) -> None:
    nodes.announce(b"a", 10)
    nodes.share(message(b"x"), message(b"y"))
    (item,) = nodes.items()
    assert item[:5] == [b"a", 1, GROUP, nodes.epochs[b"a"], 2]
    assert [decode_message(decode_entry(entry)[0])[1] for entry in item[5:]] == [b"x", b"y"]


def test_messages_for_the_callers_own_session_follow_the_numbers_of_its_block(nodes: Nodes) -> None:
    nodes.announce(b"a", 10)
    incarnation = nodes.epochs[b"a"]
    reply = nodes.share(message(b"x"), node=b"n2", pushes=[[b"a", incarnation, 1]])
    assert reply[3] == [1, 1]  # the push of the block has the first number of the queue ...
    (item,) = reply[8]
    assert item[:2] == [b"a", 2]  # ... and the message of the group the next one


def test_qos_retain_and_identifiers_are_those_of_the_subscription(nodes: Nodes) -> None:
    nodes.announce(b"a", 10, qos=1, more=(1, IDENTIFIER))
    nodes.share(message(b"x", 2, retain=True), message(b"y", 1))
    nodes.announce(b"a", 0)  # no room
    nodes.announce(b"b", 10, more=(0, b""))
    nodes.share(message(b"z", 2, retain=True))
    first, second = nodes.queue(b"a")
    assert first[1:4] == (True, IDENTIFIER, GROUP)
    assert decode_message(first[0])[1:4] == (b"x", 1, False)
    assert second[1:4] == (False, IDENTIFIER, GROUP)
    (third,) = nodes.queue(b"b")
    assert third[1:4] == (False, b"", GROUP)
    assert decode_message(third[0])[1:4] == (b"z", 2, False)


def test_a_place_beyond_32_bits(nodes: Nodes) -> None:
    nodes.redis.hset(b"mq:g:" + GROUP, "n", (1 << 33) - 2)
    nodes.announce(b"a", 10)
    nodes.share(*(message(b"%d" % n) for n in range(5)))
    assert [entry[4] for entry in nodes.queue(b"a")] == [(1 << 33) - 1 + n for n in range(5)]


def test_a_member_whose_connection_has_ended_gets_nothing(nodes: Nodes) -> None:
    nodes.announce(b"a", 10)
    nodes.commit(b"n2", releases=[[b"a", nodes.epochs[b"a"], 1]])
    nodes.share(message(b"x"))
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 1)
    nodes.epochs[b"a"] = nodes.claim(b"a")
    nodes.share(message(b"y"))
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 2)  # until its room is announced for this connection
    nodes.announce(b"a", 10)
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 0)


def test_an_announcement_of_an_earlier_connection_has_no_effect(nodes: Nodes) -> None:
    earlier = nodes.epochs[b"a"]
    nodes.epochs[b"a"] = nodes.claim(b"a")
    nodes.announce(b"a", 10, epoch=earlier)
    nodes.share(message(b"x"))
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 1)


def test_a_member_of_a_dead_node_gets_nothing(nodes: Nodes) -> None:
    nodes.announce(b"a", 10)
    nodes.call("bury", b"n1", b"n2", nodes.redis.hget("mq:nodes", "n2"), 0)
    nodes.share(message(b"x"))
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 1)


def test_a_member_that_has_left_gets_nothing(nodes: Nodes) -> None:
    nodes.announce(b"a", 10)
    nodes.commit(b"n2", changes=pack([["unsubscribed", b"a", nodes.epochs[b"a"], GROUP], ["mark", 1]]))
    nodes.announce(b"a", 11)  # was under way
    nodes.share(message(b"x"))
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 1)
    assert not nodes.redis.hexists(b"mq:rare:a", b"k" + GROUP)


def test_a_node_that_does_not_know_the_number_is_sent_it(nodes: Nodes) -> None:
    nodes.announce(b"a", 3)
    nodes.share(message(b"x"), message(b"y"))
    (item,) = nodes.announce(b"a", 0)[2]
    assert item == [b"a", 0, GROUP, nodes.epochs[b"a"], 2]
    nodes.share(message(b"z"))  # that was a question, and no limit: but there is no room until the next announcement
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 1)


def test_a_limit_of_the_queue_is_announced_once(nodes: Nodes) -> None:
    nodes.announce(b"a", -2)
    nodes.share(*(message(b"%d" % n) for n in range(6)))
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 4)
    reply = nodes.acknowledge(b"a", 1)
    assert [(item[1], len(item) - 5) for item in reply[2]] == [(3, 1)]
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 3)
    nodes.acknowledge(b"a", 3)  # out of order: its entry stays, and makes room
    assert (len(nodes.queue(b"a")), nodes.waiting) == (3, 2)
    nodes.acknowledge(b"a", 2)
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 1)
    nodes.acknowledge(b"a", 4, 5)
    assert (len(nodes.queue(b"a")), nodes.waiting) == (1, 0)
    nodes.share(message(b"x"))
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 0)


def test_a_limit_of_the_queue_counts_all_messages_of_the_session(nodes: Nodes) -> None:
    nodes.commit(messages=[message(b"x")], pushes=[[b"a", nodes.epochs[b"a"], 1]])
    nodes.announce(b"a", -1)  # there is no room when it is announced
    nodes.share(message(b"y"))
    assert (len(nodes.queue(b"a")), nodes.waiting) == (1, 1)
    nodes.acknowledge(b"a", 1)
    assert (len(nodes.queue(b"a")), nodes.waiting) == (1, 0)


def test_a_member_without_room_returns_only_while_it_may(nodes: Nodes) -> None:
    nodes.announce(b"a", -1)
    nodes.share(message(b"x"), message(b"y"))
    nodes.announce(b"a", 0)
    nodes.acknowledge(b"a", 1)
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 1)
    nodes.announce(b"a", -1)
    assert (len(nodes.queue(b"a")), nodes.waiting) == (1, 0)
    nodes.share(message(b"z"))
    nodes.commit(b"n2", releases=[[b"a", nodes.epochs[b"a"], 3]])  # its client has got the second one, and is away
    nodes.acknowledge(b"a", 2)
    assert (nodes.queue(b"a"), nodes.waiting) == ([], 1)


def test_a_refused_message_makes_room(nodes: Nodes) -> None:
    nodes.announce(b"a", -1)
    nodes.share(message(b"x"), message(b"y"))
    nodes.commit(b"n2", moves=[b"refused", GROUP, 1, b"a", 1, 0x97])
    assert (len(nodes.queue(b"a")), nodes.waiting) == (1, 0)
    assert nodes.redis.hkeys(b"mq:gl:n2 " + GROUP) == [b"1"]  # it has failed


def test_a_damaged_queue_keeps_its_messages_in_the_group(nodes: Nodes) -> None:
    nodes.announce(b"a", 10)
    nodes.redis.set(b"mq:s:a", "damaged")
    nodes.share(message(b"x"))
    assert nodes.waiting == 1
    nodes.announce(b"b", 10)
    assert (len(nodes.queue(b"b")), nodes.waiting) == (1, 0)
    nodes.share(message(b"y"))
    assert len(nodes.queue(b"b")) == 2


def test_a_message_that_has_failed_goes_to_the_node_of_the_member(nodes: Nodes) -> None:
    nodes.announce(b"a", 1)
    nodes.share(message(b"x"))
    number = stored_session(nodes.redis, b"a").head
    nodes.announce(b"b", 10)
    nodes.commit(b"n2", moves=[b"refused", GROUP, 1, b"a", number, 0x97])
    assert nodes.redis.hkeys(b"mq:gl:n2 " + GROUP) == [b"1"]
    assert nodes.queue(b"b") == []


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"shared.window": 4}, nodes="ab")


def direct(cluster: ClusterProcess, name: str) -> int:
    """Messages that Redis has put into the queue of the subscriber by itself."""
    return int(cluster.redis.client().hget(f"mq:rare:{name}", "k" + JOBS) or 0)


@pytest.mark.parametrize("publish_at", ["a", "b"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_persistent_member_gets_all_without_leases(cluster: ClusterProcess, qos: int, publish_at: str) -> None:
    worker = Worker(cluster["b"].port, "w", qos, persistent=True)
    payloads = [b"%d" % number for number in range(20)]
    with SocketClient(cluster[publish_at].port, "p", level=5) as publisher:
        publish(publisher, *payloads, qos=qos)
        found: list[bytes] = []

        def all_there() -> bool:
            found.extend(worker.look().answer())
            return len(found) >= len(payloads)

        until(all_there)
    assert found == payloads
    assert direct(cluster, "w") == 20
    assert not cluster.redis.client().keys("mq:gl:*")


def announced(cluster: ClusterProcess) -> tuple[int, int, int]:
    """Limit, 1 = by length, and highest QoS of the subscriber `w` as Redis has them; 0 = none."""
    with redis.Redis(port=cluster.redis.port) as client:
        packed = client.hget("mq:go:" + JOBS, "c:w")
    found = msgpack.unpackb(packed) if packed else [0] * 7
    return found[2], found[3], found[4]


def test_the_limit_is_that_of_the_queue_while_the_session_has_no_other_subscription(cluster: ClusterProcess) -> None:
    worker = Worker(cluster["b"].port, "w", 1, persistent=True)
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        until(lambda: announced(cluster)[:2] == (4, 1))
        publish(publisher, *(b"%d" % number for number in range(10)))
        assert len(gathered([worker], 10)) == 10
        assert announced(cluster)[:2] == (4, 1)
        worker.client.send(Subscribe(2, [("other", 1)]))
        worker.look()
        publish(publisher, *(b"%d" % number for number in range(10, 30)))
        assert len(gathered([worker], 20)) == 20
        until(lambda: announced(cluster)[1] == 0)
        worker.client.send(Unsubscribe(3, ["other"]))
        worker.look()
        publish(publisher, *(b"%d" % number for number in range(30, 40)))
        assert len(gathered([worker], 10)) == 10
        until(lambda: announced(cluster)[:2] == (4, 1))
    assert direct(cluster, "w") == 40


def test_a_new_maximum_qos_is_announced(cluster: ClusterProcess) -> None:
    worker = Worker(cluster["b"].port, "w", 1, persistent=True)
    until(lambda: announced(cluster)[:2] == (4, 1))
    worker.client.send(Subscribe(2, [(JOBS, 2)]))
    until(lambda: announced(cluster) == (4, 1, 2))


def test_a_member_with_a_maximum_packet_size_gets_leases(cluster: ClusterProcess) -> None:
    worker = Worker(cluster["b"].port, "w", 1, persistent=True, maximum_packet_size=1000)
    with SocketClient(cluster["a"].port, "p", level=5) as publisher:
        publish(publisher, b"1", b"2")
        assert sorted(gathered([worker], 2)) == [b"1", b"2"]
    assert direct(cluster, "w") == 0


def test_messages_of_a_dead_nodes_member_go_to_others_after_a_while(nodes: Nodes) -> None:
    """Its session does not expire by itself."""
    epoch = nodes.claimed(b"n2", b"c", 1, 5, b"", 100, b"", 0, "", 0)[0]
    nodes.commit(b"n2", changes=pack([["subscribed", b"c", epoch, GROUP, 2, 0], ["mark", 2]]))
    nodes.announce(b"c", 1, epoch=epoch)
    nodes.share(message(b"x"))
    assert len(nodes.queue(b"c")) == 1
    nodes.call("bury", b"n1", b"n2", nodes.redis.hget("mq:nodes", "n2"), 0)
    nodes.call("tidy", 10)
    assert stored_session(nodes.redis, b"c").owner == b""
    assert nodes.redis.zscore("mq:grace", "c") is not None


def test_a_clean_start_of_a_member_with_a_full_window_loses_nothing_that_waits(nodes: Nodes) -> None:
    """Its messages came back, and so it had room: it got others, which went with its session. `n2` is live."""
    nodes.announce(b"a", -2)
    nodes.share(*(message(b"%d" % n) for n in range(6)))
    assert (len(nodes.queue(b"a")), nodes.waiting) == (2, 4)
    nodes.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 1, 1000, 0)
    nodes.announce(b"b", 10)
    found = {decode_message(entry[0])[1] for entry in nodes.queue(b"b")}
    assignments = nodes.redis.hvals(b"mq:gl:n2 " + GROUP)  # they may be dead letters now
    assert nodes.waiting == 0
    assert len(found) + len(assignments) == 6
