"""kill -9 of a node at points of its talk with Redis; its clients go on at another: F2, G1, G3, A1, A2, A12."""

import pytest

from flockmq._speedups.codec.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import History, Taken
from tests.conftest import StartCluster
from tests.faults.client import FaultClient, Fleet
from tests.faults.cluster_kill_points import CLAIM_POINTS, COMMIT_POINTS
from tests.faults.cluster_load import CLUSTER_SETTINGS
from tests.faults.kill_points import ARM
from tests.harness.cluster_process import ClusterProcess

PLACES = ["aa", "ab", "ba"]  # nodes of the publisher and of the subscriber; a is killed


class Flow:
    """A persistent publisher and a persistent subscriber at two nodes, of which `a` dies."""

    def __init__(self, cluster: ClusterProcess, places: str, qos: int, kill_at: str = "", armed: bool = True) -> None:
        self.cluster = cluster
        self.qos = qos
        self.history = History()
        self.publisher = FaultClient(self.history, "publisher")
        self.subscriber = FaultClient(self.history, "subscriber")
        self.fleet = Fleet(self.publisher, self.subscriber)
        self.node = cluster["a"]
        if kill_at:
            self.node.module = ["tests.faults.cluster_kill_points", kill_at]
        cluster.start()
        self.publisher.reconnect(cluster[places[0]].port)
        self.subscriber.reconnect(cluster[places[1]].port)
        self.subscriber.subscribe(("t/#", qos))
        self.fleet.run(lambda: not self.subscriber.subscriptions, "SUBACK")
        if kill_at and armed:
            self.arm()

    def arm(self) -> None:
        """From here on the kill point counts."""
        arming = FaultClient(self.history, "arming")
        arming.reconnect(self.node.port)
        arming.publish("armed", ARM, 1, retain=True)
        Fleet(arming).run(lambda: not arming.outgoing or self.node.died(), "PUBACK")
        arming.lose()

    def saw(self, client: FaultClient, kind: type[Packet]) -> None:
        """Wait until a client has got a packet of this kind on this connection."""
        self.fleet.run(lambda: any(isinstance(packet, kind) for packet in client.seen), kind.__name__)

    def quiet(self, messages: list[bytes]) -> bool:
        """Whether all have been published and taken."""
        return not self.publisher.outgoing and self.subscriber.taken >= set(messages)

    def move(self) -> None:
        """A client of the dead node, or without its connection, goes on at the other."""
        for client in (self.subscriber, self.publisher):
            client.silent.clear()
        self.fleet.run_for(0.01)
        for client in (self.subscriber, self.publisher):
            client.lose()
            client.reconnect(self.cluster["b"].port)

    def finish(self, *messages: bytes) -> None:
        """All flows come to their end, nothing comes after them, and nothing is wrong."""
        self.publisher.publish("t/last", b"last", 1)
        self.fleet.run(lambda: not self.publisher.outgoing, "all acknowledged")
        self.fleet.run(lambda: self.subscriber.taken >= {*messages, b"last"}, "all delivered")
        self.fleet.run(lambda: not self.subscriber.unreleased, "all released")
        self.node.module = ["flockmq.broker.cli"]
        self.cluster.start()
        self.cluster.settle()
        self.fleet.lose()
        self.subscriber.reconnect(self.node.port)  # once more, where it all began
        self.cluster.settle()
        self.fleet.run_for(0)
        assert checker.check(self.history) == []
        taken = [event.payload for event in self.history.events if type(event).__name__ == "Taken"]
        if self.qos == 2:
            assert sorted(taken) == sorted({*messages, b"last", *taken})
        assert set(taken) == {*messages, b"last"}


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster(CLUSTER_SETTINGS, running=False, nodes="ab")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_node_dies_in_the_middle_of_a_commit(
    cluster: ClusterProcess, point: str, places: str, count: int, qos: int
) -> None:
    """The counts walk through the commits of one flow, and into the next."""
    flow = Flow(cluster, places, qos, f"{point}:{count}")
    messages: list[bytes] = []
    while not flow.node.died():
        messages.append(b"message %d" % len(messages))
        flow.publisher.publish("t/1", messages[-1], qos)
        if places == "ba" and len(messages) > 8:  # the node that takes part as a receiver has messages, too
            nudge(flow)
        flow.fleet.run(
            lambda: flow.node.died() or (not flow.publisher.outgoing and flow.subscriber.taken >= set(messages)),
            "death",
        )
    flow.move()
    flow.finish(*messages)


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("kind", ["message", "will"])
def test_a_node_dies_between_the_blocks_of_one_message(cluster: ClusterProcess, kind: str, count: int) -> None:
    """A part of the sessions has the message. The others get it, too, and all get it once."""
    flow = Flow(cluster, "ab", 2, f"half-sent:{count}", armed=False)
    b = cluster["b"].port
    receivers = [flow.subscriber, *(FaultClient(flow.history, f"receiver {i}", level=4 + i % 2) for i in range(4))]
    visitor = FaultClient(flow.history, "visitor", clean=True)
    mover = FaultClient(flow.history, "mover")
    flow.fleet.clients += [*receivers[1:], visitor, mover]
    for client in [*receivers[1:], visitor]:
        client.reconnect(b)
        client.subscribe(("t/#", 2))
    for client in [*receivers, visitor]:
        client.subscribe(("will", 2))
    flow.fleet.run(lambda: not any(client.subscriptions for client in flow.fleet.clients), "SUBACK")
    receivers[1].leave()
    payload = kind.encode()
    if kind == "will":
        mover.reconnect(flow.node.port, will=payload)
    flow.arm()
    if kind == "will":
        mover.lose()
    else:
        flow.publisher.publish("t/1", payload, 2)
    flow.fleet.run(flow.node.died, "death")
    receivers[1].reconnect(b)
    flow.publisher.lose()
    flow.publisher.reconnect(b)
    flow.fleet.run(lambda: all(payload in client.taken for client in [*receivers, visitor]), "all have it")
    flow.publisher.publish("t/1", b"last", 2)
    flow.fleet.run(lambda: all(b"last" in client.taken for client in [*receivers, visitor]), "all have the next one")
    flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    flow.fleet.run(lambda: not any(client.unreleased for client in flow.fleet.clients), "PUBREL")
    taken = [event for event in flow.history.events if isinstance(event, Taken)]
    assert len(set(taken)) == len(taken) == 2 * len([*receivers, visitor])
    assert checker.check(flow.history) == []


def nudge(flow: Flow) -> None:
    """Something is committed at node a."""
    client = FaultClient(History(), "nudge")
    if client.connect(flow.node.port):
        client.publish("nudge", b"", 1)
        Fleet(client).run(lambda: client.socket is None or not client.outgoing, "PUBACK")
        client.lose()


@pytest.mark.parametrize("present", [True, False], ids=["old session", "new session"])
@pytest.mark.parametrize("point", CLAIM_POINTS)
def test_a_node_dies_while_it_gets_or_gives_up_a_session(cluster: ClusterProcess, point: str, present: bool) -> None:
    """The client comes to the other node: Session Present is true, queued messages come, the will comes once."""
    flow = Flow(cluster, "bb", 2, f"{point}:1")
    mover = FaultClient(flow.history, "mover")
    flow.fleet.clients.append(mover)
    flow.subscriber.subscribe(("will", 2))
    flow.fleet.run(lambda: not flow.subscriber.subscriptions, "SUBACK")
    if present:
        mover.reconnect(cluster["b"].port)
        mover.subscribe(("t/#", 2))
        flow.fleet.run(lambda: not mover.subscriptions, "SUBACK")
        mover.leave()
        flow.publisher.publish("t/1", b"one", 2)
        flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    let_in = mover.connect(flow.node.port, will=b"will")
    if let_in:
        mover.lose()
    assert flow.node.died(20) or not present, "it did not come to that point"
    if not flow.node.died():
        flow.node.kill()
    while not mover.connect(cluster["b"].port):
        flow.fleet.run_for(0.1)
    flow.publisher.publish("t/2", b"two", 2)
    wanted = {b"one", b"two"} if present else set()
    flow.fleet.run(lambda: mover.taken >= wanted and not mover.unreleased, "what was queued")
    if let_in:
        flow.fleet.run(lambda: b"will" in flow.subscriber.taken, "the will")
    mover.leave()
    assert [line for line in checker.check(flow.history) if "I2 subscriber got b'will" in line] == []
    flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    flow.cluster.settle("b")
    flow.fleet.run(lambda: b"two" in flow.subscriber.taken and not flow.subscriber.unreleased, "two")
    findings = checker.check(flow.history)
    assert findings == []


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("last", [Publish, Pubrec, Pubrel, Pubcomp], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("side", ["publisher", "subscriber"])
def test_kill_at_each_step_of_qos_2(cluster: ClusterProcess, side: str, last: type[Packet], places: str) -> None:
    """The last packet that one side sent or received is this one."""
    flow = Flow(cluster, places, 2)
    if side == "publisher":
        if last is Pubrec:
            flow.publisher.silent = {Pubrel}
        flow.publisher.publish("t/1", b"one", 2)
        if last in (Pubrec, Pubcomp):
            flow.saw(flow.publisher, last)
        elif last is Pubrel:
            flow.fleet.run(lambda: any(out.received for out in flow.publisher.outgoing.values()), "PUBREC")
    else:
        if last is Publish:
            flow.subscriber.silent = {Pubrec}
        elif last is Pubrel:
            flow.subscriber.silent = {Pubcomp}
        flow.publisher.publish("t/1", b"one", 2)
        flow.saw(flow.subscriber, Publish if last in (Publish, Pubrec) else Pubrel)
        flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    flow.node.kill()
    flow.move()
    flow.finish(b"one")


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("last", [Publish, Puback], ids=lambda kind: kind.__name__)
def test_kill_at_each_step_of_qos_1(cluster: ClusterProcess, last: type[Packet], places: str) -> None:
    flow = Flow(cluster, places, 1)
    if last is Publish:
        flow.subscriber.silent = {Puback}
    flow.publisher.publish("t/1", b"one", 1)
    flow.saw(flow.subscriber, Publish)
    if last is Puback:
        flow.saw(flow.publisher, Puback)
    flow.node.kill()
    flow.move()
    flow.finish(b"one")


def test_the_steps_have_names(cluster: ClusterProcess) -> None:
    """A node at a point that it never comes to lives."""
    flow = Flow(cluster, "aa", 2, "no-such-point:1")
    flow.publisher.publish("t/1", b"one", 2)
    flow.saw(flow.publisher, Pubcomp)
    assert not flow.node.died()
    flow.finish(b"one")
