"""`flockmq migrate`: a broker's state goes from SQLite to Redis and back; every client finds what it had."""

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.cluster.message_codec import encode_entry, encode_message, topic_key
from flockmq._speedups.codec.packets import Publish
from flockmq._speedups.session.journal import block_of, records
from flockmq.broker.cli import main
from flockmq.broker.config.load import load
from flockmq.broker.core.session_expiry import NEVER
from flockmq.broker.core.will import Will
from flockmq.broker.errors import FlockError
from flockmq.broker.storage import access_table, sqlite_file
from flockmq.cluster.migration.endpoints import Mark, Stage
from flockmq.cluster.migration.redis_place import RedisPlace
from flockmq.cluster.migration.redis_state import RedisState
from flockmq.cluster.migration.sqlite_state import RecordWriter, SqliteState
from flockmq.cluster.migration.state import (
    Queued,
    Share,
    State,
    StoredDelayed,
    StoredGroup,
    StoredMessage,
    StoredSession,
    StoredWill,
    Waiting,
    wall_clock,
)
from flockmq.cluster.redis.clients import RedisAddress
from flockmq.cluster.redis.keys import ARRIVING, MOVED, Keys
from tests.cluster.rich_state import CONFIG, SETTINGS, RichState
from tests.conftest import StartCluster, StartRedis
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.left_store import leave_store
from tests.harness.redis_cluster import RedisCluster
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import change_session, stored_queue, stored_session

MINUTES = 5 * 60 * 1000  # milliseconds: more than a test takes, less than the intervals in it
CLUSTER = {**SETTINGS, "cluster.lease": 1.5, "cluster.timeout": 0.7}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flockmq.db"


@pytest.fixture
def old(path: Path) -> Path:
    """A store with some state, not in use."""
    leave_store(path)
    return path


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
        command = [sys.executable, "-m", "flockmq.broker.cli", "migrate", *arguments, "--config", str(file)]
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
    found: dict[str, Any] = {"declared": state.declarations()}
    found["sessions"] = {session.client_id: session for session in state.sessions()}
    for session in found["sessions"].values():
        session.deadline -= session.deadline % 1000  # Redis has whole seconds
    found["groups"] = {group.name: group for group in state.groups()}
    found["retained"] = {message.topic: message for message in state.retained()}
    found["wills"] = sorted(state.wills(), key=lambda will: will.client_id)
    found["delayed"] = list(state.delayed())
    found["committed"] = state.committed()
    return {**found, "clock": state.clock, "ahead": state.clock - wall_clock()}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two states are equal; so are their clocks, but for the time that a migration stops them."""
    assert abs(one["ahead"] - other["ahead"]) < 60_000
    for part in one.keys() - {"clock", "ahead"}:
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
    same(before, there)
    migrate(redis_server.url, f"sqlite:{path}")
    same(before, state_of(path))
    state.find(node.start())
    assert node.stop() == 0


def begin_what_ends_with_the_node(state: dict[str, Any]) -> None:
    """Where a connection was there at the end, its session's time and its will's delay begin with the migration."""
    for session in state["sessions"].values():
        if session.interval not in (None, NEVER) and not session.deadline:
            session.deadline = pytest.approx(state["clock"] + session.interval * 1000, abs=MINUTES)
    for number, stored in enumerate(state["wills"]):
        if not stored.due and stored.will.delay:
            due = pytest.approx(state["clock"] + stored.will.delay * 1000, abs=MINUTES)
            state["wills"][number] = stored._replace(due=due)
        elif not stored.due:
            state["wills"][number] = stored._replace(due=1, is_current=False)


def test_records_and_blocks_are_each_others_inverse(node: BrokerProcess, path: Path) -> None:
    state = RichState(node.start())
    state.end(node, "kill")
    with contextlib.closing(sqlite_file.connect(path)) as database:
        blocks = [block for _, block in sqlite_file.blocks(database, path)]
    assert len(blocks) > 10
    assert [block_of(records(block)) for block in blocks] == blocks


def test_time_away_goes_on(old: Path, redis_server: RedisProcess, migrate: Run, tmp_path: Path) -> None:
    """Sessions of level 4 have an expiry by configuration: the time that they have been away moves with them."""
    (tmp_path / "migrate.toml").write_text("mqtt.session_expiry = 3600")
    migrate(f"sqlite:{old}", redis_server.url)
    with redis_server.client() as client:
        now = int(client.time()[0])
        assert stored_session(client, "away").since == pytest.approx(now, abs=60)
        change_session(client, "away", since=now - 600)
        migrate(redis_server.url, f"sqlite:{old}")
        state = state_of(old)
        assert state["sessions"][b"away"].deadline == pytest.approx(state["clock"] + 3_000_000, abs=60_000)
        migrate(f"sqlite:{old}", redis_server.url)
        assert stored_session(client, "away").since == pytest.approx(now - 600, abs=60)


@pytest.mark.parametrize("keeps", [["--appendonly", "yes"], ["--save", "3600 1"]])
def test_the_target_is_on_the_disk_of_redis(old: Path, start_redis: StartRedis, migrate: Run, keeps: list[str]) -> None:
    before = state_of(old)
    begin_what_ends_with_the_node(before)
    server = start_redis(keeps)
    migrate(f"sqlite:{old}", server.url)
    server.kill()
    server.start()
    same(before, state_of(server))


def test_a_redis_cluster(old: Path, tmp_path: Path, migrate: Run) -> None:
    before = state_of(old)
    begin_what_ends_with_the_node(before)
    servers = RedisCluster(tmp_path, replicas=0)
    try:
        servers.start()
        migrate(f"sqlite:{old}", servers.url)
        with servers.owner.client() as client:
            assert client.get("{mq}:layout") == "1"
        migrate(servers.url, f"sqlite:{old}")
        same(before, state_of(old))
    finally:
        servers.stop()


class Given(State):
    """A state that clients reach rarely, or by chance."""

    BEGAN = wall_clock()
    is_empty = False
    PLAIN = b"$share/plain/p/#"
    ORDERED = b"$share/ordered/o/+"
    LAST = b"$share/last/l"

    @property
    def clock(self) -> int:
        return wall_clock()

    def declarations(self) -> dict[bytes, bytes]:
        return {self.ORDERED: b'{"paused":true,"strategy":"topic"}', self.LAST: b'{"expiry":1.5,"last_value":true}'}

    def sessions(self) -> Iterator[StoredSession]:
        one = StoredSession(b"one", 3, 5, b"ada", 60, self.BEGAN + 50_000, head=70_000, tail=70_009, sent=70_007)
        late = StoredMessage(b"late", b"", 2, True, b"\x26\0\1a\0\1b", self.BEGAN + 1000)
        ordered = StoredMessage(b"o/1", b"in order", 1, False)
        one.queue = {
            70_000: Queued(None),
            70_001: Queued(StoredMessage(b"a", b"x" * 100_000, 1, False), True, b"\x0b\7"),
            70_003: Queued(late, identifiers=b"\x0b\7\x0b\x80\1"),
            70_004: Queued(ordered, share=Share(self.ORDERED, 5, topic_key(b"o/1"), 2 << 8 | 0x80)),
            70_005: Queued(None, share=Share(self.PLAIN, 2**40)),
            70_006: Queued(ordered, False, b"\x0b\7", Share(self.PLAIN, 2**40 + 1, failures=1 << 8)),
        }
        one.awaiting = {1: late, 65_535: late._replace(retain=False)}
        one.subscriptions = {b"#": (2, 0), b"$SYS/#": (13, 268_435_455), self.PLAIN: (1, 0), self.ORDERED: (1, 7)}
        yield one
        yield StoredSession(b"empty", 2**40, 3, head=5, tail=5, sent=5)
        yield StoredSession(
            "\u00e4\u4e16".encode(), 4, 5, interval=NEVER, head=1, tail=1000, sent=1000, queue={1: Queued(None)}
        )

    def groups(self) -> Iterator[StoredGroup]:
        plain = StoredGroup(self.PLAIN, last=2**40 + 1)
        plain.waiting = [
            Waiting(Share(self.PLAIN, n, -1, n << 8), StoredMessage(b"p/1", b"", 2, True)) for n in range(9)
        ]
        yield plain
        yield StoredGroup(self.ORDERED, self.declarations()[self.ORDERED], 6, [self._ordered(6)])
        last = Waiting(Share(self.LAST, 4), StoredMessage(b"l", b"newest", 1, False, b"", self.BEGAN + 5000))
        yield StoredGroup(self.LAST, self.declarations()[self.LAST], 4, [last])

    def _ordered(self, place: int) -> Waiting:
        return Waiting(Share(self.ORDERED, place, topic_key(b"o/2")), StoredMessage(b"o/2", b"", 1, False))

    def retained(self) -> Iterator[StoredMessage]:
        yield StoredMessage(b"$\0flockmq/secret", bytes(32), 0, True)
        yield StoredMessage(b"kept", b"\0", 2, True, b"\1\1", self.BEGAN + 9)

    def wills(self) -> Iterator[StoredWill]:
        yield StoredWill(b"one", Will(b"w", b"", 2, True, b"\1\1", 9), self.BEGAN + 7, is_current=True)
        yield StoredWill(b"nobody", Will(b"w", b"now", 0, False), 1, is_current=False)

    def delayed(self) -> Iterator[StoredDelayed]:
        """Two are equal, and one equals a retained message."""
        yield StoredDelayed(b"", StoredMessage(b"kept", b"\0", 2, True, b"\1\1"), self.BEGAN - 1)
        for _ in range(2):
            yield StoredDelayed(
                b"one", StoredMessage(b"d", b"same", 1, False, b"\2\0\0\0\5"), self.BEGAN + 4_294_967_000
            )
        yield StoredDelayed(b"two", StoredMessage(b"d", b"", 0, False), self.BEGAN + 4_294_967_001)
        topics = (b"$transaction//q/7/part/0", b"$transaction//q/7/part/1", b"$tenant/a/$transaction/ann%2F1/q/0/p/0")
        for topic in topics:
            yield StoredDelayed(b"spark", StoredMessage(topic, b"rows", 1, False), None)

    def committed(self) -> dict[str, int]:
        return {"/q": 6, "$tenant/a/ann%2F1/q": 0}


def test_what_clients_reach_rarely(path: Path, redis_server: RedisProcess, migrate: Run) -> None:
    given = comparable(Given())
    write(path, Given())
    same(given, state_of(path))
    migrate(f"sqlite:{path}", redis_server.url)
    same(given, state_of(redis_server))
    with redis_server.client() as client:
        assert client.hget(f"mq:g:{Given.ORDERED.decode()}", "o:paused") == "1"
        assert client.hgetall(f"mq:gv:{Given.LAST.decode()}") == {"l": "4 4"}
        assert client.hlen(f"mq:gk:{Given.ORDERED.decode()}") == 1
        assert client.zrange("mq:grace", 0, -1) == ["one"]
    migrate(redis_server.url, f"sqlite:{path}")
    same(given, state_of(path))


def test_leases_and_new_messages_of_groups_wait_again(path: Path, redis_server: RedisProcess, migrate: Run) -> None:
    """As a node leaves them that was killed."""
    group = Given.PLAIN.decode()
    write(path, Given())
    migrate(f"sqlite:{path}", redis_server.url)
    with redis_server.client(decode_responses=False) as client:
        client.hset("mq:nodes", "dead", 1)
        client.sadd("mq:gl:dead", group)
        client.hset(f"mq:gl:dead {group}", "20", encode_entry(encode_message(b"p/20", b"assigned", 1, False)))
        client.rpush(f"mq:gw:{group}", *(encode_message(b"p/new", b"%d" % number, 1, False) for number in range(700)))
        client.hset(f"mq:g:{group}", "n", 2**40 + 701)
    migrate(redis_server.url, f"sqlite:{path}")
    waiting = state_of(path)["groups"][Given.PLAIN].waiting
    places = [found.share.place for found in waiting]
    assert places == [*range(9), 20, *range(2**40 + 2, 2**40 + 702)]
    assert [found.message.payload for found in waiting[9:]] == [b"assigned", *(b"%d" % number for number in range(700))]


def write(path: Path, state: State) -> None:
    """Make a store with this state."""
    sqlite_file.create(path)
    with contextlib.closing(sqlite_file.connect(path)) as database:
        for position, block in enumerate(RecordWriter(state).blocks(), 1):
            sqlite_file.insert(database, position, block)


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
            same(left if source == path else begin, state_of(source))
            assert stages[1] != "own" or not any(
                part for name, part in state_of(target).items() if name not in ("clock", "ahead")
            )
        else:
            same(begin, state_of(target))
        migrate(*arguments)
        assert (stage_of(source), stage_of(target)) == ("moved", "own")
        same(begin, state_of(target))
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


def test_nothing_is_nothing_to_move(path: Path, redis_server: RedisProcess, migrate: Run, node: BrokerProcess) -> None:
    migrate(f"sqlite:{path}", redis_server.url, fails=f"there is no store {path}; check the path")
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
        assert client.get("new:layout") == "1"
        assert client.exists("mq:retained")
    other = old.with_name("other.db")
    leave_store(other)
    migrate(redis_server.url, f"sqlite:{other}", "--prefix", "new:", fails="has state already")
    assert stage_of(other) == "own"


def test_other_clusters_in_the_same_redis_stay(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    """Also one whose prefix begins with this one's."""
    with redis_server.client() as client:
        client.set("mq:shop:layout", 1)
        client.hset("mq:shop:retained", "t", "x")
        client.set("mq:users-of-others", "x")
        others = sorted(client.keys("*"))
        client.set("mq:change", 7)
        client.set("mq:log:gone", "x")
        migrate(f"sqlite:{old}", redis_server.url)
        assert not client.exists("mq:change", "mq:log:gone")
        migrate(redis_server.url, f"sqlite:{old}")
        migrate(f"sqlite:{old}", redis_server.url, "--prefix", "new:")
        migrate(redis_server.url, f"sqlite:{old}", "--prefix", "new:")
        migrate(f"sqlite:{old}", redis_server.url)
        assert set(others) <= set(client.keys("*"))


def test_every_key_of_a_cluster_is_state_or_is_kept(cluster: ClusterProcess) -> None:
    """Keys that are forgotten here would be found by the next cluster at this prefix."""
    cluster.start()
    RichState(cluster["a"], cluster["b"])
    keys = Keys("mq:")
    with cluster.redis.client(decode_responses=False) as client:
        assert [key for key in client.keys("*") if not keys.is_state(key)] == [b"mq:layout"]


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
    place = RedisPlace([RedisAddress.parse(redis_server.url)], load({}), print)
    with redis_server.client() as client, place.opened(create=False):
        client.set("mq:layout", 1)
        with pytest.raises(FlockError, match="has changed"):
            place.set_mark(Mark(Stage.MOVED, "1", f"sqlite:{old}"))
        assert client.get("mq:layout") == "1"


def test_a_node_that_slept_changes_nothing(cluster: ClusterProcess, path: Path, migrate: Run, tmp_path: Path) -> None:
    """It is taken for dead, as its machine can't be asked: Redis refuses its commits when it is back."""
    (tmp_path / "migrate.toml").write_text("cluster.lease = 1.5")
    cluster.start()
    a = cluster["a"]
    reader = SocketClient(a.port, "reader", clean_start=False)
    reader.subscribe(("t", 1))
    publisher = SocketClient(a.port, "publisher")
    cluster.signal(signal.SIGSTOP)
    with cluster.redis.client() as client:
        nodes = client.hgetall("mq:nodes")
        assert len(nodes) == 2
        publisher.send(Publish("t", b"late", 1, packet_id=1))
        migrate(cluster.redis.url, f"sqlite:{path}")
        cluster.signal(signal.SIGCONT)
        a.wait_for_log("was moved to")
        assert len(stored_queue(client, "reader")) == 0
        cluster.kill()
        migrate("--restore", cluster.redis.url)
        assert client.hgetall("mq:nodes") == nodes


def test_unknown_layouts_are_refused(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    with redis_server.client() as client:
        for layout in ("0", "2", "strange"):
            client.set("mq:layout", layout)
            migrate(f"sqlite:{old}", redis_server.url, fails=f"layout {layout}")
            migrate(redis_server.url, f"sqlite:{old}", fails=f"layout {layout}")
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
    same(before, state_of(old))
    migrate("--restore", f"sqlite:{old}", fails="was not moved away")
    with redis_server.client() as client:
        client.flushall()
        migrate(f"sqlite:{old}", redis_server.url)
        migrate(redis_server.url, f"sqlite:{old}")
        migrate("--restore", redis_server.url)
        assert client.get("mq:layout") == "1"
        assert not client.exists("mq:migration")


def test_an_unfinished_target_belongs_to_its_source(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    with redis_server.client() as client:
        client.set("mq:layout", ARRIVING)
        client.hset("mq:migration", mapping={"id": "1", "place": "sqlite:/other.db", "options": ""})
    migrate(f"sqlite:{old}", redis_server.url, fails="flockmq migrate sqlite:/other.db")
    assert "sqlite:/other.db" in refused("--redis", redis_server.url)
    with contextlib.closing(sqlite_file.connect(old)) as database:
        sqlite_file.set_mark(database, sqlite_file.Mark(sqlite_file.ARRIVING, "1", "redis://elsewhere:6379/0", ""))
    assert "flockmq migrate redis://elsewhere:6379/0" in refused("--store", f"sqlite:{old}")
    with redis_server.client() as client:
        client.flushall()
    migrate(f"sqlite:{old}", redis_server.url, fails="has not ended")


def test_users_and_roles_move(old: Path, redis_server: RedisProcess, migrate: Run) -> None:
    """They replace those that an earlier migration has left at the target."""
    ada = b'{"hash":"$6$YQ==$' + b"A" * 86 + b'=="}'
    with redis_server.client() as client:
        migrate(f"sqlite:{old}", redis_server.url)
        client.hset("mq:users", mapping={"ada": ada, "a/b": ada})
        client.zadd("mq:users:names", {"ada": 0, "a/b": 0})
        client.hset("mq:roles", "pump", b'{"rules":[]}')
        migrate(redis_server.url, f"sqlite:{old}")
        with contextlib.closing(sqlite3.connect(old)) as database:
            assert access_table.all_of(database, "user") == {"ada": ada, "a/b": ada}
            assert access_table.change(database, "user", [access_table.Change("ada", ada, None)]) == [True]
        migrate(f"sqlite:{old}", redis_server.url)
        assert client.hgetall("mq:users") == {"a/b": ada.decode()}
        assert client.zrange("mq:users:names", 0, -1) == ["a/b"]
        assert client.hgetall("mq:roles") == {"pump": '{"rules":[]}'}


def test_a_store_with_users_alone_is_moved(tmp_path: Path, redis_server: RedisProcess, migrate: Run) -> None:
    sqlite_file.create(tmp_path / "new.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as database:
        access_table.change(database, "role", [access_table.Change("pump", None, b'{"rules":[]}')])
    migrate(f"sqlite:{tmp_path / 'new.db'}", redis_server.url)
    with redis_server.client() as client:
        assert client.hgetall("mq:roles") == {"pump": '{"rules":[]}'}


def test_a_unix_socket_and_a_prefix(old: Path, start_redis: StartRedis, migrate: Run, tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    start_redis(["--unixsocket", str(socket)])
    before = state_of(old)
    migrate(f"sqlite:{old}", f"unix://{socket}", "--prefix", "shop:")
    line = refused("--store", f"sqlite:{old}")
    assert f"unix://{socket} sqlite:{old} --prefix shop:" in line
    migrate(f"unix://{socket}", f"sqlite:{old}", "--prefix", "shop:")
    begin_what_ends_with_the_node(before)
    same(before, state_of(old))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sqlite:a.db"], "place to move to is missing"),
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
    command = [sys.executable, "-m", "flockmq.broker.cli", "serve", "--listen", "127.0.0.1:0", *arguments]
    done = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]
