"""The Redis of the tests: its persistence, and that each fault is one."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import StartRedis
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import KEEPS, RedisProcess, Sentinels


@pytest.mark.parametrize(
    ("keeps", "signum", "left"),
    [
        ("nothing", signal.SIGTERM, None),
        ("always", signal.SIGKILL, "1"),
        ("everysec", signal.SIGTERM, "1"),
    ],
)
def test_what_is_left_after_a_restart(start_redis: StartRedis, keeps: str, signum: int, left: str | None) -> None:
    server = start_redis(KEEPS[keeps])
    port = server.port
    server.client().set("a", 1)
    server.stop(signum)
    server.start()
    assert server.port == port
    assert server.client().get("a") == left
    server.restart()
    assert server.client().get("a") == left
    server.wipe()
    assert server.key_names() == []


def test_a_frozen_one_answers_later(redis_server: RedisProcess) -> None:
    client = redis_server.client(socket_timeout=0.2, retry=None)
    client.ping()
    redis_server.freeze()
    with pytest.raises(redis.TimeoutError):
        client.get("a")
    redis_server.thaw()
    assert redis_server.client().ping()


def test_subscribers_lose_their_connections(redis_server: RedisProcess) -> None:
    other = redis_server.client()
    other.ping()
    channel = redis_server.client().pubsub()
    channel.subscribe("x")
    assert channel.get_message(timeout=DEADLINE)
    assert redis_server.cut("pubsub") == 1
    assert redis_server.cut("normal") == 1
    assert other.ping()  # redis-py connects again


def test_memory_runs_out_and_comes_back(redis_server: RedisProcess) -> None:
    redis_server.set(maxmemory=1)
    with pytest.raises(redis.OutOfMemoryError):
        redis_server.client().set("a", 1)
    redis_server.set(maxmemory=0)
    redis_server.client().set("a", "x" * 1000)
    redis_server.client().set("b", 1)
    assert redis_server.key_names() == ["a", "b"]
    assert redis_server.memory()["a"] > 1000 > redis_server.memory()["b"]


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    group = Sentinels(tmp_path)
    try:
        yield group.start()
    finally:
        group.stop()


def test_a_replica_takes_over(sentinels: Sentinels) -> None:
    old = sentinels.master
    with old.client() as client:
        client.set("a", 1)
        assert client.wait(1, 20_000) == 1
    old.kill()
    new = sentinels.wait_for_failover(old)
    assert new is not old
    assert new.client().get("a") == "1"
    new.client().set("b", 2)
