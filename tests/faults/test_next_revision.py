"""A cluster of nodes of this revision of the function library and the next one, as in a rolling upgrade (F31).

Each start of a node takes one of the two at random, under random faults. FLOCKMQ_TEST_SECONDS is the duration of the
long form.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.cluster_load import CLUSTER_SETTINGS, ClusterLoad
from tests.faults.next_revision import next_library
from tests.faults.shared_load import SharedLoad
from tests.faults.test_shared_random_kills import SETTINGS, faults
from tests.harness.cluster_process import ClusterProcess, new_seed

THIS, NEXT = ["flockmq.broker.cli"], ["tests.faults.next_revision"]
ROUND = 30.0  # seconds, since a history is kept in memory
SHORT = 4.0

Kind = Callable[[Path, int, float], None]


def choose_revisions(load: ClusterLoad | SharedLoad) -> None:
    """Give each node one of the two for its next start."""
    for node in load.cluster.nodes:
        node.module = load.rng.choice((THIS, NEXT))


@contextmanager
def started(load: ClusterLoad | SharedLoad) -> Iterator[None]:
    """Start a load on a cluster of both; afterwards Redis has the next revision, and every node serves its clients."""
    choose_revisions(load)
    load.cluster.nodes[0].module, load.cluster.nodes[1].module = THIS, NEXT
    with load.cluster.judged():
        load.start()
        yield
        with load.cluster.redis.client(decode_responses=False) as client:
            (library,) = client.execute_command("FUNCTION", "LIST", "WITHCODE")
        assert library[b"library_code"] == next_library()


def groups(directory: Path, seed: int, seconds: float) -> None:
    """Subscribers, nodes, links and Redis die."""
    load = SharedLoad(ClusterProcess(directory, SETTINGS, redis="always", proxies=True, orderly=False), seed)
    with started(load):
        end = time.monotonic() + seconds
        for fault in faults(load):
            load.run(load.rng.choice((0.1, 0.3, 0.6)))
            if time.monotonic() >= end:
                break
            choose_revisions(load)
            fault(load)
        load.finish()


def sessions(directory: Path, seed: int, seconds: float) -> None:
    """Nodes die and return."""
    load = ClusterLoad(ClusterProcess(directory, CLUSTER_SETTINGS, redis="always", proxies=True, orderly=False), seed)
    with started(load):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            load.run(load.rng.choice((0.1, 0.4, 1.0)))
            choose_revisions(load)
            if sum(node.running for node in load.cluster.nodes) > 1:
                load.kill_one()
            for node in load.cluster.nodes:
                if not node.running:
                    node.start()
        load.finish()
        load.finish_twins()


@pytest.mark.parametrize("kind", [groups, sessions])
def test_two_revisions(tmp_path: Path, kind: Kind) -> None:
    kind(tmp_path, new_seed(), SHORT)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", [groups, sessions])
def test_two_revisions_for_long(tmp_path: Path, kind: Kind) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    while time.monotonic() < end:
        directory = tmp_path / "round"
        directory.mkdir()
        kind(directory, new_seed(), ROUND)
        shutil.rmtree(directory)
