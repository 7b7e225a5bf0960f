"""The load generator's subscribers of a shared subscription: over nodes, slow ones, dying ones, and wrong brokers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from flockmq.loadtest.generator.runs import find_faults, publish_load
from flockmq.loadtest.generator.settings import Settings
from flockmq.loadtest.generator.skew import spread
from flockmq.loadtest.generator.target import Target, Workload
from tests.conftest import StartCluster
from tests.harness.broker_process import BrokerProcess
from tests.harness.cluster_process import ClusterProcess
from tests.loadtest.test_bench_command import Meddler, bench

SETTINGS = {"shared.redispatch": 0.3}
CLIENTS: dict[str, Any] = {"shape": "shared", "publishers": 3, "subscribers": 6, "topic_prefix": "bench/"}
MORTAL = {**CLIENTS, "slow": 1, "slow_rate": 20.0, "dying": 2, "dies_every": 0.3, "away": 0.05}
KINDS = pytest.mark.parametrize(
    ("qos", "persistent"), [(1, False), (1, True), (2, True)], ids=["1-clean", "1-persistent", "2-persistent"]
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("node"), settings=SETTINGS).start()
    yield broker
    assert broker.stop() == 0
    broker.check()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster(SETTINGS, nodes="abc")


def check(figures: dict[str, Any], *, slow: int = 20) -> None:
    """Nothing is lost or doubled; all subscribers got something, and a slow one no more than it acknowledged."""
    assert find_faults(figures) == [], figures
    assert figures["received"] == figures["published"] == figures["acknowledged"] > 500
    assert figures["cuts"] > 4
    each = figures["received_equal"] / figures["equal_subscribers"]
    assert 0 < figures["received_slow"] < each
    assert figures["received_dying"] > 0
    assert figures["repeated"] == 0 or figures["qos"] == 1


@KINDS
def test_subscribers_that_are_slow_and_subscribers_that_die(node: BrokerProcess, qos: int, persistent: bool) -> None:
    load = Workload(qos=qos, persistent=persistent, rate=1000, seconds=2, warm_up=0, **MORTAL)
    check(publish_load(Target(port=node.port), load))


@KINDS
def test_subscribers_over_nodes(cluster: ClusterProcess, qos: int, persistent: bool) -> None:
    """A dying subscriber returns at the next node."""
    ports = [node.port for node in cluster.nodes]
    target = Target(port=ports[0], publish_port=ports[1], more_hosts=[("127.0.0.1", port) for port in ports[1:]])
    load = Workload(qos=qos, persistent=persistent, rate=1000, seconds=2, warm_up=0, drain_limit=20, **MORTAL)
    check(publish_load(target, load))


def test_level_5(node: BrokerProcess) -> None:
    load = Workload(qos=2, persistent=True, ids=True, properties=60, rate=1000, seconds=1, warm_up=0, **MORTAL)
    figures = publish_load(Target(port=node.port, level=5), load)
    assert find_faults(figures) == [] and figures["cuts"] > 1


def test_equal_subscribers_get_equal_shares(node: BrokerProcess) -> None:
    load = Workload(qos=1, rate=2000, seconds=2.5, **CLIENTS)
    figures = publish_load(Target(port=node.port), load)
    assert find_faults(figures) == []
    assert figures["equal_subscribers"] == 6 and figures["cuts"] == 0
    assert 0 <= figures["skew_second_share"] < 0.2
    assert 0 <= figures["skew_share"] < 0.2
    assert spread([90, 110, 100]) == pytest.approx(0.2)
    assert spread([]) == spread([0, 0]) == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_comes_twice_is_found(node: BrokerProcess, qos: int) -> None:
    meddler = Meddler(node.port, twice=True)
    try:
        load = Workload(qos=qos, count=1000, seconds=20, drain_limit=60, **CLIENTS)
        figures = publish_load(Target(port=meddler.port), load)
    finally:
        meddler.close()
    assert figures["duplicates"] > 80 and figures["lost"] == 0 and figures["repeated"] == 0


def test_a_duplicate_hides_no_loss(node: BrokerProcess) -> None:
    """Of each 20 messages one is lost and another one comes twice."""
    twice, never = Meddler(node.port, twice=True), Meddler(node.port, twice=False)
    try:
        load = Workload(qos=1, count=1000, seconds=20, drain_limit=5, **CLIENTS)
        figures = publish_load(Target(port=twice.port, more_hosts=[("127.0.0.1", never.port)]), load)
    finally:
        twice.close()
        never.close()
    assert figures["duplicates"] > 30 and figures["lost"] > 30
    assert figures["received"] + figures["lost"] == figures["published"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"qos": 0}, "slow subscribers need QoS 1 or 2"),
        ({"qos": 2}, "need persistent sessions"),
        ({"qos": 1, "slow": 5}, "more slow and dying subscribers"),
        ({"qos": 1, "dies_every": 0}, "out of range"),
        ({"qos": 1, "shape": "fanin"}, "need the shape shared"),
    ],
)
def test_settings(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(target=Target(port=1), workload=Workload(**{**MORTAL, **more}))


def test_the_command(cluster: ClusterProcess) -> None:
    a, b, c = (f"127.0.0.1:{node.port}" for node in cluster.nodes)
    more = ["--host", b, "--host", c, "--publish-host", b, "--qos", "2", "--persistent", "--subscribers", "5"]
    more += ["--slow", "1", "--dying", "1", "--dies-every", "0.3", "--rate", "500", "--seconds", "1.5"]
    port = cluster.nodes[0].port
    status, output, errors = bench(port, "shared", *more)
    assert (status, errors) == (0, "")
    assert "none lost, none twice" in output and "3 equal, with " in output
    assert "slow ones" in output and "dying ones" in output and "1, cut " in output
    assert all(f"({node.pid})" in output for node in cluster.nodes), a
    status, output, errors = bench(port, "shared", *more, "--json")
    assert (status, errors) == (0, "")
    figures = json.loads(output)["figures"]
    assert figures["cuts"] > 2 and figures["lost"] == figures["duplicates"] == figures["repeated"] == 0


def test_wrong_commands(node: BrokerProcess) -> None:
    for arguments, words in (
        (["connects", "--host", "127.0.0.1:1"], "several --host do not apply to connects"),
        (["pairs", "--slow", "1"], "--slow does not apply to pairs"),
        (["shared", "--dying", "1", "--host", "mqtts://127.0.0.1:1"], "--host needs the same transport: mqtt"),
        (["shared", "--slow", "1"], "slow subscribers need QoS 1 or 2"),
    ):
        status, _, errors = bench(node.port, *arguments)
        assert status == 1 and words in errors and errors.count("\n") == 1
