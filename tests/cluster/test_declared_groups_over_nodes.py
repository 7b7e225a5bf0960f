"""Declared groups over nodes: work waits in Redis for the first worker, with limits of the group's own."""

import json
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Pubrec, Pubrel
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterNode, ClusterProcess
from tests.harness.shared_subscriber import JOBS, Worker
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"cluster.lease": 1.5, "cluster.timeout": 0.7, "http.listen": "127.0.0.1:0"})


def declare(cluster: ClusterProcess, node: str = "a", **options: Any) -> None:
    assert HttpClient(cluster[node]).ask("PUT", "/group", options, group=JOBS).status == 204


def publish(cluster: ClusterProcess, node: str, *payloads: bytes, topic: str = "jobs/x", qos: int = 1) -> None:
    with SocketClient(cluster[node].port, "publisher", level=5) as publisher:
        for payload in payloads:
            publisher.send(Publish(topic, payload, qos, packet_id=1))
            if qos == 1:
                assert publisher.receive() == Puback(1)
            else:
                assert publisher.receive() == Pubrec(1)
                publisher.send(Pubrel(1))
                publisher.receive()


def waiting(cluster: ClusterProcess, node: str = "c") -> int:
    return int(HttpClient(cluster[node]).get("/group", group=JOBS)["waiting"])


@pytest.mark.parametrize("level", [4, 5])
def test_work_of_all_nodes_waits_for_the_first_worker(cluster: ClusterProcess, level: int) -> None:
    declare(cluster, "b")
    for number, node in enumerate("abc"):
        publish(cluster, node, b"%d" % number, qos=1 + number % 2)
    assert waiting(cluster) == 3
    worker = Worker(cluster["c"].port, level=level)
    assert worker.wait_for(3) == [b"0", b"1", b"2"]
    worker.client.close()
    publish(cluster, "a", b"3")  # the last worker has left: work waits again
    until(lambda: waiting(cluster) == 1)
    assert Worker(cluster["b"].port).wait_for(1) == [b"3"]


def test_a_group_and_its_messages_outlive_all_nodes(cluster: ClusterProcess) -> None:
    declare(cluster, window=2, expiry=1000)
    publish(cluster, "a", b"1", b"2", b"3")
    cluster.kill()
    cluster.start()
    found = HttpClient(cluster["b"]).get("/group", group=JOBS)
    assert (found["declared"], found["waiting"]) == (True, 3)
    assert (found["settings"]["window"], found["settings"]["expiry"]) == (2, 1000)
    publish(cluster, "c", b"4")
    assert Worker(cluster["a"].port).wait_for(4) == [b"1", b"2", b"3", b"4"]


def test_a_node_that_joins_knows_the_group(cluster: ClusterProcess) -> None:
    cluster["c"].kill()
    declare(cluster)
    cluster.start()
    publish(cluster, "c", b"1")
    assert waiting(cluster) == 1


@pytest.mark.parametrize(("policy", "kept"), [("drop-old", [b"3", b"4"]), ("drop-new", [b"1", b"2"])])
def test_the_limits_of_the_group_hold(cluster: ClusterProcess, policy: str, kept: list[bytes]) -> None:
    declare(cluster, max_queued_messages=2, when_full=policy)
    publish(cluster, "a", b"1", b"2")
    publish(cluster, "b", b"3", b"4")
    assert waiting(cluster) == 2
    assert Worker(cluster["c"].port).wait_for(2) == kept


def test_the_limit_of_bytes_holds(cluster: ClusterProcess) -> None:
    declare(cluster, max_queued_bytes=1024, when_full="drop-new")
    publish(cluster, "a", b"1" * 400, b"2" * 400, b"3" * 400)
    assert waiting(cluster) == 2


def test_the_expiry_of_the_group_holds(cluster: ClusterProcess) -> None:
    declare(cluster, expiry=1)
    publish(cluster, "a", b"old")
    declare(cluster, expiry=0)
    publish(cluster, "a", b"new")
    redis = cluster.redis.client(decode_responses=False)
    until(lambda: cluster_time(redis) > deadline(redis))
    worker = Worker(cluster["b"].port)
    assert worker.wait_for(1) == [b"new"]


def cluster_time(redis: Any) -> int:
    return int(redis.hget("mq:clock", "t"))


def deadline(redis: Any) -> int:
    """Of the first message that waits."""
    message = redis.lindex("mq:gw:" + JOBS, 0)
    assert message[0] >> 4 == 2
    assert message[0] & 8
    return int.from_bytes(message[7:15], "little")


def test_only_the_newest_message_of_each_topic_waits(cluster: ClusterProcess) -> None:
    declare(cluster, last_value=True)
    for number in range(3):
        for topic in "yz":
            publish(cluster, "abc"[number], topic.encode() * number + b"!", topic=f"jobs/{topic}")
    assert waiting(cluster) == 2
    redis = cluster.redis.client()
    assert int(redis.hget("mq:g:" + JOBS, "b")) == sum(map(len, redis.hvals("mq:gm:" + JOBS)))
    assert Worker(cluster["b"].port).wait_for(2) == [b"yy!", b"zz!"]
    until(lambda: not redis.exists("mq:gv:" + JOBS, "mq:gm:" + JOBS))


def test_a_message_that_comes_back_yields_to_a_newer_one(cluster: ClusterProcess) -> None:
    declare(cluster, last_value=True, window=1)
    first = SocketClient(cluster["a"].port, "first", level=5)
    first.subscribe((JOBS, 1))
    publish(cluster, "b", b"1", b"2", b"3")
    got = first.receive()
    assert isinstance(got, Publish)
    assert got.payload == b"1"
    assert waiting(cluster) == 1
    first.close()
    redis = cluster.redis.client()
    until(lambda: not any(redis.hlen(key) for key in redis.keys("mq:gl:*")))
    assert waiting(cluster) == 1
    assert Worker(cluster["c"].port).wait_for(1) == [b"3"]


def test_a_newer_message_replaces_one_that_was_sent_without_success(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"shared.redispatch": 0, "http.listen": "127.0.0.1:0"})
    declare(cluster, last_value=True)
    away = SocketClient(cluster["a"].port, "away", clean_start=False)
    away.subscribe((JOBS, 1))
    publish(cluster, "b", b"1")
    assert isinstance(away.receive(), Publish)
    away.close()
    redis = cluster.redis.client()
    until(lambda: redis.zcard("mq:gq:" + JOBS) == 1)
    publish(cluster, "b", b"2")
    assert waiting(cluster) == 1
    assert Worker(cluster["c"].port).wait_for(1) == [b"2"]


def test_subscribers_of_a_paused_group_get_nothing_new(cluster: ClusterProcess) -> None:
    declare(cluster, window=3)
    worker = Worker(cluster["a"].port)
    api = HttpClient(cluster["b"])
    assert api.ask("PUT", "/group/paused", {"paused": True}, group=JOBS).status == 204
    until(lambda: not cluster.redis.client().zcard("mq:gr:" + JOBS))
    publish(cluster, "c", b"1")
    assert waiting(cluster) == 1
    assert worker.client.ping() == []
    assert api.ask("PUT", "/group/paused", {"paused": False}, group=JOBS).status == 204
    assert worker.wait_for(1) == [b"1"]
    assert api.get("/group", group=JOBS)["settings"]["window"] == 3


def test_a_group_that_is_removed_drops_what_waits(cluster: ClusterProcess) -> None:
    declare(cluster)
    publish(cluster, "b", b"1", b"2")
    api = HttpClient(cluster["c"])
    removed = api.ask("DELETE", "/group", group=JOBS)
    assert (removed.status, removed.json) == (200, {"dropped": 2})
    for name in "abc":
        assert HttpClient(cluster[name]).ask("GET", "/group", group=JOBS).status == 404
    assert cluster.redis.client().keys("mq:g[a-z]*:*") == []
    assert not cluster.redis.client().exists("mq:groups")
    assert api.ask("DELETE", "/group", group=JOBS).status == 404


def test_a_group_with_subscribers_is_an_ordinary_one_when_it_is_removed(cluster: ClusterProcess) -> None:
    declare(cluster)
    worker = Worker(cluster["a"].port)
    assert HttpClient(cluster["b"]).ask("DELETE", "/group", group=JOBS).json == {"dropped": 0}
    publish(cluster, "c", b"1")
    assert worker.wait_for(1) == [b"1"]
    assert HttpClient(cluster["b"]).get("/group", group=JOBS)["declared"] is False
    worker.client.close()
    until(lambda: HttpClient(cluster["b"]).ask("GET", "/group", group=JOBS).status == 404)


def test_groups_of_the_configuration_are_declared(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"shared.groups": f'[{{"name": "{JOBS}", "window": 3}}]', "http.listen": "127.0.0.1:0"})
    publish(cluster, "a", b"1")
    assert waiting(cluster) == 1
    assert HttpClient(cluster["b"]).get("/group", group=JOBS)["settings"]["window"] == 3
    assert int(cluster.redis.client().get("mq:change")) < 20  # the second and third node have changed nothing


REPLACES = "this node's configuration replaces other settings of a group"


def configured(**options: object) -> str:
    return json.dumps([{"name": JOBS, **options}])


def replaced(node: ClusterNode) -> list[dict[str, Any]]:
    return [line for line in node.log if line["event"].startswith(REPLACES)]


def test_a_configuration_that_replaces_another_is_a_warning(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0"}, nodes="", running=False)
    cluster.redis.start()
    first = cluster.add("a", **{"shared.groups": configured(window=3, expiry=60)}).start()
    assert HttpClient(first).get("/group", group=JOBS)["settings"]["window"] == 3
    second = cluster.add("b", **{"shared.groups": configured(window=20, last_value=True)}).start()
    (line,) = replaced(second)
    assert (line["level"], line["group"]) == ("warning", JOBS)
    assert line["changes"] == "window: 3 -> 20, expiry: 60.0 -> as in [shared], last_value: as in [shared] -> true"
    assert "shared.groups" in line["event"]
    for node in (first, second):  # the last declaration is valid everywhere
        until(lambda: HttpClient(node).get("/group", group=JOBS)["settings"]["window"] == 20)  # noqa: B023
    third = cluster.add("c", **{"shared.groups": configured(window=20, last_value=True)}).start()
    assert not replaced(third)
    second.restart()
    assert len(replaced(second)) == 1
    assert not replaced(first)


def test_a_configuration_that_ends_a_pause_is_a_warning(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"shared.groups": configured(window=3), "http.listen": "127.0.0.1:0"}, nodes="ab")
    assert HttpClient(cluster["a"]).ask("PUT", "/group/paused", {"paused": True}, group=JOBS).status == 204
    assert not replaced(cluster["a"])
    cluster["b"].restart()
    (line,) = replaced(cluster["b"])
    assert line["changes"] == "paused: true -> as in [shared]"


def test_a_group_that_is_taken_out_of_the_configuration_stays_declared(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0"}, nodes="", running=False)
    cluster.redis.start()
    node = cluster.add("a", **{"shared.groups": configured(window=3)}).start()
    publish(cluster, "a", b"1")
    node.kill()
    other = cluster.add("b").start()
    found = HttpClient(other).get("/group", group=JOBS)
    assert (found["declared"], found["waiting"], found["settings"]["window"]) == (True, 1, 3)
    assert HttpClient(other).ask("DELETE", "/group", group=JOBS).status == 200
