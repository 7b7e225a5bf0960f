"""kill -9 of a node at each hand-over between a group and a session: I9, F25, G13.

Node `a` is killed, in all tests but one while it has a subscriber. Its subscribers go on at `b`, where another one is.
Subscribers are clean; or persistent, so that Redis puts messages into their queues; or persistent with a maximum packet
size, so that their node does.
"""

from collections.abc import Callable

import pytest

from flockmq._speedups.codec.packets import Connect, Packet, Puback, Pubrec
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import History
from tests.conftest import StartCluster
from tests.faults.client import FaultClient, Fleet
from tests.faults.cluster_kill_points import DIRECT_POINTS, LEASE_POINTS, RETURN_POINTS, SHARED_POINTS
from tests.faults.cluster_load import CLUSTER_SETTINGS
from tests.faults.failure import failure
from tests.faults.kill_points import ARM
from tests.harness.cluster_process import ClusterProcess

GROUP = "$share/g/t/#"
SETTINGS = {**CLUSTER_SETTINGS, "shared.window": 4, "shared.redispatch": 0.3}
ROUNDS = 40  # after which a node should have come to its point
SUBSCRIBERS = pytest.mark.parametrize("kind", ["persistent", "leasing", "clean"])
QOS = pytest.mark.parametrize("qos", [1, 2])


class LeasingClient(FaultClient):
    """A client that does not take packets of any size: its node gives it messages that are assigned."""

    def send(self, packet: Packet) -> None:
        if isinstance(packet, Connect):
            packet.properties = {**packet.properties, "maximum_packet_size": 10_000}
        super().send(packet)


class Flow:
    """A publisher at `b`, a subscriber at `a`, which dies at the point, and one at `b`. `dying`: nodes with the
    point."""

    def __init__(self, cluster: ClusterProcess, kill_at: str, qos: int, kind: str, dying: str = "a") -> None:
        self.cluster = cluster
        self.qos = qos
        self.kind = kind
        self.persistent = kind != "clean"
        self.history = History()
        self.published = 0
        self.node = cluster["a"]
        self.dying = [cluster[name] for name in dying]
        for node in self.dying:
            node.module = ["tests.faults.cluster_kill_points", kill_at]
        cluster.start()
        self.publisher = FaultClient(self.history, "publisher")
        self.subscribers = [self.subscriber(name) for name in ("first", "second")]
        self.workers = {subscriber.client_id for subscriber in self.subscribers}
        self.fleet = Fleet(self.publisher, *self.subscribers)
        self.publisher.reconnect(cluster["b"].port)
        for subscriber, name in zip(self.subscribers, "ab", strict=True):
            subscriber.reconnect(cluster[name].port)
            self.join(subscriber)
        self.since = len(self.history.events)
        for node in self.dying:
            arming = FaultClient(self.history, "arming")
            arming.reconnect(node.port)
            arming.publish("armed", ARM, 1, retain=True)
            Fleet(arming).run(lambda: not arming.outgoing or self.node.died(), "PUBACK")  # noqa: B023
            arming.lose()

    def subscriber(self, name: str) -> FaultClient:
        if self.kind == "leasing":
            return LeasingClient(self.history, name, level=5)
        return FaultClient(self.history, name, clean=not self.persistent)

    def join(self, subscriber: FaultClient) -> None:
        """Subscribe, if the session is new."""
        subscriber.subscribe((GROUP, self.qos))
        self.fleet.run(lambda: not subscriber.subscriptions or subscriber.socket is None, "SUBACK")

    def publish(self, count: int) -> None:
        """Publish messages; they are acknowledged afterwards."""
        for _ in range(count):
            self.publisher.publish(f"t/{self.published % 3}", b"message %d" % self.published, self.qos)
            self.published += 1
        self.fleet.run(lambda: not self.publisher.outgoing or self.publisher.socket is None, "acknowledgements")

    def until_dead(self, provoke: Callable[[], None]) -> None:
        """Do this until a node has come to its point."""
        for _ in range(ROUNDS):
            if any(node.died() for node in self.dying):
                return
            provoke()
        assert any(node.died(5) for node in self.dying), "none came to that point"

    def steady(self) -> None:
        """Messages come, and are acknowledged."""
        self.publish(3)
        self.fleet.run_for(0.02)

    def absent(self) -> None:
        """A subscriber keeps its messages to itself, and goes away for longer than the grace time."""
        first = self.subscribers[0]
        first.silent = {Puback, Pubrec}
        self.publish(8)
        self.fleet.run_for(0.1)
        first.lose()
        self.fleet.run_for(0.6)
        first.silent.clear()
        if not self.node.died() and first.connect(self.node.port) and not self.persistent:
            self.join(first)

    def finish(self) -> None:
        """All go on at the other node. Every message has reached a subscriber, and QoS 2 no more than one of them."""
        for node in self.dying:
            node.module = ["flockmq.broker.cli"]
            if not node.died():
                node.kill()  # another one has come to the point
        if len(self.dying) > 1:
            self.cluster.start()
        for client in (*self.subscribers, self.publisher):
            client.silent.clear()
            client.lose()
            client.reconnect(self.cluster["b"].port)
            if client is not self.publisher and not self.persistent:
                self.join(client)
        self.publish(4)
        self.cluster.start()
        self.cluster.settle()
        last = b"message %d" % (self.published - 1)
        self.fleet.run(lambda: any(last in subscriber.taken for subscriber in self.subscribers), "the last")
        if self.persistent or self.qos == 1:
            self.fleet.run(lambda: not checker.undelivered(self.history, self.workers, self.since), "the group has all")
        else:  # messages begun with the clean subscriber that ended are discarded: no more than its windows
            self.fleet.run_for(1)
            most = 4 * (1 + sum(1 for event in self.history.events if type(event).__name__ == "Ended"))
            assert len(checker.undelivered(self.history, self.workers, self.since)) <= most
        self.fleet.run(lambda: not any(subscriber.unreleased for subscriber in self.subscribers), "PUBREL")
        findings = [*checker.doubled(self.history, self.workers), *checker.check(self.history)]
        assert findings == [], failure(findings, self.history, self.cluster.log_text())


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster(SETTINGS, running=False, nodes="ab")


@QOS
@SUBSCRIBERS
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("point", SHARED_POINTS)
def test_a_node_dies_while_it_gives_messages(
    cluster: ClusterProcess, point: str, count: int, kind: str, qos: int
) -> None:
    if point in LEASE_POINTS and kind == "persistent":
        pytest.skip("there are no assignments")
    if point in DIRECT_POINTS and kind != "persistent":
        pytest.skip("the node gives the messages")
    if point == "settled" and (kind != "clean" or qos == 2):
        pytest.skip("no assignment ends with an acknowledgement")
    if point in ("before-given", "given") and kind == "clean":
        pytest.skip("no assignment ends in a commit")
    flow = Flow(cluster, f"{point}:{count}", qos, kind)
    flow.until_dead(flow.steady)
    flow.finish()


@QOS
@SUBSCRIBERS
@pytest.mark.parametrize("point", RETURN_POINTS[:3])
def test_a_node_dies_while_messages_come_back(cluster: ClusterProcess, point: str, kind: str, qos: int) -> None:
    if point.startswith("grace") and kind == "clean":
        pytest.skip("a clean session has no grace time")
    dying = "ab" if point.startswith("grace") else "a"  # either node may do what is due
    flow = Flow(cluster, f"{point}:1", qos, kind, dying)
    flow.until_dead(flow.absent)
    flow.finish()


@QOS
@SUBSCRIBERS
def test_a_node_dies_while_it_buries_one_that_has_assignments(start_cluster: StartCluster, kind: str, qos: int) -> None:
    cluster = start_cluster(SETTINGS, running=False, nodes="abc")
    flow = Flow(cluster, "buried-given:1", qos, kind, "ab")  # one buries the third, the other one both
    third = flow.subscriber("third")
    flow.subscribers.append(third)
    flow.workers.add("third")
    flow.fleet.clients.append(third)
    keeper = FaultClient(flow.history, "keeper")  # all nodes die: a group of clean sessions would end with them
    flow.fleet.clients.append(keeper)
    keeper.reconnect(cluster["c"].port)
    flow.join(keeper)
    keeper.lose()
    third.silent = {Puback, Pubrec}
    third.reconnect(cluster["c"].port)
    flow.join(third)
    flow.publish(20)
    flow.fleet.run(lambda: bool(third.taken), "a message")
    cluster["c"].kill()
    assert all(node.died(20) for node in flow.dying), "they did not come to that point"
    flow.finish()


@QOS
@SUBSCRIBERS
@pytest.mark.parametrize("point", RETURN_POINTS[4:])
def test_a_node_dies_while_it_asks_for_messages(start_cluster: StartCluster, point: str, kind: str, qos: int) -> None:
    cluster = start_cluster(SETTINGS, running=False, nodes="ab", proxies=True)
    flow = Flow(cluster, f"{point}:1", qos, kind)

    def gap() -> None:
        flow.publish(4)
        flow.node.proxy.cut()
        flow.publish(4)
        flow.fleet.run_for(0.3)

    flow.until_dead(gap)
    flow.finish()
