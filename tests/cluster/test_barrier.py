"""The barrier of a large cluster: Redis counts which changes all nodes have applied. A client gets SUBACK then (G4)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import unpack
from flockmq._speedups.codec.packets import Publish, Suback, Subscribe
from flockmq.cluster.peers.wire import applied
from flockmq.cluster.replication.applied_changes import COUNTED_FROM
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.function_nodes import FunctionNodes, call_function
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient

SILENCE = 0.3  # seconds in which no SUBACK comes that would not come later, either


class Told(FunctionNodes):
    """Ready nodes `n1` and `n2`; the messages to `n2` are read."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        for node in (b"n1", b"n2"):
            self.call("ready", node)
        self.listen()

    def report(self, node: bytes, change: int, wanted: int = 0) -> Any:
        return self.call("applied", node, change, wanted)

    def messages(self) -> list[Any]:
        """The messages to `n2` that have arrived."""
        found = []
        while (message := self.told.get_message(timeout=0.1)) is not None:
            found.append(unpack(message["data"]))
        return found


@pytest.fixture
def nodes(redis_server: RedisProcess) -> Iterator[Told]:
    made = Told(redis_server.port)
    yield made
    made.close()


def test_a_node_is_told_when_the_last_one_has_reported(nodes: Told) -> None:
    nodes.report(b"n2", 9, 7)
    assert nodes.messages() == []
    nodes.report(b"n1", 7)
    assert nodes.messages() == [[b"all_applied", 7]]


def test_a_node_that_asks_last_is_told_at_once(nodes: Told) -> None:
    nodes.report(b"n1", 9)
    nodes.report(b"n2", 8, 8)
    assert nodes.messages() == [[b"all_applied", 8]]


def test_later_changes_wait_for_the_next_round(nodes: Told) -> None:
    """However many reports make the least number grow, a node is told once a round."""
    for change in range(7, 12):
        nodes.report(b"n2", change, change)
    for change in range(4, 7):
        nodes.report(b"n1", change)
    assert nodes.messages() == []
    nodes.report(b"n1", 8)
    assert nodes.messages() == [[b"all_applied", 8]]
    nodes.report(b"n1", 10)
    assert nodes.messages() == []
    nodes.report(b"n1", 11)
    assert nodes.messages() == [[b"all_applied", 11]]
    assert not nodes.redis.exists("mq:applied:wanted", "mq:applied:goal")


@pytest.mark.parametrize("end", ["bury", "leave"])
def test_no_change_waits_for_a_node_that_has_ended(nodes: Told, end: str) -> None:
    """The ended node itself may have waited, too."""
    nodes.call("join", b"n3", 1, [], b"mq:", b"")
    nodes.call("ready", b"n3")
    nodes.report(b"n1", 9)
    nodes.report(b"n2", 9, 9)
    nodes.report(b"n3", 8, 12)
    assert nodes.messages() == []
    nodes.call(end, *([b"n1", b"n3", 1, 0] if end == "bury" else [b"n3"]))
    assert nodes.messages() == [[b"all_applied", 9]]
    assert not nodes.redis.exists("mq:applied:wanted", "mq:applied:goal")


def test_a_node_that_is_no_member_reports_nothing(nodes: Told) -> None:
    assert nodes.report(b"n3", 7, 7) == [b"gone"]
    assert not nodes.redis.exists("mq:applied:wanted")
    assert nodes.redis.zcard("mq:applied") == 2


class Members:
    """Nodes that are no more than their calls, beside a real one.

    Args:
        cluster: of the real node, the only one.
        count: of them.
    """

    def __init__(self, cluster: ClusterProcess, count: int) -> None:
        self.redis = cluster.redis.client(decode_responses=False)
        self.names = [b"m%d" % number for number in range(count)]
        for name in self.names:
            call_function(self.redis, "join", name, 1, [], b"mq:", b"")
            call_function(self.redis, "ready", name)
        (self.node,) = set(self.redis.hkeys("mq:nodes")) - set(self.names)
        until(lambda: self.reported(self.node) == self.change)

    @property
    def change(self) -> int:
        """The number of the last change."""
        return int(self.redis.get("mq:change") or 0)

    def reported(self, node: bytes) -> int:
        return int(self.redis.zscore("mq:applied", node) or 0)

    def report(self, *names: bytes) -> None:
        """These nodes have applied all changes."""
        for name in names:
            call_function(self.redis, "applied", name, self.change, 0)

    def bury(self, name: bytes) -> None:
        call_function(self.redis, "bury", self.node, name, 1, 0)


@pytest.fixture
def alone(start_cluster: StartCluster) -> ClusterProcess:
    """One node, which takes no other for dead."""
    return start_cluster({"cluster.lease": 60}, nodes="a")


def subscribed(client: SocketClient, members: Members, name: str) -> None:
    """The client has sent SUBSCRIBE, and its node has applied the change."""
    before = members.change
    client.send(Subscribe(1, [(name, 1)]))
    until(lambda: members.change > before and members.reported(members.node) == members.change)


@pytest.mark.parametrize(
    ("others", "settle"),
    [(COUNTED_FROM, Members.report), (COUNTED_FROM + 1, Members.bury)],
    ids=["it has applied the change", "it is dead"],
)
def test_suback_waits_for_the_last_node(
    alone: ClusterProcess, others: int, settle: Callable[[Members, bytes], object]
) -> None:
    members = Members(alone, others)
    with SocketClient(alone["a"].port, "c") as client:
        subscribed(client, members, "t/1")
        members.report(*members.names[1:])
        with pytest.raises(TimeoutError):
            client.receive(SILENCE)
        settle(members, members.names[0])
        assert isinstance(client.receive(), Suback)


def test_a_cluster_that_has_become_small_needs_no_count(alone: ClusterProcess) -> None:
    """The node asks the others how far they are, and their replies count."""
    members = Members(alone, COUNTED_FROM)
    told = members.redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe("mq:all")
    told.get_message(timeout=5)
    with SocketClient(alone["a"].port, "c") as client:
        subscribed(client, members, "t/1")
        members.report(*members.names[1:4])
        members.bury(members.names[0])
        until(lambda: (message := told.get_message()) is not None and unpack(message["data"])[0] == b"back")
        with pytest.raises(TimeoutError):
            client.receive(SILENCE)
        for name in members.names[1:]:
            members.redis.publish(b"mq:to:" + members.node, applied(name, members.change))
        assert isinstance(client.receive(), Suback)


def test_a_report_that_redis_refuses_is_repeated(alone: ClusterProcess) -> None:
    members = Members(alone, COUNTED_FROM)
    redis = members.redis
    with SocketClient(alone["a"].port, "c") as client:
        redis.set("mq:applied:wanted", "damaged")
        client.send(Subscribe(1, [("t/1", 1)]))
        alone.wait_for_log("Redis refuses a report of applied changes")
        redis.delete("mq:applied:wanted")
        until(lambda: members.reported(members.node) == members.change)
        members.report(*members.names)
        assert isinstance(client.receive(), Suback)


def test_ten_nodes(start_cluster: StartCluster) -> None:
    """A message that any of them accepts after SUBACK arrives."""
    cluster = start_cluster({"cluster.lease": 20}, nodes="abcdefghij")
    until(lambda: cluster.redis.client().zcard("mq:applied") == 10)
    publishers = [SocketClient(node.port, f"publisher {node.name}") for node in cluster.nodes]
    payloads = [b"%d" % number for number in range(len(publishers))]
    with SocketClient(cluster["a"].port, "c") as client:
        for number in range(5):
            client.subscribe((f"t/{number}", 0))
            for publisher, payload in zip(publishers, payloads, strict=True):
                publisher.send(Publish(f"t/{number}", payload))
            assert (
                sorted(packet.payload for _ in payloads if isinstance(packet := client.receive(), Publish)) == payloads
            )
    for publisher in publishers:
        publisher.close()
