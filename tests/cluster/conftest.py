"""Clusters of real nodes over a real Redis, whose tests look at each node by itself."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster_process import ClusterProcess

StartCluster = Callable[..., ClusterProcess]


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts clusters: `start_cluster({"limits.max_inflight": 2}, nodes="ab")`. All are stopped and checked."""
    started: list[ClusterProcess] = []

    def start(settings: dict[str, object] | None = None, *, running: bool = True, **more: object) -> ClusterProcess:
        directory = tmp_path / f"cluster-{len(started)}"
        directory.mkdir()
        cluster = ClusterProcess(
            directory,
            {"mqtt.sys_interval": 0, **(settings or {})},
            orderly=False,
            **more,  # type: ignore[arg-type]
        )
        started.append(cluster)
        return cluster.start() if running else cluster

    yield start
    for cluster in started:
        try:
            cluster.close()
        except AssertionError:
            print(cluster.log_text())
            raise
        cluster.check()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    """Three nodes a, b and c with default settings."""
    return start_cluster()
