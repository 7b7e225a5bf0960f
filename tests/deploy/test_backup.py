"""`flockmq backup` and `flockmq restore`: messages acknowledged before a backup are there after the restore."""

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.broker.admin.http.tokens import add
from flockmq.cluster.backup import cluster_backup
from flockmq.cluster.redis.clients import RedisAddress
from flockmq.cluster.redis.packed_session import LISTED, PERSISTENT, PackedSession
from tests.conftest import StartBroker, StartCluster, StartRedis
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.command import flockmq
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import KEEPS, RedisProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue
from tests.web.http_client import HttpClient

STORE = "flockmq.db"
LONG_QUEUES: dict[str, object] = {"limits.max_queued_messages": 1_000_000}  # as long as a publisher goes on
HTTP: dict[str, object] = {"http.listen": "127.0.0.1:0", **LONG_QUEUES}


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


# ---- a node ----


def test_a_running_node(tmp_path: Path) -> None:
    """It goes on; another node serves its backup."""
    running = BrokerProcess(tmp_path, "sqlite", {**HTTP, "analytics.topics": "q"}).start()
    subscribe(running.port)
    backup, place = tmp_path / "b.tar", tmp_path / "restored"
    (tmp_path / f"{STORE}-backup-left").mkdir()  # by a node that was killed
    with Publisher(running.port) as publisher:
        until(lambda: publisher.acknowledged > 200)
        before = publisher.acknowledged
        flockmq("backup", backup, HttpClient(running).url)
        after = publisher.acknowledged
        until(lambda: publisher.acknowledged > after + 20)
    assert running.stop() == 0
    found = re.search(r"1 sessions with 1 subscriptions and (\d+) queued", flockmq("backup", backup, "--verify"))
    assert found and before <= int(found[1]) <= after + 2
    assert not list(tmp_path.glob(f"{STORE}-backup-*"))
    place.mkdir()
    flockmq("restore", backup, f"sqlite:{place / STORE}")
    copy = BrokerProcess(place, "sqlite", {"analytics.topics": "q"}).start()
    with SocketClient(copy.port, "stream") as client:  # the log of messages is there, too
        client.subscribe(("$stream/earliest/q", 0))
        streamed = [client.receive() for _ in range(before)]
        assert [packet.payload for packet in streamed if isinstance(packet, Publish)] == [
            b"%d" % number for number in range(1, before + 1)
        ]
    numbers, retained = restored(copy.port)
    assert copy.stop() == 0
    assert numbers == list(range(1, len(numbers) + 1))
    assert before <= len(numbers) <= after + 2
    assert before <= retained <= after + 2
    assert "lacks" not in copy.log_text()


def test_a_stopped_node(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path, "sqlite", LONG_QUEUES).start()
    subscribe(running.port)
    backup, place = tmp_path / "b.tar", tmp_path / "restored"
    store = f"sqlite:{tmp_path / STORE}"
    with Publisher(running.port) as publisher:
        until(lambda: publisher.acknowledged > 100)
        assert "is in use by another process" in flockmq("backup", backup, store, status=1)
    running.kill()
    flockmq("backup", backup, store)
    assert "a backup never replaces another one" in flockmq("backup", backup, store, status=1)
    assert "a restore replaces nothing" in flockmq("restore", backup, store, status=1)
    place.mkdir()
    flockmq("restore", backup, f"sqlite:{place / STORE}")
    copy = BrokerProcess(place, "sqlite").start()
    assert restored(copy.port) == (list(range(1, publisher.acknowledged + 1)), publisher.acknowledged)
    assert copy.stop() == 0


def test_a_copy_of_the_files_while_the_node_stands_still(tmp_path: Path) -> None:
    """So a snapshot of the file system is a backup, too."""
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
    running = BrokerProcess(tmp_path, "sqlite", LONG_QUEUES).start()
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM block')"
    done = subprocess.run(["python3", "-c", script, tmp_path / STORE], capture_output=True, text=True, timeout=DEADLINE)
    assert "database is locked" in done.stderr
    assert running.stop() == 0


@pytest.mark.parametrize("store", ["sqlite"])
def test_the_api_needs_an_administrator(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    admin, reader, tenant = add(path, "a", "admin", ""), add(path, "r", "viewer", ""), add(path, "t", "admin", "acme")
    broker = start_broker({**HTTP, "http.tokens_file": path})
    assert [HttpClient(broker, token).ask("POST", "/backup").status for token in ("", reader, tenant)] == [
        401,
        403,
        403,
    ]
    reply = HttpClient(broker, admin).ask("POST", "/backup", log="false")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-tar")
    assert b"SHA256SUMS" in reply.data and b"log/" not in reply.data


@pytest.mark.parametrize("store", ["memory"])
def test_a_node_without_a_file_has_no_backup(start_broker: StartBroker, tmp_path: Path) -> None:
    url = HttpClient(start_broker(HTTP)).url
    assert "this node has no state in a file" in flockmq("backup", tmp_path / "b.tar", url, status=1)
    assert not list(tmp_path.glob("b.tar*"))


# ---- a cluster ----


def test_a_cluster(tmp_path: Path, start_redis: StartRedis) -> None:
    """Everything runs while it is copied. It is restored into a new Redis, under another prefix, beside other keys."""
    backup = tmp_path / "b.tar"
    settings = {"cluster.lease": 1, "limits.max_queued_messages": 1_000_000, **HTTP}
    with ClusterProcess(tmp_path, settings, nodes="ab", orderly=False) as cluster:
        subscribe(cluster["a"].port)
        refusal = flockmq("backup", backup, HttpClient(cluster["a"]).url, status=1)
        assert (
            f"Redis keeps the state; `flockmq backup FILE redis://127.0.0.1:{cluster.redis.port}/0` copies it"
            in refusal
        )
        with Publisher(cluster["b"].port) as publisher:
            until(lambda: publisher.acknowledged > 200)
            before = publisher.acknowledged
            flockmq("backup", backup, cluster.redis.url)
            after = publisher.acknowledged
        cluster.kill()
    found = re.search(r"1 sessions with 1 subscriptions and (\d+) queued", flockmq("backup", backup, "--verify"))
    assert found and before <= int(found[1]) <= after + 2
    server = start_redis(KEEPS["everysec"])
    with server.client() as client:
        client.set("other", "kept")
        flockmq("restore", backup, server.url, "--prefix", "shop:")
        assert client.get("other") == "kept"
        assert not list(client.scan_iter("mq:*"))
    settings["cluster.prefix"] = "shop:"
    with ClusterProcess(tmp_path, settings, nodes="cd", redis=server, orderly=False) as cluster:
        numbers, retained = restored(cluster["c"].port)
        cluster.check()
    assert numbers == list(range(1, len(numbers) + 1))
    assert before <= retained <= len(numbers) <= after + 2
    assert "has state already" in flockmq("restore", backup, server.url, "--prefix", "shop:", status=1)


def test_an_interrupted_restore_is_repeated(
    tmp_path: Path, start_cluster: StartCluster, start_redis: StartRedis
) -> None:
    """Until it is complete, no node uses the place."""
    cluster = start_cluster()
    for number in range(300):
        with SocketClient(cluster.port, f"c{number}", clean_start=False) as client:
            client.subscribe(("t", 1))
    backup = tmp_path / "b.tar"
    flockmq("backup", backup, cluster.redis.url)
    server = start_redis()
    command = [sys.executable, "-m", "flockmq.broker.cli", "restore", str(backup), server.url]
    with server.client() as client, subprocess.Popen(command, env=environment()) as process:
        until(lambda: client.exists("mq:layout"))
        process.kill()
    found = flockmq("serve", "--listen", "127.0.0.1:0", "--redis", server.url, status=2)
    assert re.search(r"a move of state has not ended, from the backup .*b\.tar; repeat .*`flockmq restore`", found)
    shutil.copy(backup, tmp_path / "other.tar")
    found = flockmq("restore", tmp_path / "other.tar", server.url, status=1)
    assert re.search(r"a restore of the backup .*/b\.tar to redis.* has not ended", found)
    flockmq("restore", backup, server.url)
    with server.client() as client:
        assert client.scard("mq:sessions") == 300


def test_large_keys_are_copied_in_parts(start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_backup, "LARGE", 2000)
    monkeypatch.setattr(cluster_backup, "BATCH_BYTES", 500)
    servers = [start_redis(), start_redis()]
    source, target = (redis.Redis(port=server.port) for server in servers)
    source.hset("mq:retained", mapping={f"t{number}": bytes([number % 256]) * 50 for number in range(1000)})
    source.rpush("mq:q:a*", *(b"%d" % number for number in range(1000)))
    source.sadd("mq:sessions", *(f"c{number}" for number in range(1000)))
    source.set("mq:s:a*", PackedSession(1, 1, flags=PERSISTENT | LISTED).encode())
    source.xadd("mq:log:n", {"b": b"x" * 3000}, "1-0")
    source.set("mq:analytics:lock:j", "x", px=1_000_000)
    source.set("mq:unknown", "x")
    source.set("mqx", "x")
    target.rpush("mq:q:a*", "before")
    address = RedisAddress.parse(servers[1].url)
    cluster_backup.copy(source, b"mq:", target, address.keys, with_log=True)
    copied = set(source.keys()) - {b"mq:unknown", b"mqx"}
    assert set(target.keys()) == copied
    for key in copied - {b"mq:retained", b"mq:q:a*", b"mq:sessions"}:
        assert target.dump(key) == source.dump(key)
    assert target.smembers("mq:sessions") == source.smembers("mq:sessions")
    assert target.hgetall("mq:retained") == source.hgetall("mq:retained")
    assert stored_queue(target, "a*") == stored_queue(source, "a*")
    assert target.pttl("mq:analytics:lock:j") > 0
    source.close()
    target.close()


def test_a_redis_that_refuses(tmp_path: Path, start_redis: StartRedis) -> None:
    """It has a password; its user lacks a right; it is away."""
    server: RedisProcess = start_redis(["--requirepass", "sesame"], {"password": "sesame"})
    backup = tmp_path / "b.tar"
    assert "Authentication required" in flockmq("backup", backup, server.url, status=1)
    wrong = f"redis://:x@127.0.0.1:{server.port}"
    assert "invalid username-password pair" in flockmq("backup", backup, wrong, status=1)
    with server.client() as client:
        client.acl_setuser("ada", enabled=True, passwords=["+b"], keys=["*"], commands=["+@all", "-sync"])
    found = flockmq("backup", backup, f"redis://ada:b@127.0.0.1:{server.port}", status=1)
    assert "NOPERM" in found and "needs the right to SYNC" in found
    flockmq("backup", backup, f"redis://:sesame@127.0.0.1:{server.port}")
    assert "sesame" not in backup.read_bytes().decode("latin-1")
    server.kill()
    assert "can't use Redis at" in flockmq("backup", tmp_path / "c.tar", server.url, status=1)
    assert not list(tmp_path.glob("c.tar*"))
