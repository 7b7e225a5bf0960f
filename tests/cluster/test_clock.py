"""The clock of the cluster, as a node has it."""

import time

import pytest

from _speedups.cluster.journal import ClusterJournal
from cluster.membership import clock
from cluster.membership.clock import ClusterClock


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
