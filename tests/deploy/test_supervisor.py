"""`serve --workers N`: real processes, first stand-ins for nodes, then nodes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker import supervisor as workers
from flockmq.broker.errors import ListenError
from flockmq.broker.listeners.bind import bind, host_name
from flockmq.broker.supervised_process import LONG_LIFE, SupervisedProcess
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.certificates import Authority
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient
from tests.harness.transports import ports, tls_client, tls_settings, trusting, websocket
from tests.harness.workers_process import WorkersProcess
from tests.protocol.wire import Wire

# A stand-in for a node: writes down each start and signal, ends as its file asks.
NODE = """
import pathlib, signal, sys, time
name, behaviour = sys.argv[1:]
log = open(name + ".log", "a", buffering=1)
def stop(signum, frame):
    log.write(signal.Signals(signum).name + "\\n")
    sys.exit(3 if behaviour == "untidy" else 0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGHUP, lambda signum, frame: log.write("SIGHUP\\n"))
log.write(f"start {__import__('os').getpid()}\\n")
if behaviour == "refuses":
    sys.exit(2)
while True:
    time.sleep(60)
"""
SUPERVISOR = """
import json, sys
from flockmq.broker import supervised_process, logs, supervisor as workers
for name, value in json.loads(sys.argv[2]).items():
    setattr(supervised_process if hasattr(supervised_process, name) else workers, name, value)
logs.configure("info", "json")
sys.exit(workers.Supervisor(json.loads(sys.argv[1])).run())
"""


class Supervised:
    """A supervisor of stand-ins."""

    def __init__(self, directory: Path, behaviours: Mapping[str, str], **constants: float) -> None:
        self.directory = directory
        commands = {name: [sys.executable, "-c", NODE, name, how] for name, how in behaviours.items()}
        constants = {"FIRST_DELAY": 0.01, "HEAD_START": 0.01, **constants}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, json.dumps(commands), json.dumps(constants)],
            cwd=directory,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )

    def log(self, name: str) -> list[str]:
        """The lines of the stand-in, in all its lives."""
        file = self.directory / f"{name}.log"
        return file.read_text().splitlines() if file.exists() else []

    def pids(self, name: str) -> list[int]:
        """The process id of each life."""
        return [int(line.split()[1]) for line in self.log(name) if line.startswith("start") and line[6:]]

    def wait_for_lives(self, name: str, lives: int) -> int:
        """Wait for that many starts; returns the last one's process id."""
        return int(until(lambda: len(self.pids(name)) >= lives and self.pids(name)[-1], f"{lives} starts of {name}"))

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Wait for its end: exit status and log."""
        _, errors = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, [json.loads(line) for line in errors.splitlines()]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(behaviours: Mapping[str, str], **constants: float) -> Supervised:
        started.append(Supervised(tmp_path, behaviours, **constants))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.wait()
        assert supervised.process.stderr is not None
        supervised.process.stderr.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_passes_signals_on_and_ends(supervise: Callable[..., Supervised], signum: signal.Signals) -> None:
    supervised = supervise({"a": "good", "b": "good"})
    pids = [supervised.wait_for_lives(name, 1) for name in "ab"]
    supervised.process.send_signal(signal.SIGHUP)
    until(lambda: all("SIGHUP" in supervised.log(name) for name in "ab"))
    supervised.process.send_signal(signum)
    status, log = supervised.end()
    assert status == 0
    assert [line["event"] for line in log] == ["worker started", "worker started", "stopping", "stopped"]
    assert [supervised.log(name) for name in "ab"] == [[f"start {pid}", "SIGHUP", signum.name] for pid in pids]


def test_a_worker_that_died_starts_again(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise({"a": "good", "b": "good"})
    other = supervised.wait_for_lives("b", 1)
    for life in range(1, 4):
        os.kill(supervised.wait_for_lives("a", life), signal.SIGKILL)
    os.kill(supervised.wait_for_lives("a", 4), signal.SIGTERM)  # as for a rolling restart
    supervised.wait_for_lives("a", 5)
    supervised.process.terminate()
    status, log = supervised.end()
    assert status == 0
    assert supervised.pids("b") == [other]
    ended = [line for line in log if line["event"] == "worker ended: restarting it"]
    assert [line["status"] for line in ended] == ["SIGKILL", "SIGKILL", "SIGKILL", "0"]
    assert [float(line["seconds"]) for line in ended] == sorted(float(line["seconds"]) for line in ended)


def test_waits_double_to_a_limit() -> None:
    worker = SupervisedProcess("worker", {}, [])
    delays = []
    for _ in range(9):
        worker.began = time.monotonic()
        worker.end()
        delays.append(worker.delay)
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    worker.began = time.monotonic() - LONG_LIFE
    worker.end()
    assert worker.delay == 1.0


def test_one_that_cannot_start_ends_all(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise({"a": "good", "b": "refuses"})
    status, log = supervised.end()
    assert status == 2
    assert "a worker can't start: stopping all workers" in [line["event"] for line in log]
    assert len(supervised.pids("b")) == 1
    pids = [line["pid"] for line in log if line["event"] == "worker started"]
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_the_first_one_fails_alone(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise({"a": "refuses", "b": "good", "c": "good"}, HEAD_START=600)
    assert supervised.end()[0] == 2
    assert not supervised.pids("b") + supervised.pids("c")


def test_an_untidy_end_is_told(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise({"a": "good", "b": "untidy"})
    for name in "ab":
        supervised.wait_for_lives(name, 1)
    supervised.process.terminate()
    status, log = supervised.end()
    assert status == 1
    assert [line["worker"] for line in log if line["event"] == "worker did not end cleanly"] == ["b"]


def test_it_ends_while_it_waits_for_a_restart(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise({"a": "good"}, FIRST_DELAY=600)
    os.kill(supervised.wait_for_lives("a", 1), signal.SIGKILL)
    assert supervised.process.stderr is not None
    while "restarting it" not in supervised.process.stderr.readline():
        pass
    supervised.process.terminate()
    assert supervised.end()[0] == 0


def test_workers_do_not_outlive_it(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise({"a": "good", "b": "good"})
    pids = [supervised.wait_for_lives(name, 1) for name in "ab"]
    supervised.process.kill()
    until(lambda: not any(map(is_running, pids)))
    assert [supervised.log(name)[-1] for name in "ab"] == ["SIGTERM"] * 2


# ---- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("[::1]", ["[::1]"]),
        ("localhost", ["127.0.0.1", "[::1]"]),
        ("", ["0.0.0.0", "[::]"]),
    ],
)
def test_a_reserved_port_is_for_sharing_only(host: str, hosts: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        reservations = workers.reserve(f"{host}:0")
        for _, reserved in reservations:
            stack.enter_context(reserved)
        assert [address.rpartition(":")[0] for address, _ in reservations] == hosts
        assert len({address.rpartition(":")[2] for address, _ in reservations}) == 1, "one port"
        for address, reserved in reservations:
            assert not address.endswith(":0")
            with pytest.raises(ListenError):
                bind(address)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(reserved.getsockname()[:2], DEADLINE).close()
            with bind(address, shared=True)[0], bind(address, shared=True)[0]:
                socket.create_connection(reserved.getsockname()[:2], DEADLINE).close()
                with pytest.raises(ListenError, match="--listen"):
                    workers.reserve(address)


def test_host_name() -> None:
    from flockmq.broker.config.keys import KEYS

    assert KEYS["cluster.node_name"].kind.read(host_name(), is_text=True)


# ---- nodes ----------------------------------------------------------------------------------------------------------


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
    )


def test_a_taken_port_is_told_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve("--listen", address, "--workers", "3", "--redis", "redis://127.0.0.1:1", "--log-level", "error")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"flockmq: error: can't listen on {address}")


def test_nodes_share_a_port(redis_server: RedisProcess, tmp_path: Path) -> None:
    """Connections reach both nodes; one that is killed is there again."""
    broker = BrokerProcess(tmp_path, arguments=["--workers", "2", "--redis", redis_server.url, "--node-name", "n"])
    broker.start()
    try:
        pids = [broker.wait_for_log("worker started", worker=f"n-{number}")["pid"] for number in (1, 2)]
        until(lambda: len([line for line in broker.log if line["event"].endswith("is ready")]) == 2)
        with Wire(broker.port) as client:
            client.connect()
        seen = len(broker.log)
        os.kill(pids[1], signal.SIGKILL)
        broker.wait_for_log("is ready$", since=seen)
        with Wire(broker.port) as client:
            client.connect()
    finally:
        assert broker.stop() == 0, broker.log_text()
    assert broker.log[-1]["event"] == "stopped"
    broker.check()


def test_nodes_share_addresses_of_all_kinds(redis_server: RedisProcess, tmp_path: Path) -> None:
    """TLS and WebSocket, and a Unix socket, which one process binds and hands down; also addresses in tables."""
    path = tmp_path / "s"
    authority = Authority(tmp_path / "certificates")
    settings = tls_settings(authority.server()) | {"listeners.near.listen": f"unix:{path}"}
    broker = BrokerProcess(tmp_path, "memory", settings, ["--workers", "2", "--redis", redis_server.url])
    broker.start()
    try:
        until(lambda: len([line for line in broker.log if line["event"].endswith("is ready")]) == 2)
        assert len({line["listen"] for line in broker.log if line.get("name") == "open"}) == 1
        tls_client(ports(broker)["mqtts"], trusting(authority)).close()
        with websocket(ports(broker)["wss"], trusting(authority)):
            pass
        for _ in range(4):
            with socket.socket(socket.AF_UNIX) as connected:
                connected.connect(str(path))
                assert SocketClient(0, "near", connected=connected).ping() == []
    finally:
        assert broker.stop() == 0, broker.log_text()
    assert not path.exists()
    broker.check()


def test_workers_share_a_port_of_both_families(tmp_path: Path) -> None:
    broker = WorkersProcess(tmp_path, settings={"auth.allow_anonymous": True, "http.listen": ":0"})
    broker.listen = ":0"
    broker.start()
    try:
        for event in ("is ready", "HTTP server is listening"):
            urls = str(broker.wait_for_log(event)["listen"]).split(", ")
            hosts, ports = zip(*(url.partition("://")[2].rsplit(":", 1) for url in urls), strict=True)
            assert hosts == ("0.0.0.0", "[::]")
            assert len(set(ports)) == 1
        for host in ("127.0.0.1", "::1"):
            SocketClient(broker.port, host, host=host).close()
    finally:
        assert broker.stop() == 0
