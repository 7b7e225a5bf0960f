"""A cluster in one slot of a Redis Cluster: nodes, commands and other clients reach the primary that owns it."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator

import pytest
import redis

from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.broker.cli import main
from flockmq.cluster.analytics.log.connection import Connection
from flockmq.cluster.analytics.log.log import Logs
from flockmq.cluster.redis.clients import RedisAddress
from tests.conftest import StartCluster, StartRedis
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.ports import free_port
from tests.harness.redis_cluster import RedisCluster
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

# The rights that CLUSTER.md lists for a Redis Cluster, without the commands that a rented service refuses: CONFIG, INFO
# and CLIENT.
RIGHTS = [
    *("~{mq}*", "&{mq}:*", "-@all", "+@read", "+@write", "+time", "+fcall", "+fcall_ro", "+function|list"),
    *("+function|load", "+spublish", "+ssubscribe", "+hello", "+ping", "+wait", "+cluster|slots"),
]


pytestmark = pytest.mark.one_shard


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    group = RedisCluster(tmp_path_factory.mktemp("servers"), "nothing", replicas=0)
    try:
        yield group.start()
    finally:
        group.stop()


@pytest.fixture
def servers(many: RedisCluster) -> Iterator[RedisCluster]:
    """Three primaries without keys."""
    yield many
    for server in many.servers:
        server.client().flushall()


@pytest.fixture
def tell(
    servers: RedisCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run a command; returns its output."""
    monkeypatch.setenv("FLOCKMQ_CLUSTER_REDIS", servers.url)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def start(start_cluster: StartCluster, servers: RedisCluster, url: str = "", **more: object) -> ClusterProcess:
    return start_cluster(more, nodes="ab", redis=GivenRedis(servers.owner, url or servers.url))


def test_commands(start_cluster: StartCluster, servers: RedisCluster, tell: Callable[..., str]) -> None:
    cluster = start(
        start_cluster, servers, **{"analytics.topics": "#", "auth.users": True, "http.listen": "127.0.0.1:0"}
    )
    apis = [HttpClient(cluster[name]) for name in "ab"]
    assert apis[0].ask("POST", "/users", {"name": "ada", "password": "x"}).status == 200
    assert apis[1].ask("PATCH", "/user", {"disabled": True}, name="ada").status == 200
    assert [(item["name"], item["disabled"]) for item in apis[0].get("/users")["items"]] == [("ada", True)]
    status = json.loads(tell("cluster", "status", "--json"))
    assert [node["heartbeat"] for node in status["nodes"]] == [True, True]
    assert status["prefix"] == "{mq}:"
    assert not [warning for warning in status["warnings"] if "Redis Cluster" in warning]
    assert all(key.startswith("{mq}:") for key in servers.owner.key_names())
    assert not [server for server in servers.servers if server is not servers.owner and server.key_names()]
    cluster.check()


def test_sessions_logs_and_results(
    start_cluster: StartCluster, servers: RedisCluster, tell: Callable[..., str]
) -> None:
    cluster = start(start_cluster, servers, **{"analytics.topics": "#"})
    with (
        SocketClient(cluster["a"].port, "s", clean_start=False) as subscriber,
        SocketClient(cluster["b"].port, "p") as publisher,
    ):
        subscriber.subscribe(("t", 1))
        publisher.send(Publish("t", b"x", qos=1, packet_id=1))
        assert publisher.receive() == Puback(packet_id=1)
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        assert packet.payload == b"x"
        assert json.loads(tell("session", "show", "s", "--json"))["subscriptions"] == {"t": 1}
        assert "it was connected to a (" in tell("session", "kick", "s")
        assert subscriber.receive() is None
    until(lambda: "no, since" in tell("session", "show", "s"))
    assert tell("session", "purge", "s").strip() == "the session has ended"
    with Connection(RedisAddress.parse(servers.url)) as connection:
        assert len(Logs(connection).known()) == 2
    assert json.loads(tell("replay", "--since", "1 h ago", "--count", "--json"))


def test_other_clients_follow_the_slot(servers: RedisCluster) -> None:
    address = RedisAddress.parse(servers.url)
    home, away = servers.owner, servers.other_primary()

    async def read() -> object:
        client = address.async_client()
        try:
            return await client.get("{mq}:who")
        finally:
            await client.aclose()

    with address.client() as client, Connection(address, patience=10) as connection:
        client.set("{mq}:who", "me")
        assert connection.ask("GET", "{mq}:who") == b"me"

        def refused() -> None:
            with pytest.raises(redis.ConnectionError, match="AskError"):
                client.get("{mq}:other")

        servers.move_slot(away, refused)
        assert connection.ask("GET", "{mq}:who") == b"me"
        until(lambda: client.get("{mq}:who") == b"me")
        assert asyncio.run(read()) == b"me"
        assert asyncio.run(address.endpoint()) == ("127.0.0.1", away.port)
        servers.move_slot(home)
        assert connection.ask("GET", "{mq}:who") == b"me"
    gone = RedisAddress.parse(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{home.port}")
    for _ in range(5):
        assert asyncio.run(gone.endpoint()) == ("127.0.0.1", home.port)


def test_a_service_that_refuses_much(start_cluster: StartCluster, servers: RedisCluster) -> None:
    """CONFIG, INFO and CLIENT are refused: the nodes do without, and the log has a word on it."""
    for server in servers.servers:
        server.client().execute_command("ACL", "SETUSER", "tenant", "on", ">sesame", "resetchannels", *RIGHTS)
    cluster = start(start_cluster, servers, servers.url.replace("//", "//tenant:sesame@"))
    cluster["a"].wait_for_log("durability of Redis is unknown")
    servers.owner.cut("pubsub")
    cluster["a"].wait_for_log("Redis is back")
    assert len([line for line in cluster["a"].log if "refuses CLIENT" in line["event"]]) == 1
    cluster.settle()


def test_a_user_who_may_not_ask_for_the_owner(start_cluster: StartCluster, servers: RedisCluster) -> None:
    for server in servers.servers:
        server.client().execute_command("ACL", "SETUSER", "blind", "on", ">sesame", "~*", "&*", "+@all", "-cluster")
    cluster = start_cluster(
        nodes="a", redis=GivenRedis(servers.owner, servers.url.replace("//", "//blind:sesame@")), running=False
    )
    cluster["a"].spawn()
    assert cluster["a"].wait() == 2
    assert re.search("CLUSTER.md lists", cluster["a"].log_text())


def test_a_redis_that_is_no_cluster(start_cluster: StartCluster, start_redis: StartRedis) -> None:
    server: RedisProcess = start_redis()
    cluster = start_cluster(
        nodes="a", redis=GivenRedis(server, f"redis+cluster://127.0.0.1:{server.port}"), running=False
    )
    cluster["a"].spawn()
    assert cluster["a"].wait() == 2
    assert "redis://HOST:PORT is its URL" in cluster["a"].log_text()


def test_a_wrong_password(start_cluster: StartCluster, servers: RedisCluster) -> None:
    url = servers.url.replace("//", "//nobody:wrong-sesame@")
    cluster = start_cluster(nodes="a", redis=GivenRedis(servers.owner, url), running=False)
    cluster["a"].spawn()
    assert cluster["a"].wait() == 2
    assert "check user and password" in cluster["a"].log_text()
    assert "wrong-sesame" not in cluster["a"].log_text()
