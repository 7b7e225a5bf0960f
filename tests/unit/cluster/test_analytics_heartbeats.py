"""Heartbeats of nodes, as the analytics job looks at them: up to when the logs are complete."""

from flockmq.cluster.analytics.errors import RedisAway
from flockmq.cluster.analytics.log.heartbeats import DEAD, Heartbeats

FOREVER = float("inf")


class Nodes:
    """Nodes, and a job that looks twice a second."""

    def __init__(self, *names: bytes) -> None:
        self.now = 1000.0
        self.counts = dict.fromkeys(names, 0)
        self.alive = set(names)
        self.redis = True
        self.heartbeats = Heartbeats(self.read)

    def read(self) -> dict[bytes, bytes]:
        if not self.redis:
            raise RedisAway("away")
        return {name: b"%d" % count for name, count in self.counts.items()}

    def run(self, seconds: float, step: float = 0.5) -> float:
        """Let time pass; the time up to which the logs are complete, since the begin."""
        for _ in range(round(seconds / step)):
            self.now += step
            if self.redis:
                for name in self.alive & self.counts.keys():
                    self.counts[name] += 1
            self.heartbeats.look(self.now)
        return self.heartbeats.complete_until - 1000


def test_nodes_that_beat() -> None:
    nodes = Nodes(b"a", b"b")
    assert nodes.run(100) == FOREVER
    assert Nodes().run(100) == FOREVER, "a log without nodes, as of a test"


def test_a_node_that_has_lost_redis() -> None:
    """The clock stays at its last heartbeat until it is back, and has logged what waited."""
    nodes = Nodes(b"a", b"b")
    nodes.run(10)
    nodes.alive = {b"a"}
    assert nodes.run(4) == FOREVER
    assert nodes.run(30) == 10
    nodes.alive = {b"a", b"b"}
    assert nodes.run(4) == 10
    assert nodes.run(3) == FOREVER
    nodes.alive = {b"a"}
    assert nodes.run(10) == 51
    nodes.alive = {b"a", b"b"}
    nodes.run(2)
    nodes.alive = {b"a"}
    assert nodes.run(20) == 51, "it was not back for long enough"


def test_a_node_that_is_declared_dead() -> None:
    nodes = Nodes(b"a", b"b")
    nodes.run(10)
    nodes.alive = {b"a"}
    assert nodes.run(8) == 10
    del nodes.counts[b"b"]
    assert nodes.run(1) == FOREVER


def test_nodes_that_are_all_dead() -> None:
    """No node is left to declare it: windows end all the same, later."""
    nodes = Nodes(b"a")
    nodes.run(10)
    nodes.alive = set()
    assert nodes.run(DEAD - 10) == 10
    assert nodes.run(20) == FOREVER


def test_an_outage_of_redis() -> None:
    """The job sees none of the nodes then; they come back after it, one after the other."""
    nodes = Nodes(b"a", b"b")
    nodes.run(10)
    nodes.redis = False
    assert nodes.run(60) == 10
    nodes.redis, nodes.alive = True, {b"a"}
    assert nodes.run(10) == 10
    nodes.alive = {b"a", b"b"}
    assert nodes.run(4) == 10
    assert nodes.run(3) == FOREVER


def test_a_job_that_looks_seldom() -> None:
    """After a look that took long it cannot be sure whether nodes were away: it waits until they have settled."""
    nodes = Nodes(b"a")
    nodes.run(10)
    assert nodes.run(60, step=30) < FOREVER
    assert nodes.run(7) == FOREVER
