"""Fixtures for tests against real nodes: each protocol test runs with every store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker_process import STORES, BrokerProcess
from tests.redis_process import RedisProcess

StartBroker = Callable[..., BrokerProcess]
StartRedis = Callable[..., RedisProcess]


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> str:
    """The kind of store: a key of STORES."""
    return str(request.param)


@pytest.fixture
def start_broker(store: str, tmp_path: Path) -> Iterator[StartBroker]:
    """Starts nodes: `start_broker({"limits.max_inflight": 2}, arguments=[...])`. All are stopped and checked."""
    started: list[BrokerProcess] = []

    def start(settings: dict[str, object] | None = None, **more: object) -> BrokerProcess:
        directory = tmp_path / f"node-{len(started)}"
        directory.mkdir()
        broker = BrokerProcess(directory, store, settings, **more)  # type: ignore[arg-type]
        started.append(broker)
        return broker.start()

    yield start
    statuses = [broker.stop() for broker in started]
    for broker, status in zip(started, statuses, strict=True):
        broker.check()
        assert status == 0, f"exit status {status}\n{broker.log_text()}"


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A node with default settings."""
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
