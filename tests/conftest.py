"""Fixtures for tests against real nodes: each protocol test runs with every store."""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import schedule
from tests.harness import inprocess
from tests.harness.balanced_cluster import BalancedCluster
from tests.harness.cluster_process import KINDS, SHARDS, Broker, ClusterProcess, make_broker
from tests.harness.logs import Logging, OneNode
from tests.harness.redis_process import RedisProcess

settings.register_profile("flockmq", deadline=None)  # of one example: machines are busy
settings.load_profile("flockmq")
FILES_MORE = 200  # open files that may be garbage; the brokers that a file's tests share have hundreds that are not
files_in_use = 0  # after the last collection
StartBroker = Callable[..., Broker]
StartRedis = Callable[..., RedisProcess]
StartCluster = Callable[..., ClusterProcess]
StartLogging = Callable[..., Logging]
StartBalanced = Callable[..., BalancedCluster]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """The schedule of `make test`; else pytest-xdist's own."""
    return schedule.Schedule(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one process, in `tests/unit` or marked `one_process`, are not tried with a cluster.

    Tests marked `one_shard` are not tried with several shards.
    """

    def is_about_one(item: pytest.Item) -> bool:
        parameters = getattr(item, "callspec", None)
        return (
            parameters is not None
            and parameters.params.get("store") == "cluster"
            and ("unit" in item.path.parts or item.get_closest_marker("one_process") is not None)
        )

    def is_left_out(item: pytest.Item) -> bool:
        return is_about_one(item) or (SHARDS > 1 and item.get_closest_marker("one_shard") is not None)

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]
    if config.getoption("loadgroup", False):
        schedule.arrange(items)


def pytest_collection_finish() -> None:
    """Objects that are there before the first test stay: collections of garbage need not look at it each time."""
    gc.collect()
    gc.freeze()


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def end_nodes() -> Iterator[None]:
    """Nodes within the test's own process leave no file open: a client that uses `select` needs numbers below 1024."""
    global files_in_use
    yield
    while inprocess.opened:
        inprocess.opened.pop().close()
    if open_files() > files_in_use + FILES_MORE:
        gc.collect()  # epoll sets go with the reactor that has them
        files_in_use = open_files()


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Commands that run within the test's own process set up logs: later tests need theirs."""
    loggers = (logging.getLogger(), logging.getLogger("flockmq"))
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> str:
    """The kind of broker: a node alone with a kind of store, or a cluster."""
    return str(request.param)


@pytest.fixture
def start_broker(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartBroker]:
    """Starts brokers: `start_broker({"limits.max_inflight": 2}, arguments=[...])`. All are stopped and checked."""
    started: list[Broker] = []
    one_node = request.node.get_closest_marker("one_node") is not None

    def start(settings: dict[str, object] | None = None, **more: object) -> Broker:
        directory = tmp_path / f"node-{len(started)}"
        directory.mkdir()
        broker = make_broker(directory, store, settings, one_node=one_node, **more)
        started.append(broker)
        return broker.start()

    yield start
    try:
        statuses = [broker.stop() for broker in started]
    finally:
        for broker in started:
            broker.close()
    for broker, status in zip(started, statuses, strict=True):
        broker.check()
        assert status == 0, f"exit status {status}\n{broker.log_text()}"


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    """A broker with default settings."""
    return start_broker()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Starts Redis servers: `start_redis(["--requirepass", "x"], {"password": "x"})`. All are ended."""
    started: list[RedisProcess] = []

    def start(arguments: list[str] | None = None, connection: dict[str, object] | None = None) -> RedisProcess:
        directory = tmp_path / f"redis-{len(started)}"
        directory.mkdir()
        server = RedisProcess(directory, arguments, connection)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def redis_server(start_redis: StartRedis) -> RedisProcess:
    """A Redis of the test's own, empty, that keeps nothing on disk."""
    return start_redis()


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


@pytest.fixture(params=["cluster", "one node"])
def start_logging(
    request: pytest.FixtureRequest, start_cluster: StartCluster, tmp_path: Path
) -> Iterator[StartLogging]:
    """Starts what logs messages, a cluster or a node alone: `start_logging({"analytics.topics": "#"}, nodes="a")`."""
    started: list[OneNode] = []

    def start_one(settings: dict[str, object] | None = None, **_: object) -> OneNode:
        directory = tmp_path / f"node-{len(started)}"
        directory.mkdir()
        started.append(OneNode(directory, {"mqtt.sys_interval": 0, **(settings or {})}))
        started[-1].start()
        return started[-1]

    yield start_cluster if request.param == "cluster" else start_one
    for node in started:
        assert node.stop() == 0, node.log_text()
        node.check()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    """Three nodes a, b and c with default settings."""
    return start_cluster()


@pytest.fixture
def start_balanced(tmp_path: Path) -> Iterator[StartBalanced]:
    """Starts nodes behind a load balancer: `start_balanced({"log.level": "debug"})`. All are stopped and checked."""
    started: list[BalancedCluster] = []

    def start(settings: dict[str, object] | None = None, **more: object) -> BalancedCluster:
        directory = tmp_path / f"balanced-{len(started)}"
        directory.mkdir()
        balanced = BalancedCluster(directory, settings, **more)  # type: ignore[arg-type]
        started.append(balanced)
        return balanced.start()

    yield start
    for balanced in started:
        balanced.close()
