"""kill -9 of nodes at random moments under QoS 1 and 2 load, judged by the checker (F1).

A failing run prints its seed. FLOCKMQ_TEST_SEED repeats what the clients do, FLOCKMQ_TEST_SECONDS says how long the
long form lasts.
"""

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, ClusterLoad
from tests.harness.cluster_process import ClusterNode, ClusterProcess, new_seed


def pause(node: ClusterNode, seconds: float) -> None:
    """A node stands still."""
    node.signal(signal.SIGSTOP)
    time.sleep(seconds)
    node.signal(signal.SIGCONT)


def run(directory: Path, seed: int, seconds: float) -> None:
    """Some time of kills, pauses, cut links and restarts, and a good end."""
    cluster = ClusterProcess(directory, CLUSTER_SETTINGS, keeps="always", proxies=True, orderly=False)
    load = ClusterLoad(cluster, seed)
    rng = load.rng
    with cluster.judged():
        load.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            load.run(rng.choice((0.0, 0.1, 0.4, 1.0)))
            running = [node for node in cluster.nodes if node.running]
            dead = [node for node in cluster.nodes if not node.running]
            chance = rng.random()
            if chance < 0.5 and len(running) > 1:
                load.kill_one()
            elif chance < 0.6:
                rng.choice(running).proxy.cut()
            elif chance < 0.7:
                load.during(partial(pause, rng.choice(running), rng.choice((0.2, 2 * LEASE))))
            elif dead:
                rng.choice(dead).start()
        if not load.kills:  # chance would have it so
            load.kill_one()
            load.run(0.5)
        load.finish()
        load.finish_twins()
    print(f"{load.kills} kills, {load.count} messages, {len(load.history.events)} events")
    assert load.kills


def test_random_kills(tmp_path: Path) -> None:
    run(tmp_path, new_seed(), 8)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_random_kills_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    seed = new_seed()
    while time.monotonic() < end:  # in rounds, since a history is kept in memory
        print(f"FLOCKMQ_TEST_SEED={seed}")
        directory = tmp_path / str(seed)
        directory.mkdir()
        run(directory, seed, min(20.0, max(5.0, end - time.monotonic())))
        shutil.rmtree(directory)
        seed = seed % (1 << 32) + 1
