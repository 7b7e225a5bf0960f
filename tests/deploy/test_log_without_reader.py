"""A log without a reader: the node serves on, ends in time, and reports each line that is lost."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from flockmq.broker.core.log_limiter import LINES
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient
from tests.harness.workers_process import WorkersProcess

pytestmark = pytest.mark.one_process

SMALLEST = 4096  # bytes, of a pipe
STRANGERS = 400


class Unread:
    """A process of `flockmq serve`, whose log is read only when the test asks for it.

    Args:
        broker: has its command line.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self.http = free_port()
        self.reads, writes = os.pipe()
        fcntl.fcntl(self.reads, fcntl.F_SETPIPE_SZ, SMALLEST)
        command = [*broker.command(), "--http", f"127.0.0.1:{self.http}"]
        self.process = subprocess.Popen(command, cwd=broker.directory, env=environment(), stderr=writes)
        os.close(writes)
        self.port = broker.port
        self._rest = b""
        self.lines = self._read()  # to the end of the log, as they come
        for _ in range(broker.workers if isinstance(broker, WorkersProcess) else 1):
            self.wait_for("is ready")

    def _read(self) -> Iterator[dict[str, Any]]:
        while data := os.read(self.reads, 1 << 16):
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read up to a line, which is returned."""
        return next(line for line in self.lines if line["event"].endswith(event))

    def fill(self) -> None:
        """Fill the pipe, so that not even one line fits."""
        file = os.open(f"/proc/self/fd/{self.reads}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(file, b"{}\n" * (SMALLEST // 3))
        os.close(file)

    def get(self, path: str) -> str:
        """A page of its HTTP server."""
        with urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=DEADLINE) as answer:
            return str(answer.read().decode())

    def end(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


Start = Callable[..., Unread]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Unread] = []

    def start(kind: type[BrokerProcess] = BrokerProcess, **more: Any) -> Unread:
        started.append(Unread(kind(tmp_path, **more)))
        return started[-1]

    yield start
    for unread in started:
        unread.process.kill()
        unread.process.wait()
        os.close(unread.reads)


def be_refused(port: int) -> None:
    with SocketClient(port, "", clean_start=False) as client:
        assert client.receive() is None


def test_a_node_serves_while_nobody_reads_its_log(start: Start) -> None:
    """400 refused connections have stopped the loop, also for the other nodes of a cluster."""
    node = start(settings={"log.level": "debug"})
    with SocketClient(node.port, "present") as client:
        for _ in range(STRANGERS):
            be_refused(node.port)
        client.ping()
        assert node.get("/readyz") == "ready\n"


def test_lines_that_are_dropped_are_counted_and_reported(start: Start) -> None:
    node = start(settings={"log.level": "debug"})

    def dropped() -> int:
        found = re.search(r"^flockmq_log_lines_dropped_total\{.*\} (\d+)", node.get("/metrics"), re.M)
        assert found is not None
        return int(found[1])

    assert dropped() == 0
    while not dropped():
        for _ in range(100):
            SocketClient(node.port, "c" * 1000).close()
    report = node.wait_for("lines of the log were dropped")
    assert report["lines"] == dropped()
    SocketClient(node.port, "later").close()
    assert next(line for line in node.lines if line.get("client_id") == "later")


def test_all_lines_before_the_end_arrive_in_order(start: Start) -> None:
    node = start(settings={"log.level": "debug"})
    for n in range(STRANGERS):
        SocketClient(node.port, f"client {n}").close()
    node.process.send_signal(signal.SIGTERM)
    lines = list(node.lines)
    assert node.process.wait(DEADLINE) == 0
    names = [line["client_id"] for line in lines if line["event"] == "client connected"]
    assert names == [f"client {n}" for n in range(STRANGERS)]
    assert lines[-1]["event"] == "stopped"


@pytest.mark.parametrize("kind", [BrokerProcess, WorkersProcess])
def test_the_process_ends_though_nobody_reads(kind: type[BrokerProcess], start: Start) -> None:
    node = start(kind)
    node.fill()
    assert node.end() == 0


def test_a_crash_is_told_after_the_lines_before_it(tmp_path: Path) -> None:
    code = "import sys; from flockmq.broker import standard_error as s\n"
    code += "s.take(); print('before', file=sys.stderr); 1 / 0"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=tmp_path, capture_output=True, timeout=DEADLINE
    )
    first, *_, last = done.stderr.splitlines()
    assert (first, last) == (b"before", b"ZeroDivisionError: division by zero")


def test_lines_that_a_stranger_causes_are_summed_up(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    for _ in range(STRANGERS):
        be_refused(broker.port)
        with SocketClient(broker.port) as client:
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert client.receive() is None
    assert broker.stop() == 0
    for event in ("connection refused", "connection ended before it was accepted"):
        lines = [line for line in broker.log if line["event"].startswith(event)]
        sums = [line for line in lines if line["event"] != event]
        assert {line["network"] for line in sums} == {"127.0.0.1"}
        assert len(lines) - len(sums) + sum(line["lines"] for line in sums) == STRANGERS
        assert len(lines) <= len(sums) * (LINES + 1), "a line for each period, and the first ones of it"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_parent_that_has_closed_it(tmp_path: Path, closed: str) -> None:
    """Nothing else gets its number: a log line in the store would damage it."""
    path, store = tmp_path / "socket", tmp_path / "store.db"
    serve = f"exec {sys.executable} -m flockmq.broker.cli serve --listen unix:{path} --store sqlite:{store} {closed}"
    process = subprocess.Popen(["sh", "-c", serve], cwd=tmp_path, env=environment())
    try:
        until(lambda: path.exists() or process.poll() is not None, "a socket")
        assert process.poll() is None
        files = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
        assert os.devnull in files and not any("store" in file or "socket" in file for file in files)
    finally:
        process.terminate()
        assert process.wait(DEADLINE) == 0
