"""mosquitto's and our own command-line clients against a node, with the same scenarios."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.harness import nursery
from tests.harness.broker_process import environment
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire

# A client of another maker sees no difference between a store in memory and one on disk.
pytestmark = pytest.mark.parametrize("store", ["sqlite", "cluster"])

Process = subprocess.Popen[bytes] | nursery.ForkedProcess
VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])


class Commands:
    """`pub` and `sub` of one maker."""

    def __init__(self, pub: list[str], sub: list[str]) -> None:
        self.pub_command = pub
        self.sub_command = sub
        self.port = 0
        self.running: list[Process] = []

    def pub(self, *arguments: str, stdin: bytes = b"") -> None:
        command = [*self.pub_command, "-p", str(self.port), "-h", "127.0.0.1", *arguments]
        done = nursery.run(command, input=stdin, capture_output=True, timeout=DEADLINE, env=environment())
        assert done.returncode == 0, (command, done.stderr)

    def sub(self, *arguments: str) -> Process:
        command = [*self.sub_command, "-p", str(self.port), "-h", "127.0.0.1", *arguments]
        process = nursery.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.running.append(process)
        return process

    def output(self, process: Process, status: int = 0) -> bytes:
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == status, err
        return out


def first_line(stream: "IO[bytes] | None") -> bytes:
    assert stream is not None
    return stream.readline()


MAKERS: dict[str, Callable[[], Commands | None]] = {
    "flockmq": lambda: Commands(
        [sys.executable, "-m", "flockmq.broker.cli", "pub"], [sys.executable, "-m", "flockmq.broker.cli", "sub"]
    ),
    "mosquitto": lambda: (
        Commands(["mosquitto_pub"], ["mosquitto_sub"])
        if shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")
        else None
    ),
}


@pytest.fixture(params=list(MAKERS))
def commands(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Commands]:
    made = MAKERS[request.param]()
    if made is None:
        pytest.skip("mosquitto_pub and mosquitto_sub are not installed (deploy/system-packages.sh test)")
    made.port = broker.port
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@VERSIONS
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_retained_and_live(commands: Commands, version: str, qos: str) -> None:
    """A subscriber shows that it is there by printing what was retained."""
    commands.pub("-V", version, "-t", "news/ready", "-m", "ready", "-r", "-q", "1")
    subscriber = commands.sub("-V", version, "-t", "news/#", "-q", qos, "-v", "-C", "4")
    assert first_line(subscriber.stdout) == b"news/ready ready\n"
    commands.pub("-V", version, "-t", "news/a", "-m", "hello", "-q", qos)
    commands.pub("-V", version, "-t", "news/b", "-l", "-q", qos, stdin=b"one\ntwo\n")
    assert commands.output(subscriber) == b"news/a hello\nnews/b one\nnews/b two\n"


@VERSIONS
def test_a_large_file(commands: Commands, version: str, tmp_path: Path) -> None:
    data = os.urandom(1_000_000)
    (tmp_path / "file").write_bytes(data)
    commands.pub("-V", version, "-t", "file", "-f", str(tmp_path / "file"), "-r", "-q", "2")
    assert commands.output(commands.sub("-V", version, "-t", "file", "-q", "2", "-C", "1", "-N")) == data


@VERSIONS
def test_a_will(commands: Commands, version: str, broker: Broker) -> None:
    with Wire(broker.port, name="watcher") as watcher:
        watcher.connect().subscribe("will:1")
        commands.pub("-t", "ready", "-m", "yes", "-r")
        subscriber = commands.sub(
            "-V", version, "-t", "ready", "--will-topic", "will", "--will-payload", "gone", "--will-qos", "1"
        )
        assert first_line(subscriber.stdout) == b"yes\n"
        subscriber.kill()
        watcher.expect("publish will gone q1 id=1")


@VERSIONS
def test_a_persistent_session(commands: Commands, version: str) -> None:
    commands.output(commands.sub("-V", version, "-t", "later", "-q", "2", "-i", "keeps", "-c", "-E"))
    for n in range(5):
        commands.pub("-V", version, "-t", "later", "-m", f"{n}", "-q", "2")
    subscriber = commands.sub("-V", version, "-t", "later", "-q", "2", "-i", "keeps", "-c", "-C", "5")
    assert commands.output(subscriber) == b"0\n1\n2\n3\n4\n"


def test_a_refused_client_id(commands: Commands) -> None:
    subscriber = commands.sub("-V", "mqttv31", "-t", "t", "-i", "x" * 24)
    out, err = subscriber.communicate(timeout=DEADLINE)
    assert subscriber.returncode != 0
    assert not out
    assert b"identifier" in err.lower()
