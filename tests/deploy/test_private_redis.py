"""The Redis that `serve --workers N` starts: its files, its deaths, its end. Real processes."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.cluster.redis.keys import ARRIVING
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.workers_process import WorkersProcess, is_running

StartWorkers = Callable[..., WorkersProcess]


@pytest.fixture
def start_workers(tmp_path: Path) -> Iterator[StartWorkers]:
    started: list[WorkersProcess] = []

    def start(**options: Any) -> WorkersProcess:
        started.append(WorkersProcess(tmp_path, **options))
        started[-1].start()
        return started[-1]

    yield start
    for workers in started:
        assert workers.stop() == 0, workers.log_text()
        workers.check()


def serve(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", "serve", "--listen", "127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=DEADLINE,
        env=environment() | variables,
    )


def publish_all_kinds(port: int) -> None:
    """A session of "s" with queued messages of QoS 1 and 2, and a retained message; all acknowledged."""
    with SocketClient(port, "s", clean_start=False) as subscriber:
        assert subscriber.subscribe(("t/#", 2)) == [2]
    with SocketClient(port, "p", clean_start=False) as publisher:
        publisher.send(
            Publish("t/1", b"one", qos=1, packet_id=1), Publish("kept", b"r", qos=1, packet_id=2, retain=True)
        )
        assert [publisher.receive(), publisher.receive()] == [Puback(packet_id=1), Puback(packet_id=2)]
        publisher.send(Publish("t/2", b"two", qos=2, packet_id=3))
        assert publisher.receive() == Pubrec(packet_id=3)
        publisher.send(Pubrel(packet_id=3))
        assert publisher.receive() == Pubcomp(packet_id=3)


def check_all_kinds(port: int) -> None:
    """The messages of `publish_all_kinds` are there, once; the session acknowledges them."""
    with SocketClient(port, "s", clean_start=False) as subscriber:
        assert subscriber.connack is not None
        assert subscriber.connack.session_present
        for topic_name, payload, qos in (("t/1", b"one", 1), ("t/2", b"two", 2)):
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            assert (packet.topic_name, packet.payload, packet.qos) == (topic_name, payload, qos)
            number = packet.packet_id
            subscriber.send(Puback(packet_id=number) if qos == 1 else Pubrec(packet_id=number))
        assert subscriber.receive() == Pubrel(packet_id=number)
        subscriber.send(Pubcomp(packet_id=number))
        assert subscriber.ping() == []
    assert retained(port, "kept") == b"r"


def kill_all(workers: WorkersProcess) -> None:
    """kill -9 of the supervisor, the workers and Redis."""
    pids = workers.pids()
    for pid in (workers.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    workers.wait()
    until(lambda: not any(map(is_running, pids)))


def append_only_file(workers: WorkersProcess) -> Path:
    """The file that Redis writes."""
    return sorted((workers.redis_directory / "appendonlydir").glob("*.incr.aof"))[-1]


def retained(port: int, topic_name: str) -> bytes | None:
    with SocketClient(port, "reader") as reader:
        reader.subscribe((topic_name, 0))
        packets = [packet for packet in reader.ping() if isinstance(packet, Publish)]
        return packets[0].payload if packets else None


# ---- it can't start ----


def test_no_server_is_installed(tmp_path: Path) -> None:
    done = serve(tmp_path, "--workers", "2", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "neither redis-server nor valkey-server" in done.stderr
    assert "apt install redis-server" in done.stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "flockmq.db.workers" / "appendonlydir").mkdir(parents=True)
    done = serve(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "flockmq.db.workers has the state of workers" in done.stderr
    assert "apt install redis-server" in done.stderr


def test_valkey_will_do(tmp_path: Path) -> None:
    """A stand-in: Redis by the name of Valkey."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "valkey-server").symlink_to(str(shutil.which("redis-server")))
    workers = WorkersProcess(tmp_path)
    workers.variables = {"PATH": str(place)}
    workers.start()
    assert Path(f"/proc/{workers.redis_pid}/cmdline").read_bytes().startswith(bytes(place))
    assert workers.stop() == 0
    workers.check()


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    done = serve(tmp_path, "--workers", "2", "--store", f"sqlite:{'long' * 30}.db")
    assert done.returncode == 2
    assert "at most 107 bytes" in done.stderr
    assert "store.url" in done.stderr


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "flockmq.db.workers").write_text("a file")
    done = serve(tmp_path, "--workers", "2")
    assert done.returncode == 2
    assert "flockmq.db.workers can't be used: File exists" in done.stderr


def test_damage_is_refused(start_workers: StartWorkers, tmp_path: Path) -> None:
    """Only what was cut off is mended: the rest of a damaged file is not dropped."""
    workers = start_workers()
    assert workers.stop() == 0
    file = append_only_file(workers)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2 :] = damaged[len(damaged) // 2 :].replace(b"$", b"!")
    file.write_bytes(damaged)
    done = serve(tmp_path, "--workers", "2")
    assert done.returncode == 2
    assert "the Redis of the workers can't start" in done.stderr
    assert "Bad file format" in done.stderr
    assert "redis.log has more" in done.stderr
    assert file.read_bytes() == damaged


# ---- its files ----


def test_only_its_owner_may_use_its_files(start_workers: StartWorkers, tmp_path: Path) -> None:
    (tmp_path / "flockmq.db.workers").mkdir(mode=0o755)
    workers = start_workers()
    assert stat.S_IMODE(workers.redis_directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((workers.redis_directory / "redis.sock").stat().st_mode) == 0o700
    with redis.Redis(unix_socket_path=str(workers.redis_directory / "redis.sock"), decode_responses=True) as client:
        wanted = {"port": "0", "appendonly": "yes", "appendfsync": "no", "save": "", "maxmemory-policy": "noeviction"}
        assert client.config_get(*wanted) == wanted
        assert client.info("server")["config_file"] == ""


def test_only_one_supervisor_uses_a_directory(start_workers: StartWorkers, tmp_path: Path) -> None:
    workers = start_workers()
    for number in ("2", "1"):
        done = serve(tmp_path, "--workers", number)
        assert done.returncode == 2
        assert "flockmq.db.workers is in use by the workers of another process" in done.stderr
    assert workers.running


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """One with a short path, for a socket."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def test_a_store_in_memory_leaves_no_files(start_workers: StartWorkers, tmp_path: Path, short_directory: Path) -> None:
    place = short_directory
    workers = WorkersProcess(tmp_path, sync="")
    workers.variables = {"TMPDIR": str(place)}
    workers.start()
    with SocketClient(workers.port, "p") as client:
        client.send(Publish("t", b"x", qos=1, packet_id=1, retain=True))
        assert client.receive() == Puback(packet_id=1)
    (directory,) = place.iterdir()
    assert not (directory / "appendonlydir").exists()
    assert workers.stop() == 0
    assert list(place.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


# ---- its deaths ----


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_acknowledged_messages_survive_its_death(start_workers: StartWorkers, sync: str) -> None:
    workers = start_workers(sync=sync)
    publish_all_kinds(workers.port)
    workers.kill_redis()
    check_all_kinds(workers.port)
    assert workers.lines("Redis ended: restarting it")[0]["status"] == "SIGKILL"


def test_acknowledged_messages_survive_the_death_of_all(start_workers: StartWorkers) -> None:
    workers = start_workers()
    publish_all_kinds(workers.port)
    kill_all(workers)
    workers.start()
    check_all_kinds(workers.port)


def test_a_transaction_that_was_cut_off_is_not_applied(start_workers: StartWorkers) -> None:
    """Neither at the next start nor, with later writes, at the start after it."""
    workers = start_workers()
    publish_all_kinds(workers.port)
    assert workers.stop() == 0
    file = append_only_file(workers)
    with file.open("ab") as appended:
        appended.write(b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1\r\nx\r\n*3\r\n$3\r\nSE")
    for _ in range(2):
        workers.start()
        with redis.Redis(unix_socket_path=str(workers.redis_directory / "redis.sock")) as client:
            assert not client.exists("half")
        assert workers.stop() == 0
    assert not [path for path in file.parent.iterdir() if b"half" in path.read_bytes()]
    assert "cut off the last" in (workers.redis_directory / "redis.log").read_text()
    workers.start()
    check_all_kinds(workers.port)


# ---- its end ----


def test_it_ends_after_the_workers(start_workers: StartWorkers) -> None:
    """They publish wills while they stop, and store them."""
    workers = start_workers(sync="full")  # which has no warnings
    pids = workers.pids()
    with SocketClient(workers.port, "a", will_topic="will", will_payload=b"w", will_qos=1, will_retain=True):
        assert workers.stop() == 0
    assert not any(map(is_running, pids))
    assert not [line for line in workers.log if line["level"] in ("warning", "error")], workers.log_text()
    names = {line["worker"] for line in workers.log if line["event"].endswith(" is ready")}
    assert len(names) > 1
    assert names < {line.get("worker") for line in workers.log if line["event"] == "stopped"}  # None: the supervisor
    workers.start()
    until(lambda: retained(workers.port, "will") == b"w")


def test_nothing_outlives_a_supervisor_that_was_killed(start_workers: StartWorkers) -> None:
    """Redis is there until the workers have stored what they had, and is stopped, not killed."""
    workers = start_workers(sync="full", settings={"http.drain": 2})
    pids = workers.pids()
    with SocketClient(workers.port, "p") as client:
        os.kill(workers.pid, signal.SIGKILL)
        until(lambda: len(workers.lines("stopping")) == 2)
        time.sleep(0.5)  # the workers serve their clients for 2 s
        client.send(Publish("kept", b"last", qos=1, packet_id=1, retain=True))
        assert client.receive() == Puback(packet_id=1)
        workers.wait()  # for the log, too: the workers hold it
    until(lambda: not any(map(is_running, pids)))
    assert len(workers.lines("stopped")) == 2, workers.log_text()
    assert not [line for line in workers.log if line["level"] in ("warning", "error")], workers.log_text()
    assert "ready to exit" in (workers.redis_directory / "redis.log").read_text()
    workers.start()
    assert retained(workers.port, "kept") == b"last"


# ---- from one node to workers, and back ----


def test_state_moves_when_the_number_of_workers_changes(start_workers: StartWorkers, tmp_path: Path) -> None:
    """Twice there and back, with a kill -9 of all workers between; also if their Redis has several shards."""
    node = BrokerProcess(tmp_path, "sqlite")
    for shards in (1, 3):
        workers = WorkersProcess(tmp_path, settings={"cluster.shards": shards})
        node.start()
        publish_all_kinds(node.port)
        assert node.stop() == 0
        workers.start()
        assert [line for line in workers.log if line["event"].startswith("moved from sqlite:")]
        check_all_kinds(workers.port)
        publish_all_kinds(workers.port)
        kill_all(workers)
        node.start()
        assert [line for line in node.log if line["event"].startswith("moved from unix:")]
        check_all_kinds(node.port)
        assert not (workers.redis_directory / "appendonlydir").exists()
        assert node.stop() == 0
        workers.check()
    node.check()


def test_a_second_start_moves_nothing(start_workers: StartWorkers, tmp_path: Path) -> None:
    node = BrokerProcess(tmp_path, "sqlite").start()
    publish_all_kinds(node.port)
    assert node.stop() == 0
    workers = start_workers()
    check_all_kinds(workers.port)
    publish_all_kinds(workers.port)
    workers.restart()
    assert workers.lines("was moved to " + workers.lines("Redis started")[-1]["redis"] + " before")
    check_all_kinds(workers.port)


def test_state_in_both_places_is_refused(start_workers: StartWorkers, tmp_path: Path) -> None:
    """An old file that was put back does not replace what the workers have, and is not hidden by it."""
    workers = start_workers()
    publish_all_kinds(workers.port)
    assert workers.stop() == 0
    (tmp_path / "other").mkdir()
    other = BrokerProcess(tmp_path / "other", "sqlite").start()
    publish_all_kinds(other.port)
    assert other.stop() == 0
    (tmp_path / "other" / "flockmq.db").rename(tmp_path / "flockmq.db")
    for number in ("2", "1"):
        done = serve(tmp_path, "--workers", number)
        assert done.returncode == 2
        assert "has state already, which would be lost" in done.stderr
    (tmp_path / "flockmq.db").unlink()
    workers.start()
    check_all_kinds(workers.port)


def test_an_empty_redis_does_not_replace_what_was_moved(start_workers: StartWorkers, tmp_path: Path) -> None:
    """The directory of the workers is gone, and the file's state is marked: neither is taken for empty."""
    node = BrokerProcess(tmp_path, "sqlite").start()
    publish_all_kinds(node.port)
    assert node.stop() == 0
    workers = start_workers()
    assert workers.stop() == 0
    workers.redis_directory.rename(tmp_path / "elsewhere")
    for number in ("2", "1"):
        done = serve(tmp_path, "--workers", number)
        assert done.returncode == 2
        assert "was moved to unix:" in done.stderr
    shutil.rmtree(workers.redis_directory, ignore_errors=True)
    (tmp_path / "elsewhere").rename(workers.redis_directory)
    workers.start()
    check_all_kinds(workers.port)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_move_that_was_interrupted_goes_on(start_workers: StartWorkers, tmp_path: Path, signum: int) -> None:
    """While the state is written: nothing outlives the supervisor, one node is refused, workers have all."""
    node = BrokerProcess(tmp_path, "sqlite").start()
    publish_all_kinds(node.port)
    assert node.stop() == 0
    interrupted = WorkersProcess(tmp_path)
    interrupted.spawn()
    path = interrupted.redis_directory / "redis.sock"
    until(path.exists)
    with redis.Redis(unix_socket_path=str(path)) as client:
        until(lambda: int(client.get("mq:layout") or 0) == ARRIVING)
    interrupted.signal(signum)
    interrupted.wait()
    until(lambda: not any(map(is_running, interrupted.pids())))
    done = serve(tmp_path)
    assert done.returncode == 2
    assert "goes on when `flockmq serve` starts with as many workers as then" in done.stderr
    workers = start_workers()
    check_all_kinds(workers.port)
