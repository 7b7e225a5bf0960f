"""The wall clocks of nodes and of Redis are stepped by hours while messages, sessions and wills run down: F19."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Connack, Packet, Puback, Publish
from tests.conftest import StartCluster
from tests.faults.fault_node import FaultNode
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_session
from tests.harness.wall_clock import WallClock

LONG, SHORT = 1000, 2  # seconds; longer and shorter than a test, both shorter than a step
LATE = 4  # seconds by which something may end late on a busy machine
STEPS = (5, -7)  # hours


class Lives:
    """Messages, sessions and wills of both kinds at some nodes, which take turns.

    Args:
        ports: of the nodes.
    """

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.number = 0
        self.watcher = self.client("watcher")
        self.watcher.subscribe(("will/#", 0))
        self.began = self.begun = 0.0  # before the first and after the last began to run down

    def client(self, client_id: str, **more: object) -> SocketClient:
        """A client of level 5 at the next node."""
        self.number += 1
        client = SocketClient(self.ports[self.number % len(self.ports)], client_id, level=5, **more)
        assert isinstance(client.connack, Connack) and client.connack.reason_code == 0, client.connack
        return client

    def resume(self, client_id: str) -> SocketClient:
        """A client whose session may be there."""
        return self.client(client_id, clean_start=False, properties={"session_expiry_interval": LONG})

    def begin(self) -> None:
        """All begins to run down."""
        self.began = time.monotonic()
        for seconds in (LONG, SHORT):
            with_will = {"will_topic": f"will/{seconds}", "will_properties": {"will_delay_interval": seconds}}
            session = {"properties": {"session_expiry_interval": seconds}}
            self.client(f"session {seconds}", **session).close()
            properties = {"session_expiry_interval": LONG}
            self.client(f"will {seconds}", properties=properties, **with_will).socket.close()
        reader = self.resume("reader")
        reader.subscribe(("queue", 1))
        reader.close()
        writer = self.client("writer")
        for packet_id, seconds in enumerate((LONG, SHORT), 1):
            expiry = {"message_expiry_interval": seconds}
            name = str(seconds).encode()
            writer.send(
                Publish("queue", name, 1, packet_id=packet_id, properties=expiry),
                Publish(f"kept/{seconds}", name, retain=True, properties=expiry),
            )
            assert isinstance(writer.receive(), Puback)
        writer.close()
        self.begun = time.monotonic()

    def check(self) -> None:
        """The short ones end in time, the long ones live."""
        packet = self.watcher.receive()
        assert isinstance(packet, Publish) and packet.topic_name == f"will/{SHORT}"
        now = time.monotonic()
        assert now >= self.began + SHORT - 0.5
        assert now <= self.begun + SHORT + LATE
        until(lambda: not self.is_there(f"session {SHORT}"), "the short session has ended", LATE)
        # The clocks of nodes may be a little apart: each drops its own copy. A message that was sent does not expire.
        until(lambda: all(self.kept() == [f"kept/{LONG}"] for _ in self.ports), "the short one is gone", LATE)
        time.sleep(max(0.0, self.begun + SHORT + 1 - time.monotonic()))
        reader = self.resume("reader")
        (packet,) = self.publications(reader)
        assert packet.payload == str(LONG).encode()
        assert LONG - 100 <= packet.properties["message_expiry_interval"] <= LONG + LATE
        assert self.is_there(f"session {LONG}")
        assert self.watcher.ping() == []  # neither the long will, nor anything twice

    def is_there(self, client_id: str) -> bool:
        """Whether a session is there. If not, asking makes none."""
        with self.client(client_id, clean_start=False, properties={"session_expiry_interval": 0}) as client:
            assert client.connack is not None
            return client.connack.session_present

    def kept(self) -> list[str]:
        """The topic names of the retained messages at the next node."""
        with self.client("new") as client:
            client.subscribe(("kept/#", 0))
            return [packet.topic_name for packet in self.publications(client)]

    @staticmethod
    def publications(client: SocketClient) -> list[Publish]:
        """All messages that a client has got."""

        def publication(packet: Packet) -> Publish:
            assert isinstance(packet, Publish)
            return packet

        return [publication(packet) for packet in client.ping()]


def shows(node: BrokerProcess, hours: int) -> bool:
    """Whether the wall clock of a node is wrong by so many hours: its log lines have its time."""
    found = datetime.fromisoformat(node.log[-1]["time"])
    return abs((found - datetime.now(found.tzinfo)).total_seconds() - hours * 3600) < 600


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultNode]:
    node = FaultNode(tmp_path, settings={"mqtt.sys_interval": 0, "log.level": "debug"})
    yield node
    assert node.stop() == 0
    node.check()


@pytest.mark.parametrize("hours", STEPS)
def test_the_clock_of_a_node_is_stepped(node: FaultNode, tmp_path: Path, hours: int) -> None:
    clock = WallClock(tmp_path / "clock")
    node.variables = clock.variables
    node.start()
    lives = Lives([node.port])
    lives.begin()
    clock.step(hours)
    lives.check()
    assert shows(node, hours)


@pytest.mark.parametrize("hours", STEPS)
@pytest.mark.parametrize("whose", ["redis", "all"])
def test_clocks_of_a_cluster_are_stepped(start_cluster: StartCluster, tmp_path: Path, whose: str, hours: int) -> None:
    """Of Redis, or of all, each to another time. No node is declared dead."""
    cluster = start_cluster({"cluster.lease": 1.5, "log.level": "debug"}, running=False, nodes="ab")
    clocks = {name: WallClock(tmp_path / name) for name in ("redis", "a", "b")}
    cluster.redis.variables = clocks["redis"].variables
    for node in cluster.nodes:
        node.variables = clocks[node.name].variables
    cluster.start()
    lives = Lives([node.port for node in cluster.nodes])
    cluster.settle()
    lives.begin()
    SocketClient(cluster["a"].port, "as configured", clean_start=False).close()
    with cluster.redis.client() as redis:
        until(lambda: stored_session(redis, "as configured").owner == b"")
    for name, other in {"redis": hours, "a": -hours, "b": 2 * hours}.items():
        if whose in (name, "all"):
            clocks[name].step(other)
    lives.check()
    check_clocks(cluster, whose, hours)
    with cluster.redis.client() as redis:  # as nodes with an expiry in their configuration do
        assert redis.fcall("flockmq_expire", 0, "mq:", "", LONG, 100) == 0
    assert [line for line in cluster.log if "dead" in line["event"] or "is away" in line["event"]] == []


def check_clocks(cluster: ClusterProcess, whose: str, hours: int) -> None:
    """The clocks were stepped: else the test would show nothing."""
    seconds, _ = cluster.redis.client().time()
    assert abs(seconds - time.time() - hours * 3600) < 600
    assert shows(cluster["a"], -hours if whose == "all" else 0)
