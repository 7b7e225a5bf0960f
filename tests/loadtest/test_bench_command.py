"""`flockmq bench` against real nodes: every shape, its output, and that it finds faults."""

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker.cli import main
from flockmq.loadtest.commands.bench import SHAPES
from flockmq.loadtest.generator.multiprocess import merged
from flockmq.loadtest.generator.port_owner import listening_pids, process_name
from tests.harness.broker_process import ROOT, BrokerProcess, environment
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import frame_size
from tests.security.access_files import quick_hash

SMALL = {
    "pairs": ["--publishers", "3"],
    "fan-out": ["--subscribers", "20"],
    "fan-in": ["--publishers", "20"],
    "shared": ["--publishers", "3", "--subscribers", "3"],
    "wild": ["--topics", "10000", "--filters", "20", "--subscribers", "20"],
    "connections": ["--connections", "200", "--subscribe", "--keep-alive", "1"],
    "connects": ["--parallel", "5"],
    "take-overs": ["--clients", "20", "--rate", "100"],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("node"))
    broker.start()
    yield broker
    assert broker.stop() == 0
    broker.check()


def bench(port: int, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors."""
    command = [sys.executable, "-m", "flockmq.broker.cli", "bench", *arguments, "--host", f"localhost:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment(), cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


def figures(port: int, *arguments: str) -> dict[str, Any]:
    status, output, errors = bench(port, *arguments, "--json")
    assert (status, errors) == (0, "")
    found = json.loads(output)["figures"]
    assert isinstance(found, dict)
    return found


def test_clients_may_show_credentials(tmp_path: Path) -> None:
    """Of any length that fits; a password is printed nowhere."""
    (tmp_path / "passwords").write_text("".join(f"{name}:{quick_hash('secret')}\n" for name in ("ada", "x" * 200)))
    settings = {"auth.password_file": tmp_path / "passwords", "auth.failure_delay": 0}
    broker = BrokerProcess(tmp_path, settings=settings).start()
    try:
        for user in ("ada", "x" * 200):
            for shape in ("pairs", "take-overs"):
                short = [shape, *SMALL[shape], "--seconds", "0.2", "--json", "-u", user]
                status, output, errors = bench(broker.port, *short, "-P", "secret")
                assert (status, errors) == (0, "") and "secret" not in output
        status, _, errors = bench(broker.port, "connections", "--connections", "3", "-u", "ada", "-P", "wrong")
        assert status == 1 and errors.startswith("flockmq: error: ")
    finally:
        broker.close()


def test_small_covers_every_shape() -> None:
    assert SMALL.keys() == SHAPES.keys()


@pytest.mark.parametrize("qos", ["0", "1", "2"])
@pytest.mark.parametrize("shape", ["pairs", "fan-out", "fan-in", "shared", "wild"])
def test_messages(node: BrokerProcess, shape: str, qos: str) -> None:
    found = figures(node.port, shape, "--qos", qos, "--count", "1000", "--seconds", "20", *SMALL[shape])
    assert found["published"] == 1000
    assert found["received"] == found["expected"] > 0
    assert found["lost"] == found["duplicates"] == found["reordered"] == 0
    assert sum(found["latencies"].values()) == found["received"]
    assert found["cpu_us_per_delivery"] > 0


@pytest.mark.parametrize("shape", ["connections", "connects", "take-overs"])
def test_connections(node: BrokerProcess, shape: str) -> None:
    found = figures(node.port, shape, "--seconds", "1", *SMALL[shape])
    done = {"connections": "pongs", "connects": "connects", "take-overs": "take_overs"}[shape]
    assert found[done] > 0
    assert found["refused"] == found["closed"] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_table(node: BrokerProcess, shape: str, tmp_path: Path) -> None:
    hdr = tmp_path / "latency.hgrm"
    status, output, errors = bench(node.port, shape, "--seconds", "0.5", "--hdr", str(hdr), *SMALL[shape])
    assert (status, errors) == (0, "")
    assert output.startswith(f"{shape}: ")
    assert f"({node.pid})" in output
    assert re.search(r"broker's CPU +[\d.e+-]+ us a ", output)
    if SHAPES[shape].defaults.get("shape"):
        assert "none lost, none twice, all in order" in output
        assert hdr.read_text().splitlines()[-1].startswith("#[Max")


def test_a_file_that_can_not_be_written_costs_no_result(node: BrokerProcess, tmp_path: Path) -> None:
    hdr = tmp_path / "nowhere" / "latency.hgrm"
    status, output, errors = bench(node.port, "pairs", "--count", "10", "--hdr", str(hdr), *SMALL["pairs"])
    assert status == 1
    assert "none lost" in output
    assert errors.startswith("flockmq: error: ") and errors.count("\n") == 1


def test_processes_side_by_side(node: BrokerProcess) -> None:
    one = ["pairs", "--publishers", "2", "--qos", "1", "--count", "500", "--seconds", "20"]
    found = figures(node.port, *one, "--processes", "2")
    assert found["published"] == found["received"] == found["acknowledged"] == 1000
    assert found["qos"] == 1
    assert sum(found["latencies"].values()) == 1000
    assert found["cpu_us_per_delivery"] == pytest.approx(found["cpu_s"] * 1e6 / found["delivered"])


@pytest.mark.parametrize(
    ("counted", "cost"),
    [
        ("delivered", "cpu_us_per_delivery"),
        ("connects", "cpu_us_per_connect"),
        ("take_overs", "cpu_us_per_take_over"),
        ("connections", "memory_per_connection_bytes"),
    ],
)
def test_what_a_thing_costs_is_of_the_things_of_all_processes(counted: str, cost: str) -> None:
    first = {counted: 100, cost: 8.0, f"{cost}_median": 8.0, "cpu_share": 0.5}
    assert merged([first, {counted: 300}]) == {counted: 400, cost: 2.0, "cpu_share": 0.5}


def test_two_nodes(node: BrokerProcess, tmp_path: Path) -> None:
    """Nothing published at a node without the other arrives: it is reported as lost."""
    other = BrokerProcess(tmp_path)
    other.start()
    pids = node.pid, other.pid
    try:
        there = f"127.0.0.1:{other.port}"
        status, output, errors = bench(node.port, "pairs", "--qos", "1", "--count", "50", "--publish-host", there)
    finally:
        other.stop()
    assert status == 3
    assert "50 lost" in output
    assert "fault: lost: 50" in errors
    assert all(f"({pid})" in output for pid in pids)


class Meddler:
    """Between the generator and the node: every tenth PUBLISH to a client is dropped or sent twice."""

    def __init__(self, port: int, *, twice: bool) -> None:
        self._target = port
        self._twice = twice
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            node = socket.create_connection(("127.0.0.1", self._target), DEADLINE)
            threading.Thread(target=self._copy, args=(client, node, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(node, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, meddle: bool) -> None:
        data = bytearray()
        seen = 0
        with source, target:
            try:
                while piece := source.recv(65536):
                    data += piece
                    while (size := frame_size(data)) and size <= len(data):
                        frame, data = bytes(data[:size]), data[size:]
                        seen += meddle and frame[0] >> 4 == 3
                        if meddle and frame[0] >> 4 == 3 and seen % 10 == 0:
                            frame = frame * 2 if self._twice else b""
                        target.sendall(frame)
            except OSError:
                pass


@pytest.mark.parametrize(("twice", "words"), [(False, "100 lost"), (True, "100 twice")])
def test_what_is_wrong_is_found(node: BrokerProcess, twice: bool, words: str) -> None:
    meddler = Meddler(node.port, twice=twice)
    try:
        arguments = ("pairs", "--publishers", "1", "--count", "1000", "--seconds", "20", "--batch", "10")
        status, output, errors = bench(meddler.port, *arguments, "--qos", "0")
    finally:
        meddler.close()
    assert words in output
    assert status == (3 if twice else 0)  # QoS 0 may be lost
    assert bool(errors) == twice


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nonsense"], 2, "invalid choice: 'nonsense'"),
        (["--payload", "3"], 2, "3 is less than 32"),
        (["--seconds", "0"], 2, "0 is less than 0.001"),
        (["--seconds", "nan"], 2, "nan is less than 0.001"),
        (["--rate", "-1"], 2, "-1 is less than 0"),
        (["connects", "--qos", "1"], 1, "--qos does not apply to connects"),
        (["--publishers", "3", "--subscribers", "4"], 1, "as many publishers as subscribers"),
        (["--host", "localhost:http"], 1, "'localhost:http' is not HOST or HOST:PORT"),
        (["--host", "nowhere.invalid"], 1, "nowhere.invalid"),
        (["--pid", "99999999"], 1, "no process 99999999"),
        (["--properties", "60"], 1, "properties, ids and alias need level 5"),
        (["--level", "3"], 2, "invalid choice: 3"),
        (["connects", "--ids"], 1, "--ids does not apply to connects"),
    ],
)
def test_mistakes(arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("flockmq: error: ")
    assert words in error
    assert error.count("\n") == 1


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["bench", "--host", f"127.0.0.1:{port}"]) == 1
    assert "Connection refused" in capsys.readouterr().err


def test_who_listens(node: BrokerProcess) -> None:
    assert listening_pids(node.port) == [node.pid]
    assert process_name(node.pid).startswith(("python", "flockmq"))
    assert process_name(1 << 30) == str(1 << 30)
