"""`flockmq lake` with the log of a node, over HTTP: a node alone, whose log is in files, and no Redis."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from flockmq.broker.cli import main
from flockmq.cluster.analytics.http_driver import HttpDriver
from flockmq.cluster.analytics.log.offsets import Offsets
from flockmq.cluster.analytics.stream_driver import Batch
from flockmq.cluster.tables.place import LAKE_WRITER
from tests.harness.broker_process import until
from tests.harness.cluster_process import new_seed
from tests.harness.logs import OneNode
from tests.harness.socket_client import SocketClient
from tests.lake.test_lake import Process, once
from tests.security.access_files import AccessFiles
from tests.streams.test_streams import publish
from tests.web.http_client import HttpClient

KILLS = 3


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    """A node with the users `reader`, who reads the topics of sites, and `writer`."""
    files = AccessFiles(tmp_path)
    files.users("reader", "writer")
    files.rules("user reader", "topic read site/#", "user writer", "topic write #")
    settings = {"analytics.topics": "#", "mqtt.sys_interval": 0}
    node = OneNode(tmp_path, {**files.settings(), **settings})
    node.start()
    yield node
    assert node.stop() == 0, node.log_text()
    node.check()


def config_of(node: OneNode, directory: Path, password: str = "reader") -> Path:
    path = directory / "lake.toml"
    path.write_text(
        f'log = "{HttpClient(node).url}"\nuser = "reader"\npassword = "{password}"\nevery = "10 ms"\nbatch_mib = 1\n'
        f'[[tables]]\ntable = "{directory}/table"\n'
    )
    return path


def rows_of(directory: Path) -> Counter[tuple[str, bytes]]:
    found = DeltaTable(directory / "table").to_pyarrow_table().to_pylist()
    return Counter((row["topic"], row["payload"]) for row in found)


def writer_of(node: OneNode) -> SocketClient:
    return SocketClient(node.port, "w", username="writer", password=b"writer")


def test_kill_9_of_the_command_and_of_the_node(node: OneNode, tmp_path: Path) -> None:
    """Each message is a row once; messages of other topics are not there."""
    chance = random.Random(new_seed())
    path = config_of(node, tmp_path)
    sent: Counter[tuple[str, bytes]] = Counter()
    commits = 0
    for turn in range(KILLS):
        process = Process(path)
        commits += 2
        with writer_of(node) as writer:
            while process.log.read_bytes().count(b"committed") < commits:
                assert process.process.poll() is None, process.log.read_text()
                some = [b"%d" % (len(sent) + number) for number in range(20)]
                publish(writer, "site/1", *some)
                publish(writer, "other", *some)
                sent.update(("site/1", each) for each in some)
                time.sleep(0.01)
        time.sleep(chance.random() * 0.1)
        process.kill()
        if turn % 2:
            node.kill()
            node.start()
            path = config_of(node, tmp_path)
        commits = process.log.read_bytes().count(b"committed")
    once(path)
    assert rows_of(tmp_path) == sent
    once(path)
    assert rows_of(tmp_path) == sent


def test_once_ends_while_messages_arrive(node: OneNode, tmp_path: Path) -> None:
    ended = threading.Event()
    sent: list[bytes] = []

    def write() -> None:
        with writer_of(node) as writer:
            while not ended.is_set():
                publish(writer, "site/1", b"%d" % len(sent))
                sent.append(b"")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        until(lambda: len(sent) > 10)
        once(config_of(node, tmp_path))
    finally:
        ended.set()
        thread.join()
    assert len(rows_of(tmp_path)) >= 10


def test_once_ends_where_the_log_ended_at_its_start(
    node: OneNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although each batch lets the log grow by more than a batch."""
    path = config_of(node, tmp_path)
    writer = writer_of(node)
    large = bytes(1 << 19)
    publish(writer, "site/1", *[large] * 3)
    batches = 0
    batch = HttpDriver.batch

    def growing(driver: HttpDriver, start: Offsets, budget: int, end: Offsets | None = None) -> Batch:
        nonlocal batches
        batches += 1
        found = batch(driver, start, budget, end)
        if batches < 20:
            publish(writer, "site/1", *[large] * 3)
        return found

    monkeypatch.setattr(HttpDriver, "batch", growing)
    once(path)
    assert rows_of(tmp_path).total() == 3
    once(path)
    assert rows_of(tmp_path).total() > 3


def test_the_node_is_away_or_refuses(node: OneNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(writer_of(node), "site/1", b"1")
    path = config_of(node, tmp_path, "wrong")
    assert main(["lake", str(path), "--once"]) == 1
    assert "(401): wrong user name, password or token" in capsys.readouterr().err
    path = config_of(node, tmp_path)
    node.kill()
    process = Process(path)
    until(lambda: b"the target waits" in process.log.read_bytes())
    node.start()
    address = HttpClient(node).url
    process.kill()
    path.write_text(path.read_text().replace(path.read_text().split('"')[1], address))
    once(path)
    assert rows_of(tmp_path) == Counter({("site/1", b"1"): 1})


def test_messages_that_were_deleted_are_an_error(
    node: OneNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.settings["analytics.log_bytes"] = 1 << 20
    node.restart()
    path = config_of(node, tmp_path)
    with writer_of(node) as writer:
        publish(writer, "site/1", b"first")
        once(path)
        publish(writer, "site/1", *[b"x" * 100_000] * 80)
    capsys.readouterr()
    assert main(["lake", str(path), "--once"]) == 1
    error = capsys.readouterr().err
    assert "bytes are missing from the log of node" in error and "--skip-missing" in error
    assert main(["lake", str(path), "--once", "--skip-missing"]) == 0
    assert 1 < rows_of(tmp_path).total() < 81
    assert json.loads(DeltaTable(tmp_path / "table").history(1)[0][LAKE_WRITER])
