"""A cluster of nodes of this version and an earlier one, as in a rolling upgrade, under random faults (F31).

Each start of a node takes one of the two versions at random. The earlier one is built from the history of git, once.
One node of a round begins with this version: it loads the function library, which then stays. Else all nodes may be of
the earlier one for a while, with its library, whose faults are found again.

FLOCKMQ_TEST_SECONDS is the duration of each test.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.faults.cluster_load import CLUSTER_SETTINGS, ClusterLoad
from tests.faults.shared_load import SharedLoad
from tests.faults.test_shared_random_kills import SETTINGS, faults
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.kept import KEPT

ROOT = Path(__file__).resolve().parents[2]
EARLIER = "40663cc"  # revision 21 of the library in Redis: the oldest one with which nodes of this version are tried
ROUND = 30.0  # seconds, since a history is kept in memory

AnyLoad = TypeVar("AnyLoad", ClusterLoad, SharedLoad)

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


class Upgrade:
    """Rounds in which each start of a node takes one of two versions.

    Args:
        directory: for the nodes of each round.
        settings: of the nodes.
        earlier: tree of the earlier version.
    """

    def __init__(self, directory: Path, settings: dict[str, Any], earlier: Path) -> None:
        self.directory = directory
        self.settings = settings
        self.earlier = earlier
        self.mixed = 0  # pauses in which nodes of both versions ran
        self.end = 0.0

    @contextmanager
    def begin(self, load_of: Callable[[ClusterProcess, int], AnyLoad]) -> Iterator[AnyLoad]:
        """A round: a load on a new cluster, started; its user finishes it."""
        seed = new_seed()
        directory = self.directory / str(seed)
        directory.mkdir()
        cluster = ClusterProcess(directory, self.settings, keeps="always", proxies=True, orderly=False)
        load = load_of(cluster, seed)
        self._choose_versions(load)
        cluster.nodes[0].variables = {}
        with cluster.judged():
            load.start()
            self.end = time.monotonic() + ROUND
            yield load

    def goes_on(self, load: AnyLoad, pauses: tuple[float, ...]) -> bool:
        """Let clients act until the next fault; returns False when the round has lasted long enough."""
        load.run(load.rng.choice(pauses))
        self.mixed += len({str(node.variables) for node in load.cluster.nodes}) > 1
        self._choose_versions(load)
        return time.monotonic() < self.end

    def _choose_versions(self, load: AnyLoad) -> None:
        for node in load.cluster.nodes:
            node.variables = load.rng.choice(({}, {"PYTHONPATH": str(self.earlier)}))


def rounds() -> range:
    """As many as fit into FLOCKMQ_TEST_SECONDS."""
    return range(max(1, round(float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60")) / ROUND)))


def test_groups(tmp_path: Path, earlier: Path) -> None:
    upgrade = Upgrade(tmp_path, SETTINGS, earlier)
    for _ in rounds():
        with upgrade.begin(SharedLoad) as load:
            fault = faults(load)
            while upgrade.goes_on(load, (0.1, 0.3, 0.6)):
                next(fault)(load)
            load.finish()
        print(load.summary())
    assert upgrade.mixed


def test_sessions(tmp_path: Path, earlier: Path) -> None:
    upgrade = Upgrade(tmp_path, CLUSTER_SETTINGS, earlier)
    for _ in rounds():
        with upgrade.begin(ClusterLoad) as load:
            while upgrade.goes_on(load, (0.1, 0.4, 1.0)):
                if sum(node.running for node in load.cluster.nodes) > 1:
                    load.kill_one()
                for node in load.cluster.nodes:
                    if not node.running:
                        node.start()
            load.finish()
            load.finish_twins()
        print(f"{load.kills} kills, {load.count} messages")
    assert upgrade.mixed
