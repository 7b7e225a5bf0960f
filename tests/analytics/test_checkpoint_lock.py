"""The lock of a checkpoint: one job has it, whatever becomes of jobs and of Redis."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from flockmq.broker.errors import FlockError
from flockmq.cluster.analytics.output import checkpoint_lock
from flockmq.cluster.analytics.output.checkpoint_lock import CheckpointLock
from flockmq.cluster.redis.clients import RedisAddress
from tests.harness.broker_process import until
from tests.harness.redis_process import RedisProcess

KEY = "mq:analytics:lock:job"
MakeLock = Callable[..., CheckpointLock]


@pytest.fixture
def make(redis_server: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLock]:
    """Makes locks, which are given back at the end."""
    monkeypatch.setattr(checkpoint_lock, "LOOK_SECONDS", 0.05)
    with contextlib.ExitStack() as stack:

        def made(seconds: float = 30.0) -> CheckpointLock:
            lock = CheckpointLock(RedisAddress.parse(redis_server.url), seconds)
            stack.callback(lock.close)
            return lock

        yield made


def a_process_that_is_gone() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_job_has_a_checkpoint(make: MakeLock, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = make(seconds=0.6), make(seconds=0.6)
    one.acquire("job", "/srv/fleet/_checkpoint")
    monkeypatch.setattr(checkpoint_lock.os, "getpid", lambda: 1)  # it is another process than the holder's
    with pytest.raises(FlockError, match=r"another job has the checkpoint /srv/fleet/_checkpoint: process \d+ on \S"):
        other.acquire("job", "/srv/fleet/_checkpoint")  # once the holder has renewed it
    other.acquire("another job", "/elsewhere")
    one.check()


def test_a_lock_that_was_given_back_is_free(make: MakeLock, redis_server: RedisProcess) -> None:
    one = make()
    one.acquire("job", "d")
    one.close()
    with redis_server.client() as client:
        assert not client.exists(KEY)
    make().acquire("job", "d")


@pytest.mark.parametrize("is_here", [True, False])
def test_a_job_that_was_killed_does_not_keep_its_lock(
    is_here: bool, make: MakeLock, redis_server: RedisProcess
) -> None:
    """On this machine that is seen at once; on another one it expires."""
    host = checkpoint_lock.socket.gethostname() if is_here else "elsewhere"
    rest = 3_600_000 if is_here else 300
    with redis_server.client() as client:
        client.set(KEY, f"{host} {a_process_that_is_gone()} 0123456789abcdef", px=rest)
    make().acquire("job", "d")


def test_a_job_without_its_lock_commits_nothing(make: MakeLock, redis_server: RedisProcess) -> None:
    one = make()
    one.acquire("job", "d")
    with redis_server.client() as client:
        client.delete(KEY)
        one.check()  # Redis has lost it, and no other job has it: it is taken again
        client.set(KEY, "elsewhere 7 0123456789abcdef")
        with pytest.raises(FlockError, match="another job has the checkpoint d: process 7 on elsewhere"):
            one.check()
        one.close()
        assert client.get(KEY), "it is the other's"


def test_a_lock_is_renewed_over_an_outage(make: MakeLock, redis_server: RedisProcess) -> None:
    one = make(seconds=0.6)
    one.acquire("job", "d")
    redis_server.kill()
    redis_server.restart()
    with redis_server.client() as client:
        until(lambda: client.exists(KEY), "it has the lock again")
    one.check()
