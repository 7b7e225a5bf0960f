"""kill -9 while a delayed will moves or falls due, and while a session expires: G6, I6."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Connack
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import History
from tests.conftest import StartCluster
from tests.faults.client import FaultClient, Fleet
from tests.faults.cluster_kill_points import COMMIT_POINTS, DUE_POINTS
from tests.faults.cluster_load import CLUSTER_SETTINGS
from tests.faults.fault_node import FaultNode
from tests.faults.kill_points import ARM, POINTS
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterNode, ClusterProcess
from tests.harness.socket_client import SocketClient

DELAY = 1  # seconds, of a will or of a session
LONG = 1000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultNode]:
    node = FaultNode(tmp_path)
    yield node
    node.died()
    status = node.stop()
    node.check()
    assert status == 0, node.log_text()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster(CLUSTER_SETTINGS, running=False, nodes="ab")


class Wills:
    """A watcher of level 5, and clients with wills; FaultClient checks their properties.

    Args:
        port: of the watcher's node.
    """

    def __init__(self, port: int) -> None:
        self.history = History()
        self.watcher = FaultClient(self.history, "watcher", level=5)
        self.fleet = Fleet(self.watcher)
        self.given: list[bytes] = []
        self.last: list[bytes] = []
        self.watcher.reconnect(port)
        self.watcher.subscribe(("will", 2))
        self.fleet.run(lambda: not self.watcher.subscriptions, "SUBACK")

    def client(self, port: int, *, delay: int, expiry: int = LONG) -> FaultClient:
        """A client with a will."""
        name = f"client {len(self.given)}"
        client = FaultClient(self.history, name, level=5, expiry=expiry)
        self.given.append(name.encode())
        assert client.connect(port, will=name.encode(), will_delay=delay)
        self.fleet.clients.append(client)
        return client

    def arm(self, node: FaultNode | ClusterNode, payload: bytes = ARM) -> None:
        """From here on the kill point of the node counts. Any other payload: the node commits something."""
        arming = FaultClient(History(), "arming")
        if arming.connect(node.port):
            arming.publish("armed", payload, 1, retain=True)
            Fleet(arming).run(lambda: not arming.outgoing or arming.socket is None or node.died(), "PUBACK")
            arming.lose()

    def lose_all(self) -> None:
        """All connections have ended."""
        self.fleet.lose()

    def all_came(self, port: int) -> None:
        """The watcher is back; each will comes to it once."""
        if self.watcher.socket is None:
            self.watcher.reconnect(port)
        self.fleet.run(lambda: self.watcher.taken >= set(self.given) and not self.watcher.unreleased, "wills")
        self.last.append(b"last %d" % len(self.last))
        self.watcher.publish("will", self.last[-1], 2)
        self.fleet.run(lambda: self.last[-1] in self.watcher.taken and not self.watcher.outgoing, "last")
        assert checker.check(self.history) == []
        assert self.watcher.taken == {*self.last, *self.given}


# ---- one node ----


def is_over(port: int, client_id: str) -> bool:
    """Whether a session has ended. Asking makes none that outlives its connection."""
    with SocketClient(port, client_id, level=5, clean_start=False) as client:
        assert isinstance(client.connack, Connack)
        return not client.connack.session_present


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("moment", ["moved", "due", "session ends"])
def test_a_node_dies_with_a_delayed_will(node: FaultNode, moment: str, point: str, count: int) -> None:
    """The counts walk through the blocks in which the will begins to wait, or is published, and into the next."""
    node.kill_at = f"{point}:{count}"
    node.start()
    wills = Wills(node.port)
    ends = moment == "session ends"
    client = wills.client(node.port, delay=LONG if ends else DELAY, expiry=DELAY if ends else LONG)
    if moment == "moved":
        wills.arm(node)
    lost = time.monotonic()
    client.lose()
    if moment != "moved":
        wills.arm(node)
    while not node.died():
        wills.fleet.run_for(0.05)
        if moment == "moved" or wills.watcher.taken:
            wills.arm(node, b"more")
    wills.lose_all()
    node.kill_at = ""
    node.start()
    wills.all_came(node.port)
    assert time.monotonic() - lost >= DELAY - 0.01
    assert is_over(node.port, client.client_id) == ends
    wills.lose_all()
    node.kill()
    node.start()
    wills.all_came(node.port)


# ---- a cluster ----


def bring_back(cluster: ClusterProcess) -> None:
    """Nodes that have died run again, and die at no point."""
    for node in cluster.nodes:
        node.module = ["flockmq.broker.cli"]
    cluster.start()
    cluster.settle()


def check_end(cluster: ClusterProcess, wills: Wills) -> None:
    """All wills have come, and Redis has nothing of them."""
    bring_back(cluster)
    wills.all_came(cluster["b"].port)
    redis = cluster.redis.client()
    assert not redis.exists("mq:delayed", "mq:delayed:wills")
    until(lambda: not list(redis.scan_iter("mq:wills:*")), "all wills are settled")


@pytest.mark.parametrize("point", COMMIT_POINTS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_node_dies_while_a_will_begins_to_wait(cluster: ClusterProcess, point: str, count: int) -> None:
    node = cluster["a"]
    node.module = ["tests.faults.cluster_kill_points", f"{point}:{count}"]
    cluster.start()
    wills = Wills(cluster["b"].port)
    client = wills.client(node.port, delay=DELAY)
    wills.arm(node)
    lost = time.monotonic()
    client.lose()
    while not node.died():
        wills.fleet.run_for(0.05)
        wills.arm(node, b"more")
    wills.fleet.run(lambda: bool(wills.watcher.taken), "the will")
    assert time.monotonic() - lost >= DELAY - 0.01
    check_end(cluster, wills)


@pytest.mark.parametrize("ends", [False, True], ids=["will due", "session ends"])
@pytest.mark.parametrize("point", DUE_POINTS)
def test_a_node_dies_with_what_is_due(cluster: ClusterProcess, point: str, ends: bool) -> None:
    """Either of the nodes may be given a will, so there are wills until the node with the kill point dies."""
    node = cluster["a"]
    node.module = ["tests.faults.cluster_kill_points", f"{point}:1"]
    cluster.start()
    wills = Wills(cluster["b"].port)
    wills.arm(node)
    while not node.died():
        client = wills.client(cluster["b"].port, delay=LONG if ends else DELAY, expiry=DELAY if ends else LONG)
        client.lose()
        wills.fleet.run(lambda: node.died() or wills.watcher.taken >= set(wills.given), "the will, or death")
    wills.fleet.run(lambda: wills.watcher.taken >= set(wills.given), "the will that the dead node had")
    wills.fleet.run_for(1.5 if ends else 0)  # a session ends up to a second after its interval
    assert is_over(cluster["b"].port, f"client {len(wills.given) - 1}") == ends
    check_end(cluster, wills)


@pytest.mark.parametrize("delay", [0, DELAY])
def test_a_node_dies_with_the_wills_of_a_dead_node(cluster: ClusterProcess, delay: int) -> None:
    cluster["a"].module = ["tests.faults.cluster_kill_points", "buried:1"]
    cluster.start()
    wills = Wills(cluster["a"].port)
    clients = [wills.client(cluster["b"].port, delay=each) for each in (0, delay)]
    wills.arm(cluster["a"])
    cluster["b"].kill()
    for client in clients:
        client.lose()
    assert cluster["a"].died(20)
    wills.lose_all()
    check_end(cluster, wills)
