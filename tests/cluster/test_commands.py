"""`flockmq cluster status` and `flockmq session`, with keys written by hand as CLUSTER.md has them."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from flockmq.broker.cli import main
from flockmq.cluster.redis.connector import function_library
from flockmq.cluster.redis.packed_session import PackedSession
from tests.harness.broker_process import environment
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.redis_process import RedisProcess

StartRedis = Callable[..., RedisProcess]


class Told:
    """The output of a command."""

    def __init__(self, status: int, out: str, errors: str) -> None:
        self.status, self.out, self.errors = status, out, errors

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def tell(
    redis_server: RedisProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Told]:
    """Run a command on the test's own Redis."""
    monkeypatch.setenv("FLOCKMQ_CLUSTER_REDIS", redis_server.url)

    def run(*arguments: str) -> Told:
        status = main(list(arguments))
        return Told(status, *capsys.readouterr())

    return run


def write_node(server: RedisProcess, node_id: str, name: str, prefix: str = "mq:", **figures: object) -> None:
    """A node that is there."""
    client = server.client()
    client.hset(f"{prefix}nodes", node_id, 7)
    fields = {"name": name, "host": "h1", "pid": 42, "version": "0.1.0", "state": "ready", "seq": 3, **figures}
    client.hset(f"{prefix}node:{node_id}", mapping={key: str(value) for key, value in fields.items()})


def write_session(server: RedisProcess, cid: str, owner: str = "", prefix: str = "mq:", **fields: Any) -> None:
    """A persistent session with three queued messages and two subscriptions."""
    client = server.client()
    session = PackedSession(3, 12, head=10, sent=12, owner=owner.encode(), since=int(client.time()[0]) - 60)
    session.entries = [b"\x01\x01\x00t" + b"x" * 96] * 3
    session.marks, session.done = 2, 1
    client.set(f"{prefix}s:{cid}", replace(session, **fields).encode())
    client.sadd(f"{prefix}sessions", cid)
    client.hset(f"{prefix}st:{cid}", mapping={"10": "r", "11": "d"})
    client.hset(f"{prefix}in:{cid}", mapping={"5": "m"})
    client.hset(f"{prefix}subs:{cid}", mapping={"a/#": "1", "b": "2"})


@pytest.fixture
def beating(redis_server: RedisProcess) -> Iterator[None]:
    """A node called n-1 that beats."""
    write_node(redis_server, "id1", "n-1", clients=5, sessions=9, change=38)
    ended = threading.Event()

    def beat() -> None:
        with redis_server.client() as client:
            while not ended.wait(0.01):
                client.hincrby("mq:nodes", "id1", 1)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    ended.set()
    thread.join()


# ---- cluster status -------------------------------------------------------------------------------------------------


def test_status_of_nothing(tell: Callable[..., Told]) -> None:
    told = tell("cluster", "status")
    assert told.status == 0
    assert "no nodes" in told.out
    assert "warning: Redis keeps nothing on disk" in told.out
    document = tell("cluster", "status", "--json").json
    assert (document["nodes"], document["persistent_sessions"], document["memory"]) == ([], 0, [])


@pytest.mark.usefixtures("beating")
def test_status(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    client = redis_server.client()
    write_node(redis_server, "id0", "silent", clients="?")
    client.set("mq:change", 40)
    client.set("mq:layout", 1)
    client.hset("mq:retained", mapping={"a": "m", "b": "m"})
    client.xadd("mq:log:id1", {"b": "x" * 100}, id="3-0")
    for number in range(20):
        write_session(redis_server, f"c{number}")
    client.set("other:key", "not ours")
    document = tell("cluster", "status", "--wait", "0.3", "--json").json
    first, second = document["nodes"]
    assert (first["name"], first["id"], first["host"], first["pid"]) == ("n-1", "id1", "h1", 42)
    assert (first["heartbeat"], second["heartbeat"]) == (True, False)
    assert (first["clients"], first["sessions"], first["behind"], second["clients"]) == (5, 9, 2, None)
    assert first["log_entries"] == 1
    assert first["log_bytes"] > 100
    assert (document["persistent_sessions"], document["retained_messages"], document["last_change"]) == (20, 2, 40)
    kinds = {kind["kind"]: kind for kind in document["memory"]}
    assert {name: kind["keys"] for name, kind in kinds.items() if kind["keys"] > 2} == dict.fromkeys(
        ["sessions", "QoS states", "QoS 2 received", "subscriptions"], 20
    )
    assert kinds["sessions"]["bytes"] > 20 * 300
    assert kinds["logs"]["keys"] == 1
    told = tell("cluster", "status", "--wait", "0.3")
    lines = told.out.splitlines()
    head = next(line for line in lines if line.startswith("name"))
    rows = [line for line in lines if "0.1.0" in line]
    assert [line.split()[0] for line in rows] == ["n-1", "silent"]
    assert all(line.index("0.1.0") == head.index("version") for line in rows)
    assert "SILENT" in rows[1]


@pytest.mark.usefixtures("beating")
def test_status_waits_no_longer_than_needed(tell: Callable[..., Told]) -> None:
    assert tell("cluster", "status", "--wait", "600", "--json").json["nodes"][0]["heartbeat"] is True


def test_memory_of_many_sessions_is_a_sample(
    redis_server: RedisProcess, tell: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flockmq.cluster.commands import cluster

    monkeypatch.setattr(cluster, "SAMPLE", 500)
    with redis_server.client().pipeline() as pipe:
        for number in range(20_000):
            pipe.set(f"mq:s:{number}", PackedSession(number, number).encode())
        pipe.execute()
    (kind,) = tell("cluster", "status", "--json").json["memory"]
    assert kind["kind"] == "sessions"
    assert 19_000 < kind["keys"] < 21_000


def test_another_prefix(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    write_node(redis_server, "a", "mine", "fleet:")
    write_node(redis_server, "b", "theirs")
    document = tell("cluster", "status", "--prefix", "fleet:", "--wait", "0", "--json").json
    assert [node["name"] for node in document["nodes"]] == ["mine"]


def test_a_user_who_may_do_little(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    write_node(redis_server, "a", "n")
    redis_server.client().execute_command(
        "ACL", "SETUSER", "viewer", "on", ">sesame", "~mq:*", "+@read", "+select", "+ping", "-memory"
    )
    told = tell("cluster", "status", "--wait", "0", "--redis", f"redis://viewer:sesame@127.0.0.1:{redis_server.port}")
    assert told.status == 0, told.errors
    assert "sesame" not in told.out
    assert "is unknown" in told.out
    assert "memory of" not in told.out


# ---- session --------------------------------------------------------------------------------------------------------


def test_show_offline(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    write_session(redis_server, "pump", waits=b"9=id7,", fights=4)
    session = tell("session", "show", "pump", "--json").json
    assert (session["connected"], session["persistent"], session["protocol"]) == (False, True, "MQTT 3.1.1")
    assert 60 <= session["seconds_ago"] < 120
    assert (session["queued_messages"], session["queued_bytes"], session["may_be_sent"]) == (3, 300, 2)
    assert (session["pubrec_received"], session["done_out_of_order"], session["awaiting_pubrel"]) == (1, 1, [5])
    assert session["subscriptions"] == {"a/#": 1, "b": 2}
    told = tell("session", "show", "pump")
    assert told.status == 0
    for words in (
        "no, since",
        "numbers 10 to 12",
        "1 await PUBREL",
        "id7, not released yet",
        "a/#  QoS 1",
        "4: several",
    ):
        assert words in told.out


def test_show_connected(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    write_node(redis_server, "id1", "n-1")
    write_session(redis_server, "pump", "id1")
    assert "to n-1 (id1)" in tell("session", "show", "pump").out
    write_session(redis_server, "lost", "id2")
    assert "its node id2 is gone" in tell("session", "show", "lost").out


def test_show_a_clean_session_with_nothing(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    write_node(redis_server, "id1", "n-1")
    redis_server.client().set("mq:s:x", PackedSession(1, 1, owner=b"id1", flags=0, level=3).encode())
    told = tell("session", "show", "x")
    assert "it ends with its connection" in told.out
    assert "MQTT 3.1" in told.out
    assert "empty" in told.out


def test_a_client_id_is_shown_escaped(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    write_session(redis_server, "a\x1b[31m\nb")
    told = tell("session", "show", "a\x1b[31m\nb")
    assert "a\\x1b[31m\\nb" in told.out
    assert "\x1b" not in told.out


def test_no_such_session(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    redis_server.client().function_load(function_library())
    for action in ("show", "kick", "purge"):
        told = tell("session", action, "nobody")
        assert (told.status, told.out) == (1, "")
        assert told.errors.startswith("flockmq: error: there is no session of 'nobody'")


def test_kick(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    client = redis_server.client()
    client.function_load(function_library())
    write_session(redis_server, "pump")
    told = tell("session", "kick", "pump")
    assert (told.status, told.errors) == (1, "flockmq: error: pump is not connected\n")
    with obedient_node(redis_server):
        told = tell("session", "kick", "pump")
        assert told.out == "the connection is closed; it was connected to n-1 (id1)\n"
    with obedient_node(redis_server):
        found = tell("session", "kick", "pump", "--json").json
        assert found == {"client_id": "pump", "outcome": "the connection is closed", "node": "n-1 (id1)"}


@contextmanager
def obedient_node(server: RedisProcess) -> Iterator[None]:
    """A node with a client, which it disconnects when it is asked to."""
    write_node(server, "id1", "n-1")
    write_session(server, "pump", "id1")
    with server.client(decode_responses=False).pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("mq:to:id1")
        listener.get_message(timeout=DEADLINE)

        def disconnect() -> None:
            message = listener.get_message(timeout=DEADLINE)
            assert message is not None
            assert b"pump" in message["data"]
            write_session(server, "pump")

        thread = threading.Thread(target=disconnect)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("action", ["kick", "purge"])
def test_a_node_that_stands_still(
    redis_server: RedisProcess, tell: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr("flockmq.cluster.commands.session.SECONDS", 0.1)
    redis_server.client().function_load(function_library())
    write_node(redis_server, "id1", "n-1")
    write_session(redis_server, "pump", "id1")
    told = tell("session", action, "pump")
    assert told.status == 1
    assert "n-1 (id1) has not closed the connection of pump" in told.errors


def test_purge(redis_server: RedisProcess, tell: Callable[..., Told]) -> None:
    client = redis_server.client()
    client.function_load(function_library())
    write_session(redis_server, "pump")
    assert tell("session", "purge", "pump").out == "the session has ended\n"
    assert not client.keys("mq:*:pump")
    assert client.scard("mq:sessions") == 0


def test_functions_that_nobody_loaded(tell: Callable[..., Told]) -> None:
    told = tell("session", "kick", "pump")
    assert told.status == 1
    assert "no node has run" in told.errors


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_redis_is_away(tell: Callable[..., Told]) -> None:
    url = f"redis://u:sesame@127.0.0.1:{free_port()}"
    for arguments in (["cluster", "status"], ["session", "show", "x"]):
        told = tell(*arguments, "--redis", url)
        assert told.status == 1
        assert told.errors.startswith("flockmq: error: can't use Redis at redis://u:***@127.0.0.1:")
        assert told.errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["session"], "required"),
        (["cluster", "stats"], "status"),
        (["cluster", "status", "--redis", "localhost"], "expected redis://"),
        (["cluster", "status", "--prefix", "a b"], "cluster.prefix"),
        (["session", "show"], "required"),
        (["session", "kill", "x"], "purge"),
        (["session", "show", "x", "--jsn"], "did you mean --json?"),
    ],
)
def test_mistakes(tell: Callable[..., Told], arguments: list[str], words: str) -> None:
    told = tell(*arguments)
    assert told.status == 2
    assert words in told.errors
    assert told.errors.count("\n") == 1


def test_no_redis_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOCKMQ_CLUSTER_REDIS", raising=False)
    assert main(["cluster", "status"]) == 2
    assert "FLOCKMQ_CLUSTER_REDIS" in capsys.readouterr().err


def test_the_library_is_missing() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from flockmq.broker.cli import main\n"
        "sys.exit(main(['cluster', '--help']) or main(['cluster', 'status', '--redis', 'redis://localhost']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, env=environment()
    )
    assert done.returncode == 2
    assert done.stderr == "flockmq: error: the library redis is missing; pip install 'flockmq[cluster]'\n"
