"""Commands for operators of a cluster with three shards: all shards are in them, or the one that has the thing."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.broker.cli import main
from flockmq.cluster.analytics.log.connection import Connection
from flockmq.cluster.analytics.log.log import Logs
from flockmq.cluster.analytics.options import parse_options
from flockmq.cluster.analytics.output.live import Live
from tests.conftest import StartRedis
from tests.connect.pipe_file import once
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.redis_process import KEEPS, RedisProcess, urls
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

SHARDS = 3
CLIENTS = [f"c{number}" for number in range(12)]
SETTINGS = {"cluster.lease": 2, "analytics.topics": "#", "mqtt.sys_interval": 0, "http.listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisProcess]]:
    """Three Redis."""
    with ExitStack() as stack:
        found = []
        for _ in range(SHARDS):
            found.append(RedisProcess(tmp_path_factory.mktemp("redis"), KEEPS["everysec"]).start())
            stack.callback(found[-1].kill)
        yield found


@pytest.fixture(scope="module")
def cluster(servers: list[RedisProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Two nodes; each client has one retained message, and one that waits for it."""
    directory, redis = tmp_path_factory.mktemp("nodes"), GivenRedis(servers[0], urls(servers))
    with ClusterProcess(directory, SETTINGS, nodes="ab", redis=redis, orderly=False) as cluster:
        for client_id in CLIENTS:
            with SocketClient(cluster.port, client_id, clean_start=False) as client:
                client.subscribe((f"to/{client_id}", 1))
        with SocketClient(cluster.port, "publisher") as publisher:
            for number, client_id in enumerate(CLIENTS, 1):
                payload = b'{"number":%d}' % number
                publisher.send(Publish(f"to/{client_id}", payload, 1, True, packet_id=number))
                assert publisher.receive() == Puback(packet_id=number)
        yield cluster


@pytest.fixture
def tell(servers: list[RedisProcess], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command; returns its output."""

    def run(*arguments: str, status: int = 0) -> str:
        assert main(list(arguments)) == status
        found = capsys.readouterr()
        return found.err if status else found.out

    return run


def test_status_has_all_shards(cluster: ClusterProcess, servers: list[RedisProcess], tell: Callable[..., str]) -> None:
    found = json.loads(tell("cluster", "status", "--json", "--redis", urls(servers)))["shards"]
    assert sum(shard["persistent_sessions"] for shard in found) == len(CLIENTS)
    assert sum(shard["retained_messages"] for shard in found) >= len(CLIENTS)
    assert all([node["name"] for node in shard["nodes"]] == ["a", "b"] for shard in found)
    assert [bool(shard["logs"]) for shard in found] == [True, False, False]


def test_status_names_the_primary_that_is_away(
    cluster: ClusterProcess, servers: list[RedisProcess], tell: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    places = f"{servers[0].url} redis://127.0.0.1:1 {servers[2].url}"
    assert main(["cluster", "status", "--wait", "0.1", "--redis", places]) == 1
    shown = capsys.readouterr().out
    assert "shard 2 of 3\ncan't use Redis at redis://127.0.0.1:1/0: " in shown
    assert shown.count("changes so far") == 2


def test_a_part_of_the_urls_is_refused(
    cluster: ClusterProcess, servers: list[RedisProcess], tell: Callable[..., str], tmp_path: Path
) -> None:
    """What a command shows of one shard would be taken for all."""
    for some in (servers[:1], servers[1:2], servers[::-1]):
        for words in (["cluster", "status"], ["session", "show", "c1"], ["replay", "--since", "1 h ago", "--count"]):
            assert "name all URLs of the cluster in their order" in tell(*words, "--redis", urls(some), status=1)
        assert "name all URLs" in tell("backup", str(tmp_path / "b.tar"), urls(some), status=1)


def test_a_session_is_found_in_its_shard(
    cluster: ClusterProcess, servers: list[RedisProcess], tell: Callable[..., str]
) -> None:
    for client_id in CLIENTS[:4]:
        found = json.loads(tell("session", "show", client_id, "--json", "--redis", urls(servers)))
        assert found["subscriptions"] == {f"to/{client_id}": 1}
        assert found["queued_messages"] == 1


def test_the_log_is_read_from_the_first(
    cluster: ClusterProcess, servers: list[RedisProcess], tell: Callable[..., str], tmp_path: Path
) -> None:
    """By commands, by the source of Spark, by pipes, and by the results of jobs, whichever URLs they are given."""
    where = ["--redis", urls(servers)]
    count = json.loads(tell("replay", "--since", "1 h ago", "--count", "--json", *where))
    assert count["messages"] == len(CLIENTS)
    schema = json.loads(tell("schema", "infer", "to/#", *where))
    assert list(schema["properties"]) == ["number"]
    options = parse_options({"redis": urls(servers)})
    assert str(options.redis) == f"redis://127.0.0.1:{servers[0].port}/0"
    with Connection(options.redis) as connection:
        assert len(Logs(connection).known()) == 2
    live = Live(urls(servers), "mq:", 10)
    live.set("x", {"n": 1})
    live.flush()
    with SocketClient(cluster.port, "reader") as reader:
        reader.subscribe(("$SYS/analytics/#", 0))
        packet = reader.receive()
        assert isinstance(packet, Publish) and packet.topic_name.endswith("/analytics/x")


def test_a_pipe_reads_the_first(cluster: ClusterProcess, servers: list[RedisProcess], tmp_path: Path) -> None:
    target = f'[pipes.mqtt]\nurl = "mqtt://127.0.0.1:{cluster.port}"\n'
    sql = "select 'piped' as topic, payload from messages where topic = 'to/c1'"
    path = tmp_path / "pipes.toml"
    path.write_text(f'redis = "{urls(servers)}"\n[[pipes]]\nname = "p"\nsql = "{sql}"\n{target}')
    with SocketClient(cluster.port, "piped") as reader:
        reader.subscribe(("piped/#", 0), ("to/+", 0))
        for _ in CLIENTS:
            assert reader.receive() is not None  # the retained ones
        once(path)
        assert isinstance(reader.receive(), Publish)


def test_a_backup_has_all_shards(
    cluster: ClusterProcess,
    servers: list[RedisProcess],
    tell: Callable[..., str],
    start_redis: StartRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is restored into three Redis, and into one with three shards; then clients find what they had."""
    backup = tmp_path / "b.tar"
    assert "as of" in tell("backup", str(backup), urls(servers))
    counted = f"{len(CLIENTS)} sessions with {len(CLIENTS)} subscriptions and {len(CLIENTS)} queued messages"
    assert counted in tell("backup", str(backup), "--verify")
    monkeypatch.setenv("FLOCKMQ_CLUSTER_LEASE", "1")
    others = [start_redis() for _ in range(4)]
    line = tell("restore", str(backup), urls(others[:2]), status=1)
    assert "has 3 shards" in line and "name 3 URLs, or one for all" in line
    tell("restore", str(backup), urls(others[:3]))
    tell("restore", str(backup), others[3].url)
    for shard, server in enumerate(others[:3]):
        prefix = f"mq:p{shard}:" if shard else "mq:"
        with server.client() as client, others[3].client() as one:
            expected = {client_id for client_id in CLIENTS if shard_of(client_id.encode(), SHARDS) == shard}
            assert client.smembers(f"{prefix}sessions") == one.smembers(f"{prefix}sessions") == expected
            assert client.get("mq:shards") == f"3:{shard}"
    assert others[3].client().get("mq:shards") == "3:0 1 2"
    assert "has state already" in tell("restore", str(backup), others[3].url, status=1)
    settings = {**SETTINGS, "cluster.shards": 3}
    directory = tmp_path / "restored"
    directory.mkdir()
    with ClusterProcess(directory, settings, nodes="c", redis=others[3], orderly=False) as restored:
        for client_id in CLIENTS:
            with SocketClient(restored.port, client_id, clean_start=False) as client:
                assert client.connack is not None and client.connack.session_present
                packet = client.receive()
                assert isinstance(packet, Publish) and packet.topic_name == f"to/{client_id}"


def test_metrics_name_the_shard(cluster: ClusterProcess, servers: list[RedisProcess]) -> None:
    """A frozen primary has blocks that wait; the others, and a cluster of one shard, have none."""

    def figure(name: str) -> list[float]:
        rows = re.findall(rf'^flockmq_shard_{name}{{shard="(\d)",node="a"}} (.*)$', metrics(), re.MULTILINE)
        assert [number for number, _ in rows] == ["0", "1", "2"]
        return [float(value) for _, value in rows]

    def metrics() -> str:
        return api.ask("GET", "//metrics").data.decode()

    api = HttpClient(cluster["a"])
    assert figure("connected") == [1, 1, 1]
    until(lambda: figure("waiting") == [0, 0, 0])
    client_id = next(name for name in CLIENTS if shard_of(name.encode(), SHARDS) == 1)
    servers[1].freeze()
    try:
        with SocketClient(cluster["a"].port, "publisher") as publisher:
            publisher.send(Publish(f"to/{client_id}", b"{}", 1, packet_id=1))
            until(lambda: figure("waiting")[1] > 0)
            until(lambda: figure("latency_seconds")[1] > 0.2)
            assert figure("waiting")[2] == 0
            shards = api.get("/nodes")["nodes"].popitem()[1]["shards"]
            assert [shard["connected"] for shard in shards] == [True] * SHARDS
    finally:
        servers[1].thaw()
    until(lambda: figure("waiting") == [0, 0, 0])
