"""`flockmq migrate`: a broker's state goes from SQLite to Redis and back; every client finds what it had."""

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from _speedups.session.journal import block_of, records
from broker.cli import main
from broker.config.load import load
from broker.core.session_expiry import NEVER
from broker.errors import FlockError
from broker.storage import sqlite_file
from cluster.migration.places import Mark, RedisPlace, Stage
from cluster.migration.redis_state import RedisState
from cluster.migration.sqlite_state import SqliteState
from cluster.migration.state import State
from cluster.redis.clients import RedisAddress
from cluster.redis.keys import ARRIVING, MOVED
from tests.cluster.rich_state import CONFIG, SETTINGS, RichState
from tests.conftest import StartCluster, StartRedis
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess

CLUSTER = {**SETTINGS, "cluster.lease": 1.5, "cluster.timeout": 0.7}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flockmq.db"


@pytest.fixture
def node(tmp_path: Path) -> BrokerProcess:
    """A node with a SQLite store, not started."""
    return BrokerProcess(tmp_path, "sqlite", SETTINGS)


@pytest.fixture
def cluster(start_cluster: StartCluster, redis_server: RedisProcess) -> ClusterProcess:
    """Two nodes, not started, over `redis_server`."""
    return start_cluster(CLUSTER, running=False, nodes="ab", redis=redis_server)


@pytest.fixture
def migrate(tmp_path: Path) -> Run:
    """Run the command; `fails`: a part of the error that it must report."""
    file = tmp_path / "migrate.toml"
    file.write_text(CONFIG)

    def run(*arguments: str, fails: str = "") -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "broker.cli", "migrate", *arguments, "--config", str(file)]
        done = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        assert done.returncode == bool(fails), done.stderr
        assert fails in done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def state_of(where: Path | RedisProcess) -> dict[str, Any]:
    """All that is at a place, in a form that can be compared."""
    if isinstance(where, Path):
        with contextlib.closing(sqlite_file.connect(where, marked=True)) as database:
            return comparable(SqliteState(block for _, block in sqlite_file.blocks(database, where)))
    address = RedisAddress.parse(where.url)
    with address.client() as client:
        return comparable(RedisState(client, address.keys, load({"shared.redispatch": "1000"})))


def comparable(state: State) -> dict[str, Any]:
    clock = state.clock
    found: dict[str, Any] = {"declared": state.declarations()}
    found["sessions"] = {session.client_id: session for session in state.sessions()}
    found["groups"] = {group.name: group for group in state.groups()}
    found["retained"] = {message.topic: message for message in state.retained()}
    found["wills"] = sorted(state.wills(), key=lambda will: will.client_id)
    return {**found, "clock": clock}


def same(one: dict[str, Any], other: dict[str, Any], passed: int) -> None:
    """Two states are equal; their clocks differ by at most `passed` milliseconds."""
    assert abs(one["clock"] - other["clock"]) < passed
    for part in one.keys() - {"clock"}:
        assert one[part] == other[part], part


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_one_node_becomes_two(node: BrokerProcess, path: Path, cluster: ClusterProcess, migrate: Run, how: str) -> None:
    state = RichState(node.start())
    state.end(node, how)
    migrate(f"sqlite:{path}", cluster.redis.url)
    cluster.start()
    state.find(cluster["a"], cluster["b"])


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_two_nodes_become_one(node: BrokerProcess, path: Path, cluster: ClusterProcess, migrate: Run, how: str) -> None:
    cluster.start()
    state = RichState(cluster["a"], cluster["b"])
    state.end(cluster, how)
    migrate(cluster.redis.url, f"sqlite:{path}")
    state.find(node.start())
    assert node.stop() == 0
    node.check()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_there_and_back_again(
    node: BrokerProcess, path: Path, redis_server: RedisProcess, migrate: Run, how: str
) -> None:
    state = RichState(node.start())
    state.end(node, how)
    before = state_of(path)
    begin_what_ends_with_the_node(before)
    migrate(f"sqlite:{path}", redis_server.url)
    there = state_of(redis_server)
    same(before, there, 60_000)
    migrate(redis_server.url, f"sqlite:{path}")
    same(before, state_of(path), 60_000)
    state.find(node.start())
    assert node.stop() == 0


def begin_what_ends_with_the_node(state: dict[str, Any]) -> None:
    """Where a connection was there at the end, its session's time and its will's delay begin with the migration."""
    for session in state["sessions"].values():
        if session.interval not in (None, NEVER) and not session.deadline:
            session.deadline = pytest.approx(state["clock"] + session.interval * 1000, abs=60_000)
    state["wills"] = [will if will.due else will._replace(due=1, is_current=False) for will in state["wills"]]


def test_records_and_blocks_are_each_others_inverse(node: BrokerProcess, path: Path) -> None:
    state = RichState(node.start())
    state.end(node, "kill")
    with contextlib.closing(sqlite_file.connect(path)) as database:
        blocks = [block for _, block in sqlite_file.blocks(database, path)]
    assert len(blocks) > 10
    assert [block_of(records(block)) for block in blocks] == blocks


# ---- a command that is killed ----


@pytest.mark.parametrize("direction", ["to Redis", "to SQLite"])
def test_a_command_that_was_killed_is_repeated(
    node: BrokerProcess, path: Path, redis_server: RedisProcess, migrate: Run, direction: str
) -> None:
    """Wherever it is killed: the source is whole, or the target is; never are both open to nodes."""
    state = RichState(node.start())
    state.end(node, "kill")
    saved = path.with_name("saved.db")
    left, begin = state_of(path), state_of(path)
    shutil.copy(path, saved)
    begin_what_ends_with_the_node(begin)
    places = [f"sqlite:{path}", redis_server.url]
    for step in range(1, 100):
        with redis_server.client() as client:
            client.flushall()
        for name in ("flockmq.db-wal", "flockmq.db-shm"):
            path.with_name(name).unlink(missing_ok=True)
        shutil.copy(saved, path)
        if direction == "to SQLite":
            migrate(*places)
        arguments = places if direction == "to Redis" else places[::-1]
        source, target = (path, redis_server) if direction == "to Redis" else (redis_server, path)
        command = [sys.executable, "-m", "tests.cluster.dying_migrate", str(step), *arguments]
        died = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        stages = stage_of(source), stage_of(target)
        if died.returncode == 0:
            assert stages == ("moved", "own")
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
        if stages[0] == "own":
            same(left if source == path else begin, state_of(source), 60_000)
            assert stages[1] != "own" or not any(part for name, part in state_of(target).items() if name != "clock")
        else:
            same(begin, state_of(target), 60_000)
        migrate(*arguments)
        assert (stage_of(source), stage_of(target)) == ("moved", "own")
        same(begin, state_of(target), 60_000)
    assert step > 8


def stage_of(where: Path | RedisProcess) -> str:
    """Whether nodes may use a place."""
    if isinstance(where, Path):
        with contextlib.closing(sqlite_file.connect(where, marked=True)) as database:
            (layout,) = database.execute("PRAGMA user_version").fetchone()
        return {sqlite_file.MOVED: "moved", sqlite_file.ARRIVING: "arriving"}.get(layout, "own")
    with where.client() as client:
        return {MOVED: "moved", ARRIVING: "arriving"}.get(int(client.get("mq:layout") or 0), "own")


# ---- what is refused ----


@pytest.fixture
def old(path: Path) -> Path:
    """A store with some state, in use by nobody."""
    shutil.copy(Path(__file__).resolve().parents[1] / "cases" / "store-0.1.sqlite", path)
    return path


def test_nothing_is_nothing_to_move(path: Path, redis_server: RedisProcess, migrate: Run, node: BrokerProcess) -> None:
    assert "nothing to move" in migrate(f"sqlite:{path}", redis_server.url).stdout
    assert "nothing to move" in migrate(redis_server.url, f"sqlite:{path}").stdout
    assert not path.exists()
    node.start()
    assert node.stop() == 0
    assert "is empty" in migrate(f"sqlite:{path}", redis_server.url).stdout
    with redis_server.client() as client:
        assert not client.keys("*")


def test_a_target_with_state_is_refused(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    with redis_server.client() as client:
        client.hset("mq:retained", "t", "x")
        migrate(f"sqlite:{old}", redis_server.url, fails="has state already")
        assert client.keys("*") == ["mq:retained"]
        migrate(f"sqlite:{old}", redis_server.url, "--prefix", "new:")
        assert client.get("new:layout") == "2"
        assert client.exists("mq:retained")
    other = old.with_name("other.db")
    shutil.copy(Path(__file__).resolve().parents[1] / "cases" / "store-0.1.sqlite", other)
    migrate(redis_server.url, f"sqlite:{other}", "--prefix", "new:", fails="has state already")
    assert stage_of(other) == "own"


def test_a_source_in_use_is_refused(
    node: BrokerProcess, path: Path, cluster: ClusterProcess, migrate: Run, tmp_path: Path
) -> None:
    node.start()
    migrate(f"sqlite:{path}", cluster.redis.url, fails="in use by another process")
    assert node.stop() == 0
    cluster.start()
    migrate(cluster.redis.url, f"sqlite:{tmp_path / 'new.db'}", fails="uses Redis")
    migrate(f"sqlite:{path}", cluster.redis.url)  # it is empty
    assert not (tmp_path / "new.db").exists()


def test_a_node_that_starts_meanwhile_is_noticed(old: Path, redis_server: RedisProcess) -> None:
    place = RedisPlace(RedisAddress.parse(redis_server.url), load({}), print)
    with redis_server.client() as client, place.opened(create=False):
        client.set("mq:layout", 2)
        with pytest.raises(FlockError, match="a node uses Redis"):
            place.set_mark(Mark(Stage.MOVED, "1", f"sqlite:{old}"))
        assert client.get("mq:layout") == "2"


def test_unknown_layouts_are_refused(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    with redis_server.client() as client:
        client.set("mq:layout", 9)
    migrate(f"sqlite:{old}", redis_server.url, fails="layout 9")
    migrate(redis_server.url, f"sqlite:{old}", fails="layout 9")
    with contextlib.closing(sqlite3.connect(old)) as database:
        database.execute("PRAGMA user_version = 7")
    migrate(f"sqlite:{old}", redis_server.url, "--prefix", "new:", fails="layout 7")


def test_nodes_refuse_a_place_that_was_left(old: Path, cluster: ClusterProcess, migrate: Run, tmp_path: Path) -> None:
    url = cluster.redis.url
    migrate(f"sqlite:{old}", url)
    assert "nothing to move" in migrate(f"sqlite:{old}", url).stdout
    line = refused("--store", f"sqlite:{old}")
    assert url in line
    assert "flockmq migrate" in line
    migrate(f"sqlite:{old}", url, "--prefix", "new:", fails="was moved to")
    migrate(url, f"sqlite:{old}")
    line = refused("--redis", url)
    assert str(old) in line
    assert "flockmq migrate" in line
    migrate(url, f"sqlite:{tmp_path / 'third.db'}", fails="was moved to")


def test_a_place_that_was_left_is_restored(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    before = state_of(old)
    migrate(f"sqlite:{old}", redis_server.url)
    migrate("--restore", f"sqlite:{old}")
    same(before, state_of(old), 60_000)
    migrate("--restore", f"sqlite:{old}", fails="was not moved away")
    with redis_server.client() as client:
        client.flushall()
        migrate(f"sqlite:{old}", redis_server.url)
        migrate(redis_server.url, f"sqlite:{old}")
        migrate("--restore", redis_server.url)
        assert client.get("mq:layout") == "2"
        assert not client.exists("mq:migration")


def test_an_unfinished_target_belongs_to_its_source(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    with redis_server.client() as client:
        client.set("mq:layout", ARRIVING)
        client.hset("mq:migration", mapping={"id": "1", "place": "sqlite:/other.db", "options": ""})
    migrate(f"sqlite:{old}", redis_server.url, fails="flockmq migrate sqlite:/other.db")
    assert "sqlite:/other.db" in refused("--redis", redis_server.url)


def test_users_stay_in_redis(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    with redis_server.client() as client:
        client.hset("mq:users", "ada", "{}")
        migrate(f"sqlite:{old}", redis_server.url)
        assert "the 1 users of Redis" in migrate(redis_server.url, f"sqlite:{old}").stderr
        assert client.hgetall("mq:users") == {"ada": "{}"}


def test_a_unix_socket_and_a_prefix(old: Path, start_redis: StartRedis, migrate: Run, tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    start_redis(["--unixsocket", str(socket)])
    before = state_of(old)
    migrate(f"sqlite:{old}", f"unix://{socket}", "--prefix", "shop:")
    line = refused("--store", f"sqlite:{old}")
    assert f"unix://{socket} sqlite:{old} --prefix shop:" in line
    migrate(f"unix://{socket}", f"sqlite:{old}", "--prefix", "shop:")
    begin_what_ends_with_the_node(before)
    same(before, state_of(old), 60_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sqlite:a.db"], "place to move to is missing"),
        (["sqlite:a.db", "sqlite:b.db"], "the other Redis"),
        (["redis://h", "redis://i"], "the other Redis"),
        (["sqlite:a.db", "redis:/:secret@h"], "names no place"),
        (["--restore", "sqlite:a.db", "sqlite:b.db"], "one place"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "secret" not in told


def refused(*arguments: str) -> str:
    """The line with which a node refuses to start."""
    command = [sys.executable, "-m", "broker.cli", "serve", "--listen", "127.0.0.1:0", *arguments]
    done = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]
