"""The clock of the cluster, as a node has it, and as Redis has it."""

import time

import pytest

from _speedups.cluster.journal import ClusterJournal
from cluster.membership import clock
from cluster.membership.clock import ClusterClock
from tests.harness.function_caller import Caller

DAY = 86400  # seconds


def test_time_counts_once_if_calls_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(clock, "_now", lambda: now)
    cluster_clock = ClusterClock(ClusterJournal(lambda: b""))
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
    """Also if its expiry is that of the configuration."""
    wall = int(time.time() * 1000)
    caller.redis.hset("mq:clock", mapping={"t": wall - 10 * DAY * 1000, "w": wall})  # the step was one of ten days
    epoch = caller.call("claim", b"n1", b"s", 1, 4, b"", 100, b"", 0)[0]
    caller.commit(releases=[[b"s", epoch, 0]])
    caller.redis.hset("mq:clock", mapping={"t": wall - 9.5 * DAY * 1000, "w": wall})
    assert caller.call("expire", b"n1", DAY, 100) == 0
    caller.redis.hset("mq:clock", mapping={"t": wall - 8.5 * DAY * 1000, "w": wall})
    assert caller.call("expire", b"n1", DAY, 100) == 1
    assert not caller.redis.exists("mq:s:s")
