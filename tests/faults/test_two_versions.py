"""A cluster of nodes of this version and an earlier one, as in a rolling upgrade, under random faults (F31).

Each start of a node takes one of the two versions at random. The earlier one is built from the history of git, once.
FLOCKMQ_TEST_SECONDS is the duration of each test.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.cluster_load import CLUSTER_SETTINGS, ClusterLoad
from tests.faults.shared_load import SharedLoad
from tests.faults.test_shared_random_kills import SETTINGS, faults
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.kept import KEPT

ROOT = Path(__file__).resolve().parents[2]
EARLIER = "40663cc"  # revision 21 of the library in Redis: the oldest one with which nodes of this version are tried
ROUND = 30.0  # seconds, since a history is kept in memory

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


@pytest.fixture(scope="module")
def earlier() -> Path:
    """The tree of the earlier version, with its compiled modules."""
    tree = KEPT / "versions" / EARLIER
    if not (tree / ".built").exists():
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            pytest.skip(f"the history of git lacks {EARLIER}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "x"], cwd=tree, input=archive.stdout, check=True)
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree, check=True)
        (tree / ".built").touch()
    return tree


def choose_versions(cluster: ClusterProcess, rng: random.Random, earlier: Path) -> None:
    """Choose the version of each node's next start."""
    for node in cluster.nodes:
        node.variables = rng.choice(({}, {"PYTHONPATH": str(earlier)}))


def versions(cluster: ClusterProcess) -> int:
    """The number of different versions among the nodes."""
    return len({str(node.variables) for node in cluster.nodes})


def rounds() -> list[float]:
    """The seconds of each round."""
    seconds = float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    return [ROUND] * max(1, round(seconds / ROUND))


def test_groups(tmp_path: Path, earlier: Path) -> None:
    mixed = 0
    for seconds in rounds():
        seed = new_seed()
        directory = tmp_path / str(seed)
        directory.mkdir()
        cluster = ClusterProcess(directory, SETTINGS, keeps="always", proxies=True, orderly=False)
        load = SharedLoad(cluster, seed)
        choose_versions(cluster, load.rng, earlier)
        with cluster.judged():
            load.start()
            end = time.monotonic() + seconds
            for fault in faults(load):
                load.run(load.rng.choice((0.1, 0.3, 0.6)))
                if time.monotonic() >= end:
                    break
                mixed += versions(cluster) > 1
                choose_versions(cluster, load.rng, earlier)
                fault(load)
            load.finish()
        print(load.summary())
    assert mixed


def test_sessions(tmp_path: Path, earlier: Path) -> None:
    mixed = 0
    for seconds in rounds():
        seed = new_seed()
        directory = tmp_path / str(seed)
        directory.mkdir()
        cluster = ClusterProcess(directory, CLUSTER_SETTINGS, keeps="always", proxies=True, orderly=False)
        load = ClusterLoad(cluster, seed)
        choose_versions(cluster, load.rng, earlier)
        with cluster.judged():
            load.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                load.run(load.rng.choice((0.1, 0.4, 1.0)))
                running = [node for node in cluster.nodes if node.running]
                mixed += versions(cluster) > 1
                choose_versions(cluster, load.rng, earlier)
                if len(running) > 1:
                    load.kill_one()
                for node in cluster.nodes:
                    if not node.running:
                        node.start()
            load.finish()
            load.finish_twins()
        print(f"{load.kills} kills, {load.count} messages")
    assert mixed
