"""Thousands of simulated clients on a cluster of which a node is killed: nothing acknowledged is lost."""

import os
import re
from pathlib import Path

import pytest

from tests.broker_process import until
from tests.cluster_process import ClusterProcess
from tests.conftest import StartCluster
from tests.loadtest.locust_process import LocustProcess

# Whoever loses its connection has a persistent session: it misses nothing, and makes no message two.
FLEET = """
duration = "{seconds} s"
spawn_rate = {rate}
sites = 50
lost_after = "20 s"
[sensor]
clients = {sensors}
interval = "{interval} s"
topic = "{{root}}/site-{{site}}/{{client}}/temperature"
qos = {{ 0 = 0.2, 1 = 0.5, 2 = 0.3 }}
persistent = true
[dashboard]
clients = 100
filters = ["{{root}}/site-{{site}}/+/temperature"]
qos = 2
persistent = true
"""


def hosts(cluster: ClusterProcess) -> str:
    """Where clients connect: every node, as there is no load balancer before them."""
    return ",".join(f"mqtt://127.0.0.1:{node.port}" for node in cluster.nodes)


def run(cluster: ClusterProcess, directory: Path, clients: int, seconds: int, rate: int) -> dict[str, int]:
    """Run that many clients, kill -9 a node in the middle; returns the events of a test that has passed."""
    # Some 500 messages a second, each to two subscribers.
    scenario = FLEET.format(seconds=seconds, sensors=clients - 100, interval=clients // 500, rate=rate)
    # From addresses of their own, so that they take no port that another test's server wants back.
    arguments = ("--headless", "--only-summary", "--source", "127.1.0.0/28")
    locust = LocustProcess(directory, scenario, hosts(cluster), *arguments, processes=2)
    try:
        until(lambda: re.search("All users spawned|Spawning is complete", locust.output), deadline=240)
        before = until(lambda: "deliver qos2" in (events := locust.events()) and events)
        cluster.nodes[0].kill()
        assert locust.process.wait(seconds + 200) == 0
    finally:
        print(locust.output)
        locust.close()
    events = locust.events()
    broken = sum(number for (name, _), number in locust.failures().items() if name == "connection")
    assert broken > clients // 10, "a third of them, if all had been ready"
    assert events["connect"] >= clients + broken
    for qos in (1, 2):
        assert events[f"publish qos{qos}"] > before.get(f"publish qos{qos}", 0), "clients went on"
    names = {name for name, _ in locust.failures()}
    assert names <= {"connection", "connect", "deliver qos0"}, locust.failures()
    return events


def test_no_acknowledged_message_is_lost_when_a_node_is_killed(start_cluster: StartCluster, tmp_path: Path) -> None:
    run(start_cluster(), tmp_path / "locust", clients=2000, seconds=16, rate=400)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_acknowledged_message_of_20000_clients_is_lost(start_cluster: StartCluster, tmp_path: Path) -> None:
    seconds = 110 + int(os.environ.get("FLOCKMQ_TEST_SECONDS", 600))  # starting them takes 100
    run(start_cluster(), tmp_path / "locust", clients=20_000, seconds=seconds, rate=200)
