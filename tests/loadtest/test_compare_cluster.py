"""The servers of the bench for a cluster: real nodes over a real Redis, and Aedes where it can be installed."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flockmq.loadtest.compare import aedes, benchmark
from flockmq.loadtest.compare.benchmark import Results, is_reached, render
from flockmq.loadtest.compare.brokers import BrokerError, find_mosquitto, start
from flockmq.loadtest.compare.cluster import PLACES, start_cluster
from flockmq.loadtest.compare.cluster_scenarios import CLUSTER
from flockmq.loadtest.compare.scenarios import Goal, Row, Scenario, Table
from flockmq.loadtest.generator.runs import LoadError, connect_load, find_faults, publish_load, take_over_load
from flockmq.loadtest.generator.target import ReconnectLoad, TakeOverLoad, Target, Workload
from tests.harness.ports import free_port

CORES = os.sched_getaffinity(0)
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[tuple[int, int]]:
    """Port and process id of a Mosquitto."""
    with start("Mosquitto", "memory", CORES) as running:
        yield running.port, running.pid


@needs_mosquitto
@pytest.mark.parametrize("persistent", [False, True])
def test_clients_are_taken_over_and_back(mosquitto: tuple[int, int], persistent: bool) -> None:
    port, pid = mosquitto
    figures = take_over_load(
        Target(port=port, pids=[pid]), TakeOverLoad(clients=10, rate=100, persistent=persistent, seconds=1)
    )
    assert find_faults(figures) == []
    elapsed = figures["take_overs"] / figures["take_overs_per_s"]
    assert 0 < figures["take_overs"] <= 1 + 100 * elapsed
    assert 0 < figures["latency_p50_us"] <= figures["latency_p99_us"] <= figures["latency_max_us"]
    assert figures["cpu_us_per_take_over"] > 0


@needs_mosquitto
def test_take_overs_as_fast_as_possible(mosquitto: tuple[int, int]) -> None:
    figures = take_over_load(Target(port=mosquitto[0]), TakeOverLoad(clients=5, rate=0, seconds=0.5))
    assert find_faults(figures) == []
    assert figures["take_overs"] > 0


@needs_mosquitto
def test_persistent_connects_are_counted(mosquitto: tuple[int, int]) -> None:
    figures = connect_load(
        Target(port=mosquitto[0]), ReconnectLoad(persistent=True, parallel=5, seconds=0.5, warm_up=0)
    )
    assert find_faults(figures) == []
    assert figures["connects"] > 0


@needs_mosquitto
def test_publishers_go_to_their_own_port(mosquitto: tuple[int, int]) -> None:
    """The two brokers are not connected, so nothing may arrive."""
    with start("Mosquitto", "memory", CORES) as other:
        figures = publish_load(
            Target(
                port=mosquitto[0],
                publish_port=other.port,
                groups={"there": [other.pid], "here": [mosquitto[1]]},
            ),
            Workload(publishers=2, subscribers=2, count=10_000, seconds=5, drain_limit=0.1),
        )
    assert (figures["published"], figures["received"]) == (10_000, 0)
    assert figures["cpu_s_there"] > figures["cpu_s_here"]


def test_counts_are_given_per_second_and_per_message() -> None:
    values = iter([{"beans": 1000.0}, {"beans": 1500.0}])
    with start("baseline", "memory", CORES) as baseline:
        figures = publish_load(
            Target(port=baseline.port, groups={"it": [baseline.pid]}, counts=lambda: next(values)),
            Workload(publishers=1, subscribers=1, count=1000),
        )
    assert figures["beans_per_delivery"] == 0.5
    assert figures["beans_per_s"] == pytest.approx(500 / figures["elapsed_s"])
    assert figures["cpu_us_per_delivery_it"] > 0
    assert "cpu_us_per_delivery" not in figures


class DeafBroker(threading.Thread):
    """Lets everybody in, refuses a client that is connected, and never closes a connection."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.clients: dict[bytes, socket.socket] = {}

    def run(self) -> None:
        while True:
            try:
                client = self.server.accept()[0]
            except OSError:
                return
            client_id = client.recv(4096)
            client.sendall(b"\x20\x02\x00" + bytes([2 if client_id in self.clients else 0]))
            self.clients.setdefault(client_id, client)


def test_a_take_over_that_is_refused_is_a_fault() -> None:
    broker = DeafBroker()
    broker.start()
    figures = take_over_load(Target(port=broker.port), TakeOverLoad(clients=3, rate=100, seconds=0.2))
    broker.server.close()
    assert figures["take_overs"] == 0
    assert figures["take_over_failures"] > 0
    assert "refuses" in " ".join(find_faults(figures))


@needs_redis
def test_messages_cross_flockmq() -> None:
    with start_cluster("FlockMQ", CORES) as cluster:
        a, b, _ = cluster.ports
        for qos, persistent in ((0, False), (1, False), (1, True), (2, True)):
            figures = publish_load(
                Target(port=b, publish_port=a, groups=cluster.groups, counts=cluster.counts),
                Workload(qos=qos, persistent=persistent, publishers=4, subscribers=4, count=2000, seconds=20),
            )
            assert find_faults(figures) == []
            assert figures["received"] == 2000
            assert figures["bytes_to_redis_a_per_delivery"] > 64
            assert figures["bytes_from_redis_b_per_delivery"] > 64
            assert figures["cpu_us_per_delivery_redis"] > 0
        figures = take_over_load(Target(port=a, publish_port=b), TakeOverLoad(clients=10, rate=100, seconds=1))
    assert find_faults(figures) == []
    assert figures["take_overs"] > 0


@needs_redis
def test_messages_cross_aedes() -> None:
    try:
        aedes.installed_server()
    except BrokerError as error:
        pytest.skip(str(error))
    with start_cluster("Aedes", CORES, nodes=2) as cluster:
        a, b = cluster.ports
        for qos, persistent in ((0, False), (1, True)):
            figures = publish_load(
                Target(port=b, publish_port=a, groups=cluster.groups),
                Workload(qos=qos, persistent=persistent, publishers=4, subscribers=4, count=1000, seconds=20),
            )
            # On a busy machine Aedes loses messages between its nodes, and the bench reports it.
            assert [fault for fault in find_faults(figures) if not fault.startswith("lost")] == []
            assert figures["received"] > 0


def test_without_npm_there_is_no_aedes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BrokerError, match="npm is not installed"):
        aedes.installed_server()


def test_a_cluster_without_redis_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BrokerError, match="redis-server is not installed"), start_cluster("FlockMQ", CORES):
        pass


TABLE = Table(("A to B", "within A"), ("within A",), title="Many nodes", preface="Three nodes.")
GOALS = (Goal(2, "within A"), Goal(1, text="within A: ≤ 1", whose="within A"))
SCENARIO = Scenario("made-up", "load", (Row("cpu", "µs", goals=GOALS),), brokers=TABLE.columns, table=TABLE)


def test_goals_of_other_columns() -> None:
    results: Results = {"A to B": [{"cpu": 3.0}], "within A": [{"cpu": 2.0}]}
    assert [is_reached(results, SCENARIO.rows[0], goal, "A to B") for goal in GOALS] == [True, False]


def test_a_table_of_its_own() -> None:
    results: Results = {"A to B": [{"cpu": 3.0}], "within A": [{"cpu": 2.0}]}
    report: dict[str, Any] = {"machine": {}, "rounds": 1, "seconds": 1.0, "results": {"made-up": results}, "micro": []}
    lines = render(report, [SCENARIO]).splitlines()
    assert "## Many nodes" in lines
    assert "|  | unit | A to B | within A | A to B / within A | goal | reached |" in lines
    assert "| load | µs | 3 | 2 | 1.5 | ≤ 2 x within A, within A: ≤ 1 | no: within A: ≤ 1 |" in lines


def test_rows_of_the_cluster_fit_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for scenario in CLUSTER:
        assert set(scenario.brokers) <= set(scenario.table.columns) <= PLACES.keys()
        for row in scenario.rows:
            for goal in row.goals:
                assert {goal.of, goal.whose} - {""} <= set(scenario.brokers)
    ran: list[str] = []

    def measure(scenario: Scenario, rounds: int, seconds: float) -> Results:
        ran.append(scenario.name)
        return {}

    monkeypatch.setattr(benchmark, "measure", measure)
    benchmark.main(["--only", "cluster"])
    assert ran == [scenario.name for scenario in CLUSTER]


def test_nobody_listens_where_publishers_connect() -> None:
    with (
        start("baseline", "memory", CORES) as baseline,
        pytest.raises(LoadError, match="publisher 0: connect: Connection refused"),
    ):
        publish_load(Target(port=baseline.port, publish_port=free_port()), Workload(publishers=1, subscribers=1))
