"""`flockmq import mosquitto.db`: clients of a real Mosquitto come back to FlockMQ, and get what they were owed."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from flockmq.broker.errors import StoreError
from flockmq.broker.storage import sqlite_file
from tests.cluster.rich_state import AS_PUBLISHED, HOUR, PROPERTIES, leave, numbered
from tests.cluster.test_migrate import same, stage_of, state_of
from tests.cluster.test_mosquitto_file import rich, sessions_of
from tests.conftest import StartCluster
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.deadline import DEADLINE
from tests.harness.mosquitto_process import MosquittoProcess
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient

Run = Callable[..., "subprocess.CompletedProcess[str]"]
NO_LOCAL = 4
FOREVER = {"session_expiry_interval": 0xFFFFFFFF}

pytestmark = pytest.mark.skipif(not MosquittoProcess.is_installed(), reason="mosquitto is not installed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the file that Mosquitto writes."""
    return tmp_path / "mosquitto.db"


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[MosquittoProcess]:
    """A Mosquitto that keeps its state."""
    lines = ("user root", "persistence true", f"persistence_location {tmp_path}/", "queue_qos0_messages true")
    process = MosquittoProcess(tmp_path, *lines).start()
    yield process
    process.kill()


@pytest.fixture
def node(tmp_path: Path) -> BrokerProcess:
    """A node with a SQLite store, not started."""
    return BrokerProcess(tmp_path, "sqlite")


@pytest.fixture
def run_import() -> Run:
    """Run the command; `fails`: a part of the error that it must report."""

    def run(*arguments: Any, fails: str = "", command: str = "import") -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "flockmq.broker.cli", command, *map(str, arguments)]
        done = nursery.run(line, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        assert bool(done.returncode) == bool(fails), done.stderr
        assert fails in done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


class MosquittoState:
    """Makes sessions with all that a file can have; later looks for it at nodes of FlockMQ.

    Args:
        port: of Mosquitto.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[SocketClient] = []  # connected until Mosquitto ends
        self._make_four()
        self._make_five()
        self._make_senders()

    def _client(self, client_id: str, level: int = 4, **connect: Any) -> SocketClient:
        return SocketClient(self._port, client_id, level=level, **connect)

    def _publish(self, *messages: Publish, level: int = 4) -> None:
        with self._client("publisher", level) as publisher:
            for message in messages:
                publisher.send(message)
                if message.qos == 2:
                    answer = publisher.receive()
                    assert isinstance(answer, Pubrec) and answer.packet_id == message.packet_id
                    publisher.send(Pubrel(message.packet_id))
                    assert isinstance(publisher.receive(), Pubcomp)
                elif message.qos:
                    assert isinstance(publisher.receive(), Puback)
            publisher.send(Disconnect())
            assert publisher.receive() is None

    def _make_four(self) -> None:
        """In flight: one of QoS 1, one with PUBREC, one of QoS 2; one is acknowledged out of turn; two wait."""
        four = self._client("four", clean_start=False)
        assert four.subscribe(("a/#", 1), ("b/#", 2), ("/x/+/y", 0)) == [1, 2, 0]
        self._publish(
            Publish("a/1", b"1", 1, packet_id=1),
            Publish("b/2", b"2", 2, packet_id=2),
            Publish("b/3", b"3", 2, packet_id=3),
            Publish("a/4", b"4", 1, packet_id=4),
        )
        assert [numbered(four.receive()) for _ in range(4)] == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
        four.send(Puback(4), Pubrec(2))
        assert four.receive() == Pubrel(2)
        leave(four)
        self._publish(
            Publish("a/5", b"5", 1, packet_id=1),
            Publish("b/6", b"6", 2, packet_id=2),
            Publish("a/7", b"0", 0),  # in the queue of QoS 0 messages, as this Mosquitto is configured
        )

    def _make_five(self) -> None:
        """Level 5: options, identifiers, properties, expiry; connections that are there until the end."""
        five = self._client("five", 5, clean_start=False, properties=HOUR)
        five.send(Subscribe(1, [("c/#", 1 | AS_PUBLISHED | NO_LOCAL)], {"subscription_identifier": 7}))
        assert isinstance(five.receive(), Suback)
        five.send(Disconnect())
        assert five.receive() is None
        properties = PROPERTIES | {"message_expiry_interval": 1000}
        self._publish(Publish("c/1", b"five", 1, True, packet_id=1, properties=properties), level=5)
        self._publish(Publish("kept/1", b"retained", 2, True, packet_id=1), Publish("gone", b"", 0, True))
        there = self._client("there", 5, clean_start=False, properties=FOREVER)
        assert there.subscribe(("d/#", 2)) == [2]
        self._publish(Publish("d/1", b"d", 2, packet_id=1))
        assert numbered(there.receive()) == (1, b"d")
        self._open.append(there)
        brief = self._client("brief", 5, clean_start=False)  # its session ends with its connection
        assert brief.subscribe(("e/#", 1)) == [1]
        self._open.append(brief)

    def _make_senders(self) -> None:
        """Messages of QoS 2 that await PUBREL, from two clients."""
        for client_id, level in (("sender", 4), ("sender-5", 5)):
            properties = {"properties": FOREVER} if level == 5 else {}
            sender = self._client(client_id, level, clean_start=False, **properties)
            sender.send(Publish(f"a/{client_id}", b"once", 2, packet_id=9))
            assert isinstance(sender.receive(), Pubrec)
            leave(sender)

    def close(self) -> None:
        """Mosquitto has ended: so have the connections."""
        for client in self._open:
            client.close()

    # ---- finding it ----

    def find(self, *nodes: BrokerProcess) -> None:
        """Look for all of it at these nodes; this changes it."""
        self._port = nodes[0].port
        self._find_four_and_senders(nodes[-1])
        self._find_five()

    def _back(self, client_id: str, level: int = 4, **connect: Any) -> SocketClient:
        client = self._client(client_id, level, clean_start=False, **connect)
        assert client.connack is not None and client.connack.session_present, client_id
        return client

    def _find_four_and_senders(self, other: BrokerProcess) -> None:
        four = self._back("four")
        expected: list[Packet] = [
            Publish("a/1", b"1", 1, dup=True, packet_id=1),
            Pubrel(2),
            Publish("b/3", b"3", 2, dup=True, packet_id=3),
            Publish("a/5", b"5", 1, packet_id=4),
            Publish("b/6", b"6", 2, packet_id=5),
        ]
        assert [four.receive() for _ in expected] == expected
        four.send(Puback(1), Pubcomp(2), Pubrec(3), Puback(4), Pubrec(5))
        assert [four.receive(), four.receive()] == [Pubrel(3), Pubrel(5)]
        four.send(Pubcomp(3), Pubcomp(5))
        self._port = other.port
        for number, (client_id, level) in enumerate((("sender", 4), ("sender-5", 5)), 6):
            sender = self._back(client_id, level)
            sender.send(Publish(f"a/{client_id}", b"once", 2, dup=True, packet_id=9))
            assert sender.receive() == Pubrec(9)
            sender.send(Pubrel(9))
            assert sender.receive() == Pubcomp(9)
            assert four.receive() == Publish(f"a/{client_id}", b"once", 1, packet_id=number)
            four.send(Puback(number))
            assert sender.ping() == []
        self._publish(Publish("/x/1/y", b"subscribed", 0))
        assert four.receive() == Publish("/x/1/y", b"subscribed", 0)
        assert four.ping() == []

    def _find_five(self) -> None:
        five = self._back("five", 5, properties=HOUR)
        found = five.receive()
        assert isinstance(found, Publish)
        assert (found.payload, found.qos, found.retain, found.dup) == (b"five", 1, True, False)
        left = found.properties.pop("message_expiry_interval")
        assert 900 < left <= 1000
        assert found.properties.pop("subscription_identifier") in (7, [7])
        assert found.properties == PROPERTIES
        five.send(Puback(found.packet_id), Publish("c/mine", b"not to me", 0))  # No Local
        assert five.ping() == []
        assert self._back("there", 5, properties=FOREVER).receive() == Publish("d/1", b"d", 2, dup=True, packet_id=1)
        reader = self._client("reader", 5)
        reader.send(Subscribe(1, [("kept/#", 2), ("c/#", 0), ("gone", 0)]))
        retained = [packet for packet in (reader.receive() for _ in range(3)) if isinstance(packet, Publish)]
        assert sorted((packet.topic_name, packet.payload, packet.qos, packet.retain) for packet in retained) == [
            ("c/1", b"five", 0, True),
            ("kept/1", b"retained", 2, True),
        ]
        with_properties = next(packet for packet in retained if packet.topic_name == "c/1")
        assert 900 < with_properties.properties.pop("message_expiry_interval") <= 1000
        assert with_properties.properties == PROPERTIES
        brief = self._client("brief", 5, clean_start=False)
        assert brief.connack is not None and not brief.connack.session_present


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_come_back_to_one_node(
    mosquitto: MosquittoProcess, path: Path, node: BrokerProcess, run_import: Run, tmp_path: Path, how: str
) -> None:
    state = MosquittoState(mosquitto.port)
    if how == "kill":
        mosquitto.save(path)
    getattr(mosquitto, how)()
    state.close()
    before = path.read_bytes()
    done = run_import(path, f"sqlite:{tmp_path / 'flockmq.db'}")
    assert "5 sessions with 5 subscriptions and 7 queued messages" in done.stdout
    assert ", 2 retained messages" in done.stdout
    assert "1 queued messages of QoS 0 stay behind" in done.stderr
    assert "1 sessions (brief) stay behind: they end with their connections" in done.stderr
    assert path.read_bytes() == before
    state.find(node.start())
    assert node.stop() == 0
    node.check()


@pytest.mark.one_shard
def test_clients_come_back_to_a_cluster(
    mosquitto: MosquittoProcess,
    path: Path,
    start_cluster: StartCluster,
    redis_server: RedisProcess,
    run_import: Run,
) -> None:
    cluster = start_cluster(running=False, nodes="ab", redis=redis_server)
    state = MosquittoState(mosquitto.port)
    mosquitto.stop()
    state.close()
    run_import(path, redis_server.url)
    cluster.start()
    state.find(cluster["a"], cluster["b"])


@pytest.mark.one_shard
def test_what_was_imported_goes_on_to_redis(
    mosquitto: MosquittoProcess,
    path: Path,
    tmp_path: Path,
    start_cluster: StartCluster,
    redis_server: RedisProcess,
    run_import: Run,
) -> None:
    cluster = start_cluster(running=False, nodes="ab", redis=redis_server)
    state = MosquittoState(mosquitto.port)
    mosquitto.stop()
    state.close()
    store = f"sqlite:{tmp_path / 'flockmq.db'}"
    run_import(path, store)
    run_import(store, redis_server.url, command="migrate")
    cluster.start()
    state.find(cluster["a"], cluster["b"])


def test_an_import_that_was_killed_is_repeated(path: Path, redis_server: RedisProcess, run_import: Run) -> None:
    """At each step: no node may use a part of the state, and the same command brings all of it."""
    path.write_bytes(rich(6).data)
    run_import(path, redis_server.url)
    whole = state_of(redis_server)
    assert whole["sessions"] and whole["retained"]
    for step in range(1, 99):
        with redis_server.client() as client:
            client.flushall()
        line = [sys.executable, "-m", "tests.cluster.dying_migrate", str(step), f"mosquitto:{path}", redis_server.url]
        died = nursery.run(line, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        if died.returncode == 0:
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
        if stage_of(redis_server) == "arriving" or not state_of(redis_server)["sessions"]:
            run_import(path, redis_server.url)
        assert stage_of(redis_server) == "own"
        same(whole, state_of(redis_server))
    assert step > 6


def test_a_node_names_the_command_that_completes_an_import(path: Path, tmp_path: Path, run_import: Run) -> None:
    path.write_bytes(rich(6).data)
    store = tmp_path / "flockmq.db"
    for step in range(1, 99):
        line = [sys.executable, "-m", "tests.cluster.dying_migrate", str(step), f"mosquitto:{path}", f"sqlite:{store}"]
        died = nursery.run(line, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        assert died.returncode == -signal.SIGKILL, died.stderr
        if store.exists() and stage_of(store) == "arriving":
            break
    with pytest.raises(StoreError) as refused:
        sqlite_file.connect(store)
    assert refused.value.hint == f"`flockmq migrate mosquitto:{path} sqlite:{store}` completes it"
    run_import(f"mosquitto:{path}", f"sqlite:{store}", command="migrate")
    assert sessions_of(store).keys() == {b"four", b"idle"}
