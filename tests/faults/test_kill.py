"""kill -9 at every step of the QoS 1 and QoS 2 flows, in both directions, and a restart on the same store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import History
from tests.faults.client import FaultClient, Fleet
from tests.faults.fault_node import FaultNode
from tests.faults.kill_points import ARM, COMPACTION_POINTS, POINTS
from tests.harness.socket_client import SocketClient


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultNode]:
    node = FaultNode(tmp_path)
    yield node
    node.died()
    status = node.stop()
    node.check()
    assert status == 0, node.log_text()


class Flow:
    """A persistent publisher and a persistent subscriber, on a node that was just started."""

    def __init__(self, node: FaultNode, qos: int, **publisher: bool) -> None:
        self.node = node
        self.qos = qos
        self.history = History()
        self.publisher = FaultClient(self.history, "publisher", **publisher)
        self.subscriber = FaultClient(self.history, "subscriber")
        self.fleet = Fleet(self.publisher, self.subscriber)
        node.start()
        assert self.publisher.connect(node.port)
        assert self.subscriber.connect(node.port)
        self.subscriber.subscribe(("t/#", qos))
        self.fleet.run(lambda: not self.subscriber.subscriptions, "SUBACK")

    def arm(self) -> None:
        """From here on the node's kill point counts."""
        arming = FaultClient(self.history, "arming")
        assert arming.connect(self.node.port)
        arming.publish("armed", ARM, 1, retain=True)
        Fleet(arming).run(lambda: not arming.outgoing or self.node.died(), "PUBACK")  # the first point may be here
        arming.lose()

    def saw(self, client: FaultClient, kind: type[Packet]) -> None:
        """Wait until a client has got a packet of this kind on this connection."""
        self.fleet.run(lambda: any(isinstance(packet, kind) for packet in client.seen), kind.__name__)

    def restart(self) -> None:
        """Both lose their connections; the node comes back, and so do they."""
        self.fleet.lose()
        self.node.kill_at = ""
        self.node.start()
        for client in (self.subscriber, self.publisher):
            client.silent.clear()
            assert client.connect(self.node.port)

    def finish(self, *messages: bytes) -> None:
        """All flows come to their end, nothing comes after them, and nothing is wrong."""
        self.publisher.publish("t/last", b"last", 1)
        self.fleet.run(lambda: not self.publisher.outgoing, "all acknowledged")
        self.fleet.run(lambda: self.subscriber.taken >= {*messages, b"last"}, "all delivered")
        self.fleet.run(lambda: not self.subscriber.unreleased, "all released")
        self.fleet.lose()
        assert self.subscriber.connect(self.node.port)
        with SocketClient(self.node.port, "ping") as probe:
            probe.ping()
        self.fleet.run_for(0)
        assert checker.check(self.history) == []
        taken = [event.payload for event in self.history.events if type(event).__name__ == "Taken"]
        if self.qos == 2:
            assert sorted(taken) == sorted({*messages, b"last", *taken})
        assert set(taken) == {*messages, b"last"}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("point", POINTS)
def test_the_node_dies_in_the_middle_of_its_work(node: FaultNode, point: str, count: int, qos: int) -> None:
    """The counts walk through the blocks of one flow, and into the next."""
    node.kill_at = f"{point}:{count}"
    flow = Flow(node, qos)
    flow.arm()
    messages: list[bytes] = []
    while not node.died():
        messages.append(b"message %d" % len(messages))
        flow.publisher.publish("t/1", messages[-1], qos)
        flow.fleet.run(
            lambda: node.died() or (not flow.publisher.outgoing and flow.subscriber.taken >= set(messages)), "death"
        )
    flow.restart()
    flow.finish(*messages)


@pytest.mark.parametrize("point", COMPACTION_POINTS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_node_dies_in_the_middle_of_a_compaction(node: FaultNode, point: str, count: int) -> None:
    node.kill_at = f"{point}:{count}"
    flow = Flow(node, 2)
    flow.subscriber.silent = {Pubcomp}
    messages = [b"message %d" % number for number in range(12)]
    for payload in messages[:5]:  # some are with the subscriber when the node dies, some wait
        flow.publisher.publish("t/1", payload, 2)
    flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    flow.subscriber.silent = {Pubrec}
    for payload in messages[5:]:
        flow.publisher.publish("t/1", payload, 2)
    flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    flow.arm()
    number = 0
    while not node.died():
        number += 1
        flow.publisher.publish(f"kept/{number % 5}", b"value %d" % number, 1, retain=True)
        flow.fleet.run(lambda: node.died() or not flow.publisher.outgoing, "death")
    flow.restart()
    flow.finish(*messages)


@pytest.mark.parametrize("last", [Publish, Pubrec, Pubrel, Pubcomp], ids=lambda kind: kind.__name__)
def test_kill_at_each_step_that_a_qos_2_publisher_sees(node: FaultNode, last: type[Packet]) -> None:
    """The last packet that was sent or received is this one."""
    flow = Flow(node, 2)
    if last is Pubrec:
        flow.publisher.silent = {Pubrel}
    flow.publisher.publish("t/1", b"one", 2)
    if last in (Pubrec, Pubcomp):
        flow.saw(flow.publisher, last)
    elif last is Pubrel:
        flow.fleet.run(lambda: any(out.received for out in flow.publisher.outgoing.values()), "PUBREC")
    node.kill()
    flow.restart()
    flow.finish(b"one")


@pytest.mark.parametrize("last", [Publish, Pubrec, Pubrel, Pubcomp], ids=lambda kind: kind.__name__)
def test_kill_at_each_step_that_a_qos_2_subscriber_sees(node: FaultNode, last: type[Packet]) -> None:
    flow = Flow(node, 2)
    if last is Publish:
        flow.subscriber.silent = {Pubrec}
    elif last is Pubrel:
        flow.subscriber.silent = {Pubcomp}
    flow.publisher.publish("t/1", b"one", 2)
    flow.saw(flow.subscriber, Publish if last in (Publish, Pubrec) else Pubrel)
    flow.fleet.run(lambda: not flow.publisher.outgoing, "PUBCOMP")
    node.kill()
    flow.restart()
    flow.finish(b"one")


@pytest.mark.parametrize("last", [Publish, Puback], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("side", ["publisher", "subscriber"])
def test_kill_at_each_step_of_qos_1(node: FaultNode, side: str, last: type[Packet]) -> None:
    flow = Flow(node, 1)
    if side == "subscriber" and last is Publish:
        flow.subscriber.silent = {Puback}
    flow.publisher.publish("t/1", b"one", 1)
    if side == "subscriber":
        flow.saw(flow.subscriber, Publish)
    elif last is Puback:
        flow.saw(flow.publisher, Puback)
    node.kill()
    flow.restart()
    flow.finish(b"one")


def test_many_kills_at_the_same_step(node: FaultNode) -> None:
    """A handshake that is half done stays half done, whatever number of times the node dies."""
    flow = Flow(node, 2)
    flow.subscriber.silent = {Pubcomp}
    flow.publisher.publish("t/1", b"one", 2)
    flow.saw(flow.subscriber, Pubrel)
    flow.subscriber.silent = {Pubrec, Pubcomp}
    flow.publisher.publish("t/1", b"two", 2)
    flow.fleet.run(lambda: flow.subscriber.taken == {b"one", b"two"} and not flow.publisher.outgoing, "two")
    for _ in range(4):
        node.kill()
        flow.fleet.lose()
        node.start()
        assert flow.publisher.connect(node.port)
        assert flow.subscriber.connect(node.port)
        flow.saw(flow.subscriber, Pubrel)
        flow.saw(flow.subscriber, Publish)
    node.kill()
    flow.restart()
    flow.finish(b"one", b"two")


# ---- wills, retained messages ----


@pytest.mark.parametrize("clean", [True, False])
def test_wills_of_connected_clients_are_published_once_at_the_restart(node: FaultNode, clean: bool) -> None:
    history = History()
    watcher = FaultClient(history, "watcher")
    clients = [FaultClient(history, f"client {number}", clean=clean) for number in range(6)]
    fleet = Fleet(watcher, *clients)
    node.start()
    assert watcher.connect(node.port)
    watcher.subscribe(("will", 2))
    fleet.run(lambda: not watcher.subscriptions, "SUBACK")
    for number, client in enumerate(clients):
        assert client.connect(node.port, will=b"will %d" % number)
    clients[0].leave()  # its will must never come
    clients[1].lose()  # its will comes now
    fleet.run(lambda: watcher.taken == {b"will 1"}, "the will of a lost connection")
    node.kill()
    fleet.lose()
    node.start()
    node.kill()  # perhaps before, perhaps after they were published
    node.start()
    assert watcher.connect(node.port)
    fleet.run(lambda: len(watcher.taken) == 5 and not watcher.unreleased, "wills")
    node.kill()  # and not a second time
    fleet.lose()
    node.start()
    assert watcher.connect(node.port)
    watcher.publish("will", b"last", 2)
    fleet.run(lambda: b"last" in watcher.taken and not watcher.outgoing, "last")
    assert checker.check(history) == []
    assert watcher.taken == {b"last", *(b"will %d" % number for number in range(1, 6))}


def test_retained_messages_are_kept(node: FaultNode) -> None:
    history = History()
    publisher = FaultClient(history, "publisher")
    node.start()
    fleet = Fleet(publisher)
    for life in range(3):
        assert publisher.connect(node.port)
        for number in range(40):
            payload = b"" if (number + life) % 4 == 0 else b"%d of life %d" % (number, life)
            publisher.publish(f"kept/{number}", payload, 1, retain=True)
        fleet.run(lambda: len(publisher.outgoing) < 20, "some PUBACKs")
        node.kill()
        fleet.lose()
        node.start()
        assert checker.retained(history, retained_values(node, history)) == []
    assert publisher.connect(node.port)
    fleet.run(lambda: not publisher.outgoing, "PUBACKs")
    values = retained_values(node, history)
    assert checker.retained(history, values) == []
    assert values == {f"kept/{number}": b"%d of life 2" % number for number in range(40) if (number + 2) % 4}


def retained_values(node: FaultNode, history: History) -> dict[str, bytes]:
    """The retained messages that a new subscriber is given."""
    with SocketClient(node.port, "new subscriber") as client:
        client.subscribe(("kept/#", 0))
        return {packet.topic_name: packet.payload for packet in client.ping() if isinstance(packet, Publish)}
