"""Databases for the tests of connectors: one of each kind for the tests of a process."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.connect.endpoint import Endpoint
from tests.connect.pipe_file import Process
from tests.harness.database_processes import ClickHouseProcess, DatabaseProcess, InfluxDbProcess, PostgreSqlProcess
from tests.harness.redis_process import RedisProcess


def needed(program: str) -> None:
    """Skip the test if a server is not installed: not every release of Debian has it."""
    if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip(f"not installed: {program}")


def running(database: DatabaseProcess) -> Iterator[DatabaseProcess]:
    try:
        database.start()
        yield database
    finally:
        database.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[DatabaseProcess]:
    yield from running(PostgreSqlProcess())


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[DatabaseProcess]:
    needed("clickhouse-server")
    yield from running(ClickHouseProcess())


@pytest.fixture(scope="session")
def influxdb() -> Iterator[DatabaseProcess]:
    needed("influxd")
    yield from running(InfluxDbProcess())


@pytest.fixture(autouse=True)
def end_processes() -> Iterator[None]:
    """Kill processes that a test has left."""
    yield
    while Process.started:
        Process.started.pop().kill()


@pytest.fixture
def client(redis_server: RedisProcess) -> redis.Redis:
    return redis_server.client(decode_responses=False)


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a table of this test."""
    return f"t_{abs(hash(request.node.nodeid + str(tmp_path))) % 10**9}"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()
