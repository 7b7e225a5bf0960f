"""Subscribers, nodes and Redis die at random moments under groups of workers: nothing is lost, nothing of QoS 2
doubled.

A failing run prints its seed. FLOCKMQ_TEST_SEED repeats what the clients do. FLOCKMQ_TEST_SECONDS is the duration of
the long form: a million messages are some ten minutes on a quiet machine.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, meanwhile
from tests.faults.shared_load import WINDOW, SharedLoad
from tests.faults.test_cluster_random_kills import pause
from tests.harness.cluster_process import ClusterProcess, new_seed

SETTINGS = {
    **CLUSTER_SETTINGS,
    "analytics.topics": "",
    "shared.window": WINDOW,
    "shared.redispatch": 0.3,
    "http.listen": "127.0.0.1:0",
}


def kill_a_node(load: SharedLoad) -> None:
    running = [node for node in load.cluster.nodes if node.running]
    if len(running) > 1:
        load.rng.choice(running).kill()


def start_nodes(load: SharedLoad) -> None:
    meanwhile(load.act, lambda: load.cluster.start() and None)


def restart_redis(load: SharedLoad) -> None:
    def restart() -> None:
        load.cluster.redis.kill()
        load.cluster.redis.start()

    meanwhile(load.act, restart)


def cut_a_link(load: SharedLoad) -> None:
    load.rng.choice([node for node in load.cluster.nodes if node.running]).proxy.cut()


def stop_a_node(load: SharedLoad) -> None:
    node = load.rng.choice([node for node in load.cluster.nodes if node.running])
    meanwhile(load.act, partial(pause, node, load.rng.choice((0.2, 2 * LEASE))))


def lose_subscribers(load: SharedLoad) -> None:
    for subscriber in load.subscribers:
        if load.rng.random() < 0.5:
            subscriber.lose()


FAULTS = (kill_a_node, start_nodes, restart_redis, cut_a_link, stop_a_node, lose_subscribers, kill_a_node, start_nodes)


def faults(load: SharedLoad) -> Iterator[Callable[[SharedLoad], None]]:
    """All of them in random order, over and over."""
    while True:
        yield from load.rng.sample(FAULTS, len(FAULTS))


def run(directory: Path, seed: int, seconds: float) -> int:
    """Some time of faults, and a good end; returns the number of messages."""
    cluster = ClusterProcess(directory, SETTINGS, redis="always", proxies=True, orderly=False)
    load = SharedLoad(cluster, seed)
    with cluster.judged():
        load.start()
        end = time.monotonic() + seconds
        for fault in faults(load):
            load.run(load.rng.choice((0.1, 0.3, 0.6)))
            if time.monotonic() >= end:
                break
            fault(load)
        load.finish()
    print(load.summary())
    return load.count


def test_random_kills(tmp_path: Path) -> None:
    assert run(tmp_path, new_seed(), 6) > 300


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_random_kills_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    seed = new_seed()
    count = rounds = 0
    while time.monotonic() < end:  # in rounds, since a history is kept in memory
        print(f"FLOCKMQ_TEST_SEED={seed}")
        directory = tmp_path / str(seed)
        directory.mkdir()
        count += run(directory, seed, min(40.0, max(5.0, end - time.monotonic())))
        rounds += 1
        shutil.rmtree(directory)
        seed = seed % (1 << 32) + 1
    print(f"{count} messages in {rounds} rounds")
