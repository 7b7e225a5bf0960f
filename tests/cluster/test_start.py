"""A node that can't join gives the reason in one line, waits where waiting helps, and harms nobody."""

import itertools
import re
import sys
import threading
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.config.schema import ClusterConfig
from flockmq.cluster.peers.nodes import ClusterNodes
from flockmq.cluster.primary import Primary
from flockmq.cluster.redis.clients import RedisAddress
from tests.conftest import StartCluster, StartRedis
from tests.harness import nursery
from tests.harness.broker_process import environment, until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient


def refused(directory: Path, url: str, *more: str) -> str:
    """The error of a node that gives up."""
    ended = nursery.run(
        [sys.executable, "-m", "flockmq.broker.cli", "serve", "--listen", "127.0.0.1:0", "--redis", url, *more],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ended.returncode == 2, ended.stderr
    errors = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return errors[0]


@pytest.mark.parametrize("layout", ["0", "2", "999", "strange"])
def test_another_layout(tmp_path: Path, redis_server: RedisProcess, layout: str) -> None:
    redis_server.client().set("mq:layout", layout)
    line = refused(tmp_path, redis_server.url)
    assert f"the cluster has layout {layout}, and this version layout 1; run the version of FlockMQ that" in line
    assert redis_server.key_names() == ["mq:layout"]
    assert redis_server.client().get("mq:layout") == layout


def test_the_layout_of_a_new_cluster(start_cluster: StartCluster) -> None:
    assert start_cluster(nodes="a").redis.client().get("mq:layout") == "1"


def test_another_layout_under_another_prefix_is_no_matter(
    start_cluster: StartCluster, redis_server: RedisProcess
) -> None:
    redis_server.client().set("mq:layout", "999")
    cluster = start_cluster({"cluster.prefix": "other:"}, redis=redis_server, nodes="a")
    with SocketClient(cluster["a"].port, "c") as client:
        assert client.ping() == []


def test_a_wrong_password(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis(["--requirepass", "secret"], {"password": "secret"})
    line = refused(tmp_path, f"redis://:wrong-sesame@127.0.0.1:{server.port}")
    assert "password" in line
    assert "sesame" not in line


def test_no_password(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis(["--requirepass", "secret"], {"password": "secret"})
    assert "password" in refused(tmp_path, server.url)


def test_a_password(start_cluster: StartCluster, start_redis: StartRedis) -> None:
    server = start_redis(["--requirepass", "ses@me"], {"password": "ses@me"})
    cluster = start_cluster(redis=GivenRedis(server, f"redis://:ses%40me@127.0.0.1:{server.port}/0"), nodes="ab")
    cluster.settle()
    assert not re.search("ses(@|%40)me", cluster.log_text())


def test_a_replica(start_cluster: StartCluster, start_redis: StartRedis) -> None:
    """It can't be written to; the node logs it, and waits until it is the master."""
    master = start_redis()
    replica = start_redis(["--replicaof", "127.0.0.1", str(master.port)])
    until(lambda: replica.client().info("replication").get("master_link_status") == "up")
    cluster = start_cluster(redis=replica, running=False, nodes="a")
    cluster["a"].spawn()
    line = cluster["a"].wait_for_log("waiting")
    assert re.search("(?i)replica|read.?only", str(line))
    replica.client().replicaof("NO", "ONE")
    cluster["a"].wait_until_ready()
    cluster.settle()


def test_a_redis_that_is_not_there_yet(start_cluster: StartCluster) -> None:
    """The node waits and logs it; it starts when Redis does."""
    cluster = start_cluster(running=False, nodes="a")
    cluster.redis.port = free_port()
    cluster["a"].spawn()
    line = cluster["a"].wait_for_log("waiting")
    assert line["level"] in ("warning", "error")
    assert str(cluster.redis.port) in str(line)
    cluster.redis.start()
    cluster["a"].wait_until_ready()
    cluster.settle()


def test_a_node_that_waits_for_redis_can_be_stopped(start_cluster: StartCluster) -> None:
    cluster = start_cluster(running=False, nodes="a")
    cluster.redis.port = free_port()
    cluster["a"].spawn()
    cluster["a"].wait_for_log("waiting")
    assert cluster["a"].stop() == 0


def test_two_clusters_in_one_redis(start_cluster: StartCluster, redis_server: RedisProcess) -> None:
    """With different prefixes neither sees the other."""
    one = start_cluster({"cluster.prefix": "one:"}, redis=redis_server, nodes="a")
    two = start_cluster({"cluster.prefix": "two:"}, redis=redis_server, nodes="b")
    with SocketClient(one["a"].port, "c", clean_start=False) as here:
        here.subscribe(("#", 1))
        with SocketClient(two["b"].port, "c", clean_start=False) as there:
            assert there.connack is not None
            assert not there.connack.session_present
            there.subscribe(("t", 0))
            one.settle()
            two.settle()
            assert here.ping() == there.ping() == []
    keys = redis_server.key_names()
    assert keys
    assert all(key.startswith(("one:", "two:")) for key in keys)


def test_all_keys_have_the_prefix(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"cluster.prefix": "x/y:z."})
    with SocketClient(cluster["a"].port, "c", clean_start=False, will_topic="w") as client:
        client.subscribe(("#", 1))
        cluster.settle()
        assert client.ping() == []
        assert all(key.startswith("x/y:z.") for key in cluster.redis.key_names())


@pytest.mark.parametrize("keeps", ["nothing", "everysec", "always"])
def test_what_an_acknowledgement_is_worth_is_said(start_cluster: StartCluster, keeps: str) -> None:
    cluster: ClusterProcess = start_cluster(nodes="a", redis=keeps)
    words = {"nothing": "nowhere else", "everysec": "append-only file", "always": "loss of power"}
    cluster["a"].wait_for_log(words[keeps])


def test_a_node_that_has_not_begun_counts_itself() -> None:
    """/metrics is answered before that."""
    primary = Primary(RedisAddress.parse("redis://127.0.0.1"), ClusterConfig(), b"a", print)
    assert ClusterNodes([primary.link], [primary.store], primary.membership, None, None).count == 1  # type: ignore[arg-type]


def test_a_node_joins_while_others_make_changes(start_cluster: StartCluster) -> None:
    """Changes that follow the reply to its first heartbeat are no sign that Redis has lost what was committed."""
    cluster = start_cluster(nodes="ab")
    stop = threading.Event()

    def change() -> None:
        with SocketClient(cluster["a"].port, "busy") as client:
            numbers = itertools.count()
            while not stop.is_set():
                client.send(*(Publish(f"kept/{next(numbers) % 100}", b"x", retain=True) for _ in range(5)))
                client.ping()

    busy = threading.Thread(target=change)
    busy.start()
    try:
        for _ in range(5):
            cluster["b"].stop()
            cluster["b"].start()
    finally:
        stop.set()
        busy.join()
    assert "not started yet" not in cluster["b"].log_text()
