"""Backup and restore, by deploy/docs/RUNBOOK.md: messages acknowledged before the backup are there after it."""

import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flockmq._speedups.codec.packets import Puback, Publish
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import KEEPS, RedisProcess
from tests.harness.socket_client import SocketClient

STORE = "flockmq.db"


class Publisher:
    """Publishes 1, 2, 3 ... to q and, retained, to r; each is acknowledged before the next."""

    def __init__(self, port: int) -> None:
        self._client = SocketClient(port, "publisher")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            number = self.acknowledged + 1
            for topic, packet_id in (("q", 1), ("r", 2)):
                packet = Publish(topic, str(number).encode(), qos=1, retain=topic == "r", packet_id=packet_id)
                self._client.send(packet)
                assert isinstance(self._client.receive(), Puback)
            self.acknowledged = number

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        self._client.close()


def subscribe(port: int) -> None:
    """A persistent session that is away."""
    with SocketClient(port, "keeper", clean_start=False) as client:
        client.subscribe(("q", 1))


def restored(port: int) -> tuple[list[int], int]:
    """The numbers in the persistent session, and the retained value."""
    with SocketClient(port, "reader") as client:
        client.subscribe(("r", 0))
        retained = client.receive()
        assert isinstance(retained, Publish)
    with SocketClient(port, "keeper", clean_start=False) as client:
        numbers: list[int] = []
        while not numbers or numbers[-1] < int(retained.payload):
            message = client.receive()
            assert isinstance(message, Publish)
            numbers.append(int(message.payload))
            client.send(Puback(message.packet_id))
        return numbers, int(retained.payload)


@contextmanager
def frozen(broker: BrokerProcess) -> Iterator[None]:
    """The node stands still."""
    broker.signal(signal.SIGSTOP)
    until(lambda: re.search(r"\) T ", Path(f"/proc/{broker.pid}/stat").read_text()))
    try:
        yield
    finally:
        broker.signal(signal.SIGCONT)


def test_the_store_of_a_node_is_copied_while_it_stands_still(tmp_path: Path) -> None:
    places = [tmp_path / "running", tmp_path / "restored"]
    for place in places:
        place.mkdir()
    running = BrokerProcess(places[0], "sqlite").start()
    subscribe(running.port)
    with Publisher(running.port) as publisher:
        until(lambda: publisher.acknowledged > 200)
        with frozen(running):
            before = publisher.acknowledged
            for path in places[0].glob(f"{STORE}*"):
                shutil.copy2(path, places[1])
        until(lambda: publisher.acknowledged > before + 20)  # it goes on
    assert running.stop() == 0
    copy = BrokerProcess(places[1], "sqlite").start()
    numbers, retained = restored(copy.port)
    assert copy.stop() == 0
    assert numbers == list(range(1, len(numbers) + 1))
    assert before <= len(numbers) <= before + 1
    assert before <= retained <= before + 1


def test_the_store_of_a_running_node_is_not_read_by_others(tmp_path: Path) -> None:
    """So nobody can take half of it for a backup."""
    running = BrokerProcess(tmp_path, "sqlite").start()
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM block')"
    done = subprocess.run(["python3", "-c", script, tmp_path / STORE], capture_output=True, text=True, timeout=DEADLINE)
    assert "database is locked" in done.stderr
    assert running.stop() == 0


def test_redis_is_copied_over_the_network_and_restored(tmp_path: Path) -> None:
    place = tmp_path / "restored"
    place.mkdir()
    with ClusterProcess(
        tmp_path, {"cluster.lease": 1, "limits.max_queued_messages": 1_000_000}, nodes="ab", orderly=False
    ) as cluster:
        with cluster.redis.client() as client:
            client.config_set("repl-diskless-sync-delay", 0)  # it waits 5 s for others with the same request
        subscribe(cluster["a"].port)
        with Publisher(cluster["b"].port) as publisher:
            until(lambda: publisher.acknowledged > 200)
            before = publisher.acknowledged
            taken = ["redis-cli", "-p", str(cluster.redis.port), "--rdb", str(place / "dump.rdb")]
            subprocess.run(taken, check=True, capture_output=True, timeout=DEADLINE)
            after = publisher.acknowledged
        cluster.kill()
        cluster.redis.kill()
    restore(place)
    server = RedisProcess(place, KEEPS["everysec"]).start()
    try:
        with ClusterProcess(tmp_path, {"cluster.lease": 1}, nodes="cd", redis=server, orderly=False) as cluster:
            numbers, retained = restored(cluster["c"].port)
            cluster.check()
    finally:
        server.kill()
    assert numbers == list(range(1, len(numbers) + 1))
    assert before <= retained <= len(numbers) <= after + 2


def restore(place: Path) -> None:
    """A Redis that has read dump.rdb writes its append-only file; one that has that file on would ignore dump.rdb."""
    server = RedisProcess(place).start()
    with server.client() as client:
        client.config_set("appendonly", "yes")
        until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    server.stop()
