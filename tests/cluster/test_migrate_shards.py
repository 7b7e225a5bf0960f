"""`flockmq migrate` to several shards, and from several: each record goes to the shard of its name.

Shared subscriptions are the exception: a message in the queue of a session whose group is in another shard does not
belong to the group any more.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.cluster.message_codec import split_heads
from flockmq._speedups.cluster.sharded_journal import shard_of, topic_shard
from flockmq.broker.cli import main
from flockmq.broker.config.load import load
from flockmq.broker.core.session_expiry import NEVER
from flockmq.broker.core.will import Will
from flockmq.cluster.migration.redis_place import RedisPlace
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
from flockmq.cluster.redis.keys import ARRIVING, MOVED
from flockmq.cluster.redis.shard_addresses import addresses_of, stored_addresses
from tests.cluster.rich_state import CONFIG, SETTINGS, RichState
from tests.cluster.test_migrate import comparable, same, stage_of, state_of, write
from tests.conftest import StartCluster, StartRedis
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.cluster_process import GivenRedis
from tests.harness.deadline import DEADLINE
from tests.harness.redis_cluster import RedisCluster
from tests.harness.redis_process import RedisProcess, urls

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SHARDS = 3
CLIENTS = [b"c%d" % number for number in range(24)]
GROUPS = [b"$share/g%d/t" % number for number in range(6)]
HIDDEN = b"$\0flockmq/streams/" + b"c7".hex().encode() + b"/1"


class Spread(State):
    """A state with names of all shards."""

    BEGAN = wall_clock()
    is_empty = False

    @property
    def clock(self) -> int:
        return wall_clock()

    def declarations(self) -> dict[bytes, bytes]:
        return dict.fromkeys(GROUPS[:2], b'{"max_deliveries":9}')

    def sessions(self) -> Iterator[StoredSession]:
        for number, client_id in enumerate(CLIENTS):
            session = StoredSession(client_id, 2 * number + 1, 5, b"ada", NEVER, head=7, tail=10, sent=8)
            kept = StoredMessage(b"t", client_id, 1, False, deadline=self.BEGAN + 1_000_000)
            group = GROUPS[number % len(GROUPS)]
            session.queue = {
                7: Queued(kept, share=Share(group, number)),
                8: Queued(kept, share=Share(group, 100 + number)),
                9: Queued(kept),
            }
            session.awaiting = {1: kept._replace(qos=2), 9: kept._replace(qos=2)}
            session.subscriptions = {b"t/#": (1, 0), group: (1, 3)}
            yield session

    def groups(self) -> Iterator[StoredGroup]:
        for name in GROUPS:
            waiting = [Waiting(Share(name, 200), StoredMessage(b"t", b"waits", 1, False))]
            yield StoredGroup(name, self.declarations().get(name, b""), 200, waiting)

    def retained(self) -> Iterator[StoredMessage]:
        for topic in (*(b"r/%d" % number for number in range(12)), HIDDEN):
            yield StoredMessage(topic, b"kept", 1, True)

    def wills(self) -> Iterator[StoredWill]:
        for client_id in CLIENTS[:6]:
            yield StoredWill(client_id, Will(b"w", client_id, 1, False, b"", 600), self.BEGAN + 600_000, True)

    def delayed(self) -> Iterator[StoredDelayed]:
        for number in range(4):
            yield StoredDelayed(CLIENTS[number], StoredMessage(b"d/%d" % number, b"", 1, False), self.BEGAN + number)


@pytest.fixture
def three(start_redis: StartRedis) -> list[RedisProcess]:
    return [start_redis() for _ in range(SHARDS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "flockmq.db"
    write(path, Spread())
    return path


@pytest.fixture
def migrate(tmp_path: Path) -> Run:
    """Run the command; `fails`: a part of the error that it must report."""
    file = tmp_path / "migrate.toml"
    file.write_text(CONFIG.replace("lease = 20", "lease = 1"))

    def run(*arguments: str, fails: str = "") -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "flockmq.broker.cli", "migrate", *arguments, "--config", str(file)]
        done = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        assert done.returncode == bool(fails), done.stderr
        assert fails in done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def found_at(redis: str) -> dict[str, Any]:
    """All that a cluster has, in a form that can be compared."""
    config = load({"cluster.redis": redis, "shared.redispatch": "1000"})
    place = RedisPlace(stored_addresses(config.cluster), config, print)
    with place.opened(create=False):
        found = comparable(place.read())
    for session in found["sessions"].values():
        session.number = 0
    return found


def ordered(state: dict[str, Any]) -> dict[str, Any]:
    """A state in a form that can be compared: groups by name, sessions without numbers."""
    state["groups"] = {name: state["groups"][name] for name in sorted(state["groups"])}
    for session in state["sessions"].values():
        session.number = 0
    return state


def test_each_record_goes_to_the_shard_of_its_name(path: Path, three: list[RedisProcess], migrate: Run) -> None:
    migrate(f"sqlite:{path}", urls(three))
    numbers = set()
    for shard, server in enumerate(three):
        with server.client(decode_responses=False) as client:
            prefix = b"mq:p%d:" % shard if shard else b"mq:"

            def names(key: bytes, client: Any = client, prefix: bytes = prefix) -> set[bytes]:
                return {name[len(prefix + key) :] for name in client.keys(prefix + key + b"*")}

            here = {client_id for client_id in CLIENTS if shard_of(client_id, SHARDS) == shard}
            assert here and names(b"s:") == names(b"subs:") == names(b"in:") == here
            assert client.smembers(prefix + b"sessions") == here
            groups = {name for name in GROUPS if shard_of(name, SHARDS) == shard}
            assert names(b"g:") == names(b"gs:") == groups
            for name in groups:
                members = {b"c:" + client_id for n, client_id in enumerate(CLIENTS) if GROUPS[n % len(GROUPS)] == name}
                assert client.smembers(prefix + b"gs:" + name) - {b"d:"} == members
            topics = client.hkeys(prefix + b"retained")
            assert topics and all(topic_shard(topic, SHARDS) == shard for topic in topics)
            assert (HIDDEN in topics) == (shard_of(b"c7", SHARDS) == shard)
            assert bool(client.exists(prefix + b"later")) == (shard == 0)
            assert client.get(b"mq:shards") == b"3:%d" % shard
            assert client.get(prefix + b"layout") == b"1"
            for name in here:
                messages = client.hvals(prefix + b"in:" + name)
                numbers |= {(name, split_heads(message)[0]) for message in messages}
    assert len(numbers) == 2 * len(CLIENTS) and all(number for _, number in numbers)
    same(ordered(comparable(Spread())), found_at(urls(three)))


def test_from_some_shards_to_others(path: Path, start_redis: StartRedis, migrate: Run) -> None:
    """Three, two, one Redis with two, one, and a file; nothing changes but the messages that leave their groups."""
    servers = [start_redis() for _ in range(7)]
    one = ["--shards", "2"]
    places = [f"sqlite:{path}", urls(servers[:3]), urls(servers[3:5]), servers[5].url, servers[6].url]
    expected = comparable(Spread())
    for (source, target), shards in zip(pairwise(places), (3, 2, 2, 1), strict=True):
        migrate(source, target, *(one if target == places[3] else ["--shards", str(shards)] if shards == 1 else []))
        expected = ordered(expected)
        same(expected, found_at(target))
    with servers[6].client(decode_responses=False) as client:
        assert not client.exists("mq:shards")
        assert all(split_heads(message)[0] == 0 for message in client.hvals("mq:in:c1"))
    migrate(places[4], f"sqlite:{path}")
    back = state_of(path)
    for session in back["sessions"].values():
        session.number = 0
    same(expected, back)


def test_deadlines_of_shards_have_one_clock(path: Path, three: list[RedisProcess], migrate: Run) -> None:
    """The clock of a shard was an hour ahead: a deadline moves by the time that is left."""
    migrate(f"sqlite:{path}", urls(three))
    before = found_at(urls(three))
    with three[1].client() as client:
        client.hincrby("mq:p1:clock", "t", 3_600_000)
    after = found_at(urls(three))
    for client_id, session in before["sessions"].items():
        sooner = 3_600_000 * (shard_of(client_id, SHARDS) == 1)
        left = after["sessions"][client_id].queue[9].message.deadline
        assert session.queue[9].message.deadline - left == pytest.approx(sooner, abs=2000)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_find_their_state(
    tmp_path: Path, three: list[RedisProcess], start_cluster: StartCluster, migrate: Run, how: str
) -> None:
    """One node becomes two over three Redis, which become one node again."""
    settings = {**SETTINGS, "cluster.lease": 1.5, "cluster.timeout": 0.7}
    node = BrokerProcess(tmp_path, "sqlite", settings)
    cluster = start_cluster(settings, running=False, nodes="ab", redis=GivenRedis(three[0], urls(three)))
    if how == "stop":
        state = RichState(node.start())
        state.end(node, how)
        migrate(f"sqlite:{tmp_path / 'flockmq.db'}", urls(three))
        cluster.start()
        state.find(cluster["a"], cluster["b"])
    else:
        cluster.start()
        state = RichState(cluster["a"], cluster["b"])
        state.end(cluster, how)
        migrate(urls(three), f"sqlite:{tmp_path / 'flockmq.db'}")
        state.find(node.start())


def test_a_redis_cluster_gets_shards(path: Path, tmp_path: Path, start_redis: StartRedis, migrate: Run) -> None:
    """Each is in a slot of its own, and the number is found when the state moves on."""
    servers, old = RedisCluster(tmp_path / "cluster", replicas=0), start_redis()
    try:
        servers.start()
        migrate(f"sqlite:{path}", old.url)
        migrate(old.url, servers.url, "--shards", "3")
        same(ordered(comparable(Spread())), found_at(servers.url))
        assert all(server.client().dbsize() for server in servers.servers)
        config = load({"cluster.redis": servers.url, "cluster.shards": "3"})
        assert stored_addresses(load({"cluster.redis": servers.url}).cluster) == addresses_of(config.cluster)
        migrate(servers.url, f"sqlite:{tmp_path / 'back.db'}")
    finally:
        servers.stop()


@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_command_that_was_killed_is_repeated(
    path: Path, start_redis: StartRedis, tmp_path: Path, migrate: Run, direction: str
) -> None:
    """Wherever it is killed: the source is whole, or the target is; never are both open to nodes."""
    servers = [start_redis() for _ in range(3)]
    file = path.read_bytes()
    places = [f"sqlite:{path}", urls(servers[:2])] if direction == "to" else [urls(servers[:2]), servers[2].url]
    for step in range(1, 100):
        for server in servers:
            server.client().flushall()
        for name in path.parent.glob("flockmq.db*"):
            name.unlink()
        path.write_bytes(file)
        if direction == "from":
            migrate(f"sqlite:{path}", places[0])
        command = [sys.executable, "-m", "tests.cluster.dying_migrate", str(step), *places]
        died = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        if died.returncode == 0:
            break
        stages = [stage(server, prefix) for server, prefix in zip(servers, ("mq:", "mq:p1:", "mq:"), strict=True)]
        if direction == "to":
            source, target, keys = [stage_of(path)], stages[:2], servers[0].client().exists("mq:sessions")
        else:
            source, target, keys = stages[:2], stages[2:], servers[2].client().exists("mq:sessions")
        assert set(source) == {"moved"} or set(target) != {"own"} or not keys
        migrate(*places)
        found = found_at(places[1])
        same(ordered(comparable(Spread())), found)
    assert step > 12


def stage(server: RedisProcess, prefix: str) -> str:
    """Whether nodes may use a shard."""
    with server.client() as client:
        return {MOVED: "moved", ARRIVING: "arriving"}.get(int(client.get(f"{prefix}layout") or 0), "own")


def test_what_is_refused(path: Path, three: list[RedisProcess], start_redis: StartRedis, migrate: Run) -> None:
    """Other URLs than the cluster's, in another order, a target with state, a primary that is away."""
    a, b, c = (server.url for server in three)
    other = start_redis()
    with three[1].client() as client:
        client.hset("mq:p1:retained", "t", "x")
        migrate(f"sqlite:{path}", urls(three), fails="has state already")
        assert not three[0].client().keys("*")
        client.flushall()
    migrate(f"sqlite:{path}", urls(three))
    migrate(f"{a} {c} {b}", other.url, fails="has shard 3 of 3, and the command line names shard 2 of 3")
    migrate(f"{a} {b}", other.url, fails="has shard 1 of 3, and the command line names shard 1 of 2")
    migrate(a, other.url, fails="name all URLs of the cluster in their order")
    migrate(b, other.url, fails="name all URLs of the cluster in their order")
    three[2].kill()
    assert "Connection refused" in migrate(urls(three), other.url, fails=f"can't use Redis at {c}/0").stderr
    three[2].start()
    assert not other.client().keys("*")


def test_a_cluster_of_one_is_not_one_of_several(path: Path, start_redis: StartRedis, migrate: Run) -> None:
    servers = [start_redis() for _ in range(3)]
    migrate(f"sqlite:{path}", servers[0].url)
    migrate(servers[0].url, urls(servers[:2]), fails="a place of the target is the source's")
    line = migrate(urls(servers[:2]), servers[2].url, fails="has a cluster of one shard, and the command").stderr
    assert "name the one URL" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["redis://h redis://:secret@i x", "redis://j"], "names no place"),
        (["sqlite:a.db", " ".join(["redis://h"] * 65)], "at most 64 URLs"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "secret" not in told
