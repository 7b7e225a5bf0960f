"""A backup under load, the loss of everything, a restore: clients go on, and the checker judges the whole history.

The clients stand still while the backup is made, with messages and handshakes under way in all states, and see nothing
that happened after it.
"""

from pathlib import Path

from tests.faults.cluster_load import CLUSTER_SETTINGS, ClusterLoad
from tests.faults.fault_node import FaultNode
from tests.faults.load import SETTINGS, Load
from tests.harness.cluster_process import ClusterProcess, new_seed
from tests.harness.command import flockmq
from tests.web.http_client import HttpClient

ROUNDS = 2


def test_a_node_is_restored(tmp_path: Path) -> None:
    node = FaultNode(tmp_path, settings={**SETTINGS, "http.listen": "127.0.0.1:0"})
    node.kill_at = "compacting:1"  # it compacts its store all the time
    load = Load(node, new_seed())
    load.start()
    for number in range(ROUNDS):
        load.run(1)
        backup, place = tmp_path / f"{number}.tar", tmp_path / f"restored-{number}"
        flockmq("backup", backup, HttpClient(node).url)
        node.kill()
        load.fleet.lose()
        place.mkdir()
        flockmq("restore", backup, f"sqlite:{place / 'flockmq.db'}")
        node.directory = place
        node.start()
    load.finish()
    assert node.stop() == 0
    node.check()


def test_a_cluster_is_restored(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, CLUSTER_SETTINGS, redis="always", orderly=False)
    with cluster.judged():
        load = ClusterLoad(cluster, new_seed())
        load.start()
        for number in range(ROUNDS):
            load.run(1)
            backup = tmp_path / f"{number}.tar"
            flockmq("backup", backup, cluster.redis.url)
            cluster.kill()
            load.fleet.lose()
            cluster.redis.wipe()
            flockmq("restore", backup, cluster.redis.url)
            cluster.start()
        load.finish()
        load.finish_twins()
