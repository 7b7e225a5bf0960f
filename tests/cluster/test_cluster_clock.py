"""The clock of the cluster, as a node has it, and as Redis has it."""

import time
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import unpack
from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.cluster.membership import clock
from flockmq.cluster.membership.clock import ClusterClock
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.function_caller import Caller
from tests.harness.socket_client import SocketClient

DAY = 86400  # seconds


def test_time_counts_once_if_calls_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(clock, "_now", lambda: now)
    cluster_clock = ClusterClock(ClusterJournal(lambda ahead: b""))
    now += 0.5
    first, until_first = cluster_clock.elapsed()
    now += 0.5  # the reply has not come yet
    second, until_second = cluster_clock.elapsed()
    assert (first, second) == (500, 1000)
    cluster_clock.count(until_first)
    cluster_clock.count(until_second)
    now += 0.25
    assert cluster_clock.elapsed()[0] == 250
    cluster_clock.count(until_first)  # a reply that was long under way
    assert cluster_clock.elapsed()[0] == 250


def test_a_step_of_the_wall_clock_ends_no_session(caller: Caller) -> None:
    """Also if its expiry stands in the configuration."""
    wall = int(time.time() * 1000)
    caller.redis.hset("mq:clock", mapping={"t": wall - 10 * DAY * 1000, "w": wall})  # the step was one of ten days
    epoch = caller.claimed(b"n1", b"s", 1, 4, b"", 100, b"", 0, "", 0)[0]
    caller.commit(releases=[[b"s", epoch, 0]])
    caller.redis.hset("mq:clock", mapping={"t": wall - 9.5 * DAY * 1000, "w": wall})
    assert caller.call("expire", b"n1", DAY, 100) == 0
    caller.redis.hset("mq:clock", mapping={"t": wall - 8.5 * DAY * 1000, "w": wall})
    assert caller.call("expire", b"n1", DAY, 100) == 1
    assert not caller.redis.exists("mq:s:s")


# ---- time in which no node lives ----

HOUR = 3600 * 1000  # milliseconds


class Off:
    """All nodes were off for an hour, by the wall clock of Redis; nodes `n1` and `n2` have not left."""

    def __init__(self, caller: Caller) -> None:
        self.caller, self.redis = caller, caller.redis
        for node in (b"n1", b"n2"):
            caller.call("beat", node, 0, [])
        self.before = self.clock
        self.set_back(HOUR)

    @property
    def clock(self) -> int:
        return int(self.redis.hget("mq:clock", "t") or 0)

    @property
    def passed(self) -> int:
        """Seconds that the clock has counted."""
        return round((self.clock - self.before) / 1000)

    def set_back(self, milliseconds: int) -> None:
        """The last heartbeat is older."""
        self.redis.hset("mq:clock", "w", int(time.time() * 1000) - milliseconds)

    def join(self, node: bytes) -> int:
        return int(self.caller.call("join", node, 1, [], b"mq:", b"")[2])

    def beat(self, node: bytes, elapsed: int = 0) -> None:
        self.caller.call("beat", node, elapsed, [])

    def bury(self, node: bytes) -> None:
        self.caller.call("bury", b"n3", node, self.redis.hget("mq:nodes", node), 0)


@pytest.fixture
def off(caller: Caller) -> Off:
    return Off(caller)


def test_it_counts_when_all_that_had_not_left_are_declared_dead(off: Off) -> None:
    assert off.join(b"n3") == 0
    off.beat(b"n3")
    off.join(b"n4")  # it finds a heartbeat
    off.bury(b"n1")
    assert off.passed == 0
    off.bury(b"n2")
    assert off.passed == 3600
    off.beat(b"n3")
    assert off.passed == 3600
    assert off.redis.hmget("mq:clock", "off", "of") == [None, None]


@pytest.mark.parametrize("end", ["dead", "back"])
def test_nodes_are_sent_the_clock_when_it_makes_a_step(off: Off, end: str) -> None:
    """A node that had joined before went on with its clock: it sent messages with an hour too much to live."""
    off.join(b"n3")
    channel = off.redis.pubsub()
    channel.subscribe("mq:all")
    until(lambda: channel.get_message())
    off.bury(b"n1")
    if end == "dead":
        off.bury(b"n2")
    else:
        off.beat(b"n2", HOUR + 250)
    sent = [unpack(message["data"]) for message in iter(lambda: channel.get_message(timeout=0.5), None)]
    assert [b"clock", off.clock] in sent
    assert off.passed >= 3600


def test_it_counts_at_once_when_all_have_left(off: Off) -> None:
    for node in (b"n1", b"n2"):
        off.caller.call("leave", node)
    assert off.join(b"n3") == pytest.approx(HOUR, abs=5000)
    assert off.passed == 3600


def test_it_adds_up_when_the_first_to_join_dies(off: Off) -> None:
    off.join(b"n3")
    off.beat(b"n3")
    off.set_back(HOUR)
    off.join(b"n4")
    for node in (b"n1", b"n2", b"n3"):
        off.caller.call("bury", b"n4", node, off.redis.hget("mq:nodes", node), 0)
    assert off.passed == 7200


def test_a_step_of_the_wall_clock_counts_nothing_while_a_node_lives(off: Off) -> None:
    off.join(b"n3")
    off.beat(b"n2", 250)
    assert off.passed == 0
    off.bury(b"n1")
    assert off.passed == 0


def test_a_node_that_has_lived_brings_the_time_that_it_has_measured(off: Off) -> None:
    """Redis was away; another node joined before."""
    off.join(b"n3")
    off.beat(b"n3", 100)
    off.beat(b"n1", 20_000)
    assert off.passed == 20


def test_a_node_that_leaves_has_lived(off: Off) -> None:
    off.join(b"n3")
    off.caller.call("leave", b"n1")
    off.bury(b"n2")
    assert off.passed == 0


@pytest.mark.parametrize("left", [False, True])
def test_it_is_bounded_and_never_negative(off: Off, left: bool) -> None:
    for milliseconds, seconds in ((-HOUR, 0), (10_000 * HOUR * 24, 366 * 86400)):
        nodes = list(off.redis.hkeys("mq:nodes"))
        if left:
            for node in nodes:
                off.caller.call("leave", node)
        off.before = off.clock
        off.set_back(milliseconds)
        new = b"m%d" % seconds
        off.join(new)
        if not left:
            for node in nodes:
                off.caller.call("bury", new, node, off.redis.hget("mq:nodes", node), 0)
        assert off.passed == seconds


@pytest.mark.parametrize("killed", [True, False])
def test_deadlines_count_the_time_in_which_all_nodes_were_off(start_cluster: StartCluster, killed: bool) -> None:
    cluster = start_cluster(nodes="ab")
    five: dict[str, Any] = {"level": 5, "clean_start": False}
    for name, seconds in (("short", 30), ("long", 100_000)):
        interval = {"session_expiry_interval": seconds}
        with SocketClient(cluster["a"].port, name, properties=interval, **five) as client:
            client.subscribe(("t", 1), ("later", 1))
    cluster.settle()
    with SocketClient(cluster["b"].port, "publisher", level=5) as publisher:
        for number, (topic, expiry) in enumerate((("t", 600), ("t", 100_000), ("$delayed/1800/later", 0)), 1):
            properties = {"message_expiry_interval": expiry} if expiry else {}
            publisher.send(Publish(topic, b"%d" % number, 1, packet_id=number, properties=properties))
            assert publisher.receive() == Puback(number)
    if killed:
        for node in cluster.nodes:
            node.kill()
    else:
        cluster.stop()
    with cluster.redis.client() as redis:
        redis.hset("mq:clock", "w", int(redis.hget("mq:clock", "w")) - HOUR)  # as if it had passed
    cluster["a"].start()
    line = cluster.wait_for_log("no node lived for a while: deadlines count that time by the wall clock of Redis")
    assert 3590 < line["seconds"] < 3700
    with SocketClient(cluster["a"].port, "long", properties={"session_expiry_interval": 100_000}, **five) as client:
        found = []
        while len(found) < 2:
            packet = client.receive()
            assert isinstance(packet, Publish)
            client.send(Puback(packet.packet_id))
            found.append(packet.payload)
        assert found == [b"2", b"3"]
    with cluster.redis.client() as redis:
        until(lambda: not redis.exists("mq:s:short"))
