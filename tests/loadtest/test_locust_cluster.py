"""Thousands of simulated clients on a cluster of which a node is killed: nothing acknowledged is lost."""

import os
import signal
import time
from pathlib import Path

import pytest

from flockmq.loadtest.swarm.scenario import read
from tests.conftest import StartBalanced, StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterNode
from tests.loadtest.locust_process import LocustProcess

# A client that loses its connection has a persistent session: it misses nothing, and makes no message two.
FLEET = """
duration = "10 h"
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

# Workers die, and so does a node; each group does all work all the same.
WORKERS = """
duration = "10 h"
spawn_rate = 200
lost_after = "20 s"
[sensor]
clients = 100
interval = "500 ms"
topic = "{{root}}/work/{{client}}"
qos = {qos}
persistent = true
wait = true
[worker]
clients = 20
filters = ["$share/billing/{{root}}/work/#", "$share/archive/{{root}}/work/#"]
qos = {qos}
persistent = true
dies_every = "2 s"
away = "500 ms"
"""


def run(hosts: str, victim: ClusterNode, directory: Path, clients: int, rate: int, seconds: int = 0) -> None:
    """Run that many clients, kill -9 a node, go on, at least for so many seconds: the test has to pass."""
    # Some 500 messages a second, each to two subscribers.
    scenario = FLEET.format(sensors=clients - 100, interval=clients // 500, rate=rate)
    # From other addresses, so that they take no port that another test's server binds again.
    arguments = ("--headless", "--only-summary", "--source", "127.1.0.0/28")
    locust = LocustProcess(directory, scenario, hosts, *arguments, processes=2)
    try:
        until(lambda: locust.events().get("connect", 0) >= clients)  # "complete" counts users that were asked for
        until(lambda: locust.events().get("deliver qos2"))
        victim.kill()
        before = locust.events()
        until(lambda: all(went_on(locust.events(), before, qos) for qos in (1, 2)))
        time.sleep(seconds)
        locust.process.send_signal(signal.SIGINT)
        assert locust.process.wait(200) == 0
    finally:
        print(locust.output)
        locust.close()
    broken = sum(number for (name, _), number in locust.failures().items() if name == "connection")
    assert broken > clients // 10, "a third of them"
    assert locust.events()["connect"] >= clients + broken
    names = {name for name, _ in locust.failures()}
    assert names <= {"connection", "connect", "deliver qos0"}, locust.failures()


def went_on(events: dict[str, int], before: dict[str, int], qos: int) -> bool:
    """Whether the clients have gone on publishing."""
    name = f"publish qos{qos}"
    return events.get(name, 0) > before.get(name, 0) + 500


def test_no_acknowledged_message_is_lost_when_a_node_is_killed(start_balanced: StartBalanced, tmp_path: Path) -> None:
    cluster = start_balanced()
    run(f"mqtt://127.0.0.1:{cluster.port}", cluster["a"], tmp_path / "locust", clients=2000, rate=400)


@pytest.mark.parametrize("qos", [1, 2])
def test_all_work_is_done_when_workers_and_a_node_are_killed(
    start_balanced: StartBalanced, tmp_path: Path, qos: int
) -> None:
    """QoS 2: exactly once."""
    cluster = start_balanced()
    arguments = ("--headless", "--only-summary", "--source", "127.1.0.0/28")
    scenario, host = WORKERS.format(qos=qos), f"mqtt://127.0.0.1:{cluster.port}"
    locust = LocustProcess(tmp_path / "locust", scenario, host, *arguments, processes=2)
    work, published = f"work qos{qos}", f"publish qos{qos}"
    try:
        until(lambda: locust.events().get(work))
        cluster["a"].kill()
        before = locust.events()
        until(lambda: locust.events().get(work, 0) > before[work] + 1000)
        locust.process.send_signal(signal.SIGINT)
        assert locust.process.wait(200) == 0
    finally:
        print(locust.output)
        locust.close()
    events = locust.events()
    assert events["death"] > 10
    assert {name for name, _ in locust.failures()} <= {"connection", "connect"}, locust.failures()
    assert events[work] >= 2 * events[published] + events.get("done twice", 0) - 200, events  # the first of each
    assert ("done twice" in events) <= (qos == 1)


def test_the_scenario_of_workers_passes_in_the_cluster_of_compose(
    start_balanced: StartBalanced, tmp_path: Path
) -> None:
    """The scenario that is delivered, with fewer publishers and for a shorter time, on the three nodes of Compose."""
    scenario = read("workers")
    for delivered, here in (("clients = 1000", "clients = 200"), ('"1 min"', '"20 s"'), ('"10 s"', '"20 s"')):
        assert scenario.count(delivered) == 1
        scenario = scenario.replace(delivered, here)
    cluster = start_balanced()
    arguments = ("--headless", "--only-summary", "--source", "127.1.0.0/28")
    host = f"mqtt://127.0.0.1:{cluster.port}"
    locust = LocustProcess(tmp_path / "locust", scenario, host, *arguments, processes=2)
    try:
        assert locust.wait() == 0, locust.output
    finally:
        locust.close()
    events = locust.events()
    assert events["death"] > 10 and events["connect"] >= 240 + events["death"], events
    published, twice = events["publish qos1"], events.get("done twice", 0)
    assert published > 200
    work = 2 * published + twice
    assert work - 2 * 200 <= events["work qos1"] <= work, "the first of each may be before the groups"
    assert locust.failures() == {}


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_acknowledged_message_of_20000_clients_is_lost(start_cluster: StartCluster, tmp_path: Path) -> None:
    seconds = int(os.environ.get("FLOCKMQ_TEST_SECONDS", 600))
    cluster = start_cluster()  # a load balancer needs two files a client: more than a process may have on some machines
    hosts = ",".join(f"mqtt://127.0.0.1:{node.port}" for node in cluster.nodes)
    run(hosts, cluster["a"], tmp_path / "locust", clients=20_000, rate=200, seconds=seconds)
