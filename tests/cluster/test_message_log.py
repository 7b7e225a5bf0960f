"""The log of messages: it has the messages that clients published, each once, whatever happens (G12)."""

import json
import signal
import time
from collections import Counter

import pytest

from flockmq._speedups.codec.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq._speedups.codec.properties import decode_block
from flockmq._speedups.codec.reason_codes import ReasonCode
from flockmq.broker.cli import main
from tests.conftest import StartCluster, StartLogging, StartRedis
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterNode, ClusterProcess
from tests.harness.logs import Logging, entries, logged_rows
from tests.harness.shared_subscriber import Worker
from tests.harness.shared_subscriber import publish as publish_work
from tests.harness.socket_client import SocketClient
from tests.model.log_block import HEADER, decode
from tests.web.http_client import HttpClient

EVERYTHING = {"analytics.topics": "#"}


def payloads(cluster: Logging) -> Counter[bytes]:
    return Counter(row.payload for row in logged_rows(cluster))


def node_id(cluster: ClusterProcess, name: str) -> str:
    logs = cluster.redis.client(decode_responses=False).hgetall("mq:analytics:logs")
    return next(node.decode() for node, said in logs.items() if json.loads(said)["name"] == name)


def publish_1(client: SocketClient, topic: str, payload: bytes, packet_id: int, **more: bool) -> None:
    client.send(Publish(topic, payload, qos=1, packet_id=packet_id, **more))
    assert client.receive() == Puback(packet_id=packet_id)


def test_each_message_is_logged_by_the_node_that_accepted_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster(EVERYTHING)
    began = time.time_ns() // 1000
    subscriber = SocketClient(cluster["b"].port, "subscriber")
    subscriber.subscribe(("#", 2))
    publisher = SocketClient(cluster["a"].port, "publisher")
    publisher.send(Publish("t/0", b"zero"))
    publish_1(publisher, "t/1", b"one", 1, retain=True)
    publish_1(publisher, "t/1", b"once more", 2, dup=True)
    publisher.send(Publish("t/2", b"", qos=2, packet_id=3))
    assert publisher.receive() == Pubrec(packet_id=3)
    publisher.send(Publish("t/2", b"", qos=2, packet_id=3, dup=True))
    assert publisher.receive() == Pubrec(packet_id=3)
    publisher.send(Pubrel(packet_id=3))
    assert publisher.receive() == Pubcomp(packet_id=3)
    publisher.send(Publish("t/0", b"\xff\0" * 3000, retain=True))
    SocketClient(cluster["c"].port, "other é").send(Publish("ü/" + "x" * 3000, b"5"))
    until(lambda: len(logged_rows(cluster)) == 6)
    logged = {(row.client_id, row.topic, row.qos, row.retain, row.dup, row.payload) for row in logged_rows(cluster)}
    assert logged == {
        ("publisher", "t/0", 0, False, False, b"zero"),
        ("publisher", "t/1", 1, True, False, b"one"),
        ("publisher", "t/1", 1, False, True, b"once more"),
        ("publisher", "t/2", 2, False, False, b""),
        ("publisher", "t/0", 0, True, False, b"\xff\0" * 3000),
        ("other é", "ü/" + "x" * 3000, 0, False, False, b"5"),
    }
    assert all(began <= row.accepted <= time.time_ns() // 1000 for row in logged_rows(cluster))
    nodes = {node for node, _, _ in entries(cluster)}
    assert nodes == {node_id(cluster, "a"), node_id(cluster, "c")}


def test_properties_are_logged_as_they_were_received(start_logging: StartLogging) -> None:
    cluster = start_logging(EVERYTHING, nodes="ab")
    properties = {"content_type": "x", "correlation_data": b"\xff", "user_property": [("a", "1"), ("a", "2")]}
    expiring = {"message_expiry_interval": 3600, **properties}
    client = SocketClient(
        cluster["a"].port, "c", level=5, will_topic="w", will_payload=b"will", will_properties=expiring
    )
    client.send(Publish("t", b"0", properties={"topic_alias": 1, **expiring}))
    client.send(Publish("", b"alias", properties={"topic_alias": 1}))
    client.send(Publish("t", b"1", qos=1, packet_id=1, properties=properties))
    client.send(Publish("t", b"2", qos=2, packet_id=2, properties=expiring))
    while not isinstance(client.receive(), Pubrec):
        pass
    client.send(Pubrel(packet_id=2))
    assert client.receive() == Pubcomp(packet_id=2)
    SocketClient(cluster["b"].port, "old").send(Publish("t", b"old"))
    client.close()
    until(lambda: len(logged_rows(cluster)) == 6)
    assert {row.payload: row.properties and decode_block(row.properties) for row in logged_rows(cluster)} == {
        b"0": expiring,
        b"alias": None,
        b"1": properties,
        b"2": expiring,
        b"will": expiring,
        b"old": None,
    }


def test_filters_choose_and_can_be_changed(start_logging: StartLogging) -> None:
    """Topics that begin with $ are logged if a filter names them; $SYS and the broker's own topics never."""
    cluster = start_logging({"analytics.topics": "site/+/temp,$own/#", "mqtt.sys_interval": 0.1}, nodes="a")
    client = SocketClient(cluster.port, "c")
    for topic in ("site/1/temp", "site/1/humidity", "site/temp", "$own/x", "$SYS/x"):
        publish_1(client, topic, topic.encode(), 1)
    assert payloads(cluster) == Counter([b"site/1/temp", b"$own/x"])


def test_nothing_is_logged_unless_asked_for(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="a")
    publish_1(SocketClient(cluster.port, "c"), "t", b"x", 1)
    assert not cluster.redis.client(decode_responses=False).keys("mq:analytics:*")


def test_wills_are_logged_for_their_clients(start_cluster: StartCluster) -> None:
    cluster = start_cluster({**EVERYTHING, "cluster.lease": 1.5, "cluster.timeout": 0.7}, nodes="ab")
    SocketClient(cluster["b"].port, "one", will_topic="w", will_payload=b"1", will_qos=1).close()
    until(lambda: payloads(cluster) == Counter([b"1"]))
    two = SocketClient(cluster["b"].port, "two", will_topic="w", will_payload=b"2")
    cluster["b"].kill()
    until(lambda: payloads(cluster) == Counter([b"1", b"2"]))
    two.close()
    assert {(row.client_id, row.topic) for row in logged_rows(cluster)} == {("one", "w"), ("two", "w")}


@pytest.mark.parametrize("qos", [0, 1])
def test_many(start_logging: StartLogging, qos: int) -> None:
    """Blocks that are full in a turn, and more topics and clients than a block names once."""
    cluster = start_logging(EVERYTHING, nodes="a")
    clients = [SocketClient(cluster.port, f"c{i}") for i in range(10)]
    count = 3000
    for start in range(0, count, 300):
        for number, client in enumerate(clients):
            client.send(
                *(
                    Publish(f"t/{i % 70}", b"%d %d " % (number, i) + bytes(200), qos=qos, packet_id=i + 1 if qos else 0)
                    for i in range(start, start + 300)
                )
            )
    until(lambda: sum(HEADER.unpack_from(block)[3] for _, _, block in entries(cluster)) == count * len(clients))
    by_client: dict[str, list[int]] = {}
    for row in logged_rows(cluster):
        number, i, _ = row.payload.split(b" ", 2)
        assert row.client_id == f"c{int(number)}" and row.topic == f"t/{int(i) % 70}" and row.qos == qos
        by_client.setdefault(row.client_id, []).append(int(i))
    assert all(numbers == list(range(count)) for numbers in by_client.values())


def test_a_quiet_node_gathers_messages_of_qos_0(start_logging: StartLogging) -> None:
    cluster = start_logging(EVERYTHING, nodes="a")
    client = SocketClient(cluster.port, "c")
    for i in range(100):
        client.send(Publish("t", b"%d" % i))
        client.ping()
    until(lambda: len(logged_rows(cluster)) == 100)
    assert len(list(entries(cluster))) < 60


def test_while_redis_is_away(start_cluster: StartCluster) -> None:
    """QoS 0 goes on between clients, isn't logged, and is counted; QoS 1 waits, and is logged once."""
    cluster = start_cluster(EVERYTHING, nodes="a", proxies=True)
    subscriber = SocketClient(cluster.port, "subscriber")
    subscriber.subscribe(("t", 0))
    client = SocketClient(cluster.port, "c")
    publish_1(client, "before", b"before", 1)
    cluster["a"].proxy.partition()
    cluster.wait_for_log("Redis is away")
    client.send(*(Publish("t", b"lost %d" % i) for i in range(10)))
    client.send(Publish("t", b"kept", qos=1, packet_id=2))
    for i in range(10):
        packet = subscriber.receive()
        assert isinstance(packet, Publish) and packet.payload == b"lost %d" % i
    cluster["a"].proxy.resume()
    assert client.receive() == Puback(packet_id=2)
    client.send(Publish("t", b"after"))
    until(lambda: payloads(cluster) == Counter([b"before", b"kept", b"after"]))
    *_, (_, _, block) = entries(cluster)
    assert HEADER.unpack_from(block)[6] == 10


def test_links_that_break_while_messages_come(start_cluster: StartCluster) -> None:
    """Acknowledged messages are logged once, though commits to Redis have to be sent again."""
    cluster = start_cluster(EVERYTHING, nodes="ab", proxies=True)
    client = SocketClient(cluster["a"].port, "c")
    for round_number in range(10):
        client.send(
            *(
                Publish("t", b"%d" % (round_number * 100 + i), qos=1, packet_id=round_number * 100 + i + 1)
                for i in range(100)
            )
        )
        cluster["a"].proxy.cut()
        assert [client.receive() for _ in range(100)] == [
            Puback(packet_id=round_number * 100 + i + 1) for i in range(100)
        ]
    assert payloads(cluster) == Counter(b"%d" % i for i in range(1000))


def test_a_node_is_killed_while_messages_come(start_cluster: StartCluster) -> None:
    """All acknowledged messages are logged; others are there at most as often as they were sent."""
    cluster = start_cluster({**EVERYTHING, "cluster.lease": 1.5, "cluster.timeout": 0.7}, nodes="ab")
    acknowledged: set[int] = set()
    sent: Counter[bytes] = Counter()
    number = 0
    for _ in range(4):
        client = SocketClient(cluster["a"].port, "c")
        for batch in range(20):
            window = range(number + 1, number + 101)
            client.send(*(Publish("t", b"%d" % i, qos=1, packet_id=i) for i in window))
            sent.update(b"%d" % i for i in window)
            number += 100
            if batch == 19:
                acknowledged.update(packet.packet_id for packet in [client.receive()] if isinstance(packet, Puback))
                cluster["a"].kill()
                break
            acknowledged.update(client.receive().packet_id for _ in window)  # type: ignore[union-attr]
        cluster["a"].start()
    logged = payloads(cluster)
    assert {b"%d" % i for i in acknowledged} <= logged.keys()
    assert not logged - sent


def test_a_log_has_bounds(start_cluster: StartCluster) -> None:
    cluster = start_cluster({**EVERYTHING, "analytics.log_bytes": "1 MiB"}, nodes="a")
    client = SocketClient(cluster.port, "c")
    for i in range(40):
        publish_1(client, "t", bytes(100_000), i + 1)
    kept = [len(block) for _, _, block in entries(cluster)]
    assert 800_000 < sum(kept) < 1_300_000


def test_logs_of_nodes_that_are_gone_are_forgotten_in_time(start_cluster: StartCluster) -> None:
    cluster = start_cluster({**EVERYTHING, "analytics.log_seconds": 3}, nodes="ab")
    publish_1(SocketClient(cluster["b"].port, "c"), "t", b"x", 1)
    node = node_id(cluster, "b")
    ((_, entry_id, _),) = entries(cluster)
    redis = cluster.redis.client(decode_responses=False)
    cluster["b"].stop()
    assert payloads(cluster) == Counter([b"x"])
    redis.hset("mq:analytics:logs", "foreign", "no JSON")  # must not keep the others from being tidied
    until(lambda: "last" in json.loads(redis.hget("mq:analytics:logs", node)))
    said = json.loads(redis.hget("mq:analytics:logs", node))
    assert said["last"] == entry_id and said["name"] == "b" and said["ended"] > said["began"]
    assert not redis.exists(f"mq:analytics:log:{node}")


def test_results_reach_the_clients_of_all_nodes(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="ab", proxies=True)
    redis = cluster.redis.client(decode_responses=False)

    def tell(topic: str, payload: bytes) -> None:
        redis.fcall("flockmq_result", 0, "mq:", topic, payload)

    clients = [SocketClient(node.port, f"c-{node.name}") for node in cluster.nodes]
    for client in clients:
        client.subscribe(("$SYS/analytics/#", 0))
    tell("silent/pump 7", b'{"since": 1}')
    for client in clients:
        assert client.receive() == Publish("$SYS/analytics/silent/pump 7", b'{"since": 1}')
    tell("a/#", b"not a topic name")
    tell("rates/x", b"1")
    for client in clients:
        assert client.receive() == Publish("$SYS/analytics/rates/x", b"1")
    late = cluster.add("late")
    cluster.start()
    assert retained(late) == {"silent/pump 7": b'{"since": 1}', "rates/x": b"1"}
    late.proxy.partition()  # it asks for changes that it has missed
    cluster.wait_for_log("Redis is away", node="late")
    tell("silent/pump 7", b"")
    tell("rates/x", b"2")
    late.proxy.resume()
    cluster.wait_for_log("Redis is back", node="late")
    assert retained(late) == retained(cluster["a"]) == {"rates/x": b"2"}


def retained(node: ClusterNode) -> dict[str, bytes]:
    client = SocketClient(node.port, "reader")
    client.subscribe(("$SYS/analytics/#", 0))
    found = {p.topic_name.removeprefix("$SYS/analytics/"): p.payload for p in client.ping() if isinstance(p, Publish)}
    client.send(Disconnect())
    return found


def test_clients_may_not_publish_results(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="a")
    publish_1(SocketClient(cluster.port, "c"), "$SYS/analytics/x", b"forged", 1, retain=True)
    assert retained(cluster["a"]) == {}


def test_the_filters_are_read_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="a", running=False)
    file = cluster.directory / "flockmq.toml"
    file.write_text('[analytics]\ntopics = ["one"]\n')
    node = cluster["a"]
    node.arguments += ["--config", str(file)]
    cluster.start()
    client = SocketClient(node.port, "c")
    for number, topics in enumerate(('["two"]', '["#"]', "[]"), 1):
        publish_1(client, "one", b"%d" % number, 1)
        publish_1(client, "two", b"%d" % number, 1)
        since = len(cluster.log)
        file.write_text(f"[analytics]\ntopics = {topics}\n")
        node.signal(signal.SIGHUP)
        cluster.wait_for_log("configuration read", since)
    publish_1(client, "one", b"4", 1)
    assert [(row.topic, row.payload) for row in logged_rows(cluster)] == [
        ("one", b"1"),
        ("two", b"2"),
        ("one", b"3"),
        ("two", b"3"),
    ]


def test_a_client_that_connects_nowhere_else(start_cluster: StartCluster) -> None:
    """A QoS 2 message whose publisher goes on at another node is logged once, where it was released."""
    cluster = start_cluster(EVERYTHING, nodes="ab")
    first = SocketClient(cluster["a"].port, "c", clean_start=False)
    first.send(Publish("t", b"x", qos=2, packet_id=9))
    assert first.receive() == Pubrec(packet_id=9)
    second = SocketClient(cluster["b"].port, "c", clean_start=False)
    for _ in range(2):
        second.send(Pubrel(packet_id=9))
        assert second.receive() == Pubcomp(packet_id=9)
    ((node, _, _),) = entries(cluster)
    assert node == node_id(cluster, "b")
    assert payloads(cluster) == Counter([b"x"])


def test_the_log_gives_way_when_redis_has_no_memory_left(start_cluster: StartCluster, start_redis: StartRedis) -> None:
    """A log that is allowed more than Redis has costs its own past, not the clients their service."""
    redis = start_redis(["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"])
    cluster = start_cluster(EVERYTHING, nodes="a", redis=redis)
    client = SocketClient(cluster.port, "c")
    for i in range(120):
        publish_1(client, "t", bytes(100_000), i + 1)
    cluster.wait_for_log("the older half of the log")
    assert sum(len(block) for _, _, block in entries(cluster)) < 8 << 20


def test_status_tells_of_logs_and_jobs(start_cluster: StartCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = start_cluster(EVERYTHING, nodes="ab")
    for number in range(3):
        publish_1(SocketClient(cluster["a"].port, "c"), "t", bytes(1000), number + 1)
    (node, first, block), *_, (_, last, _) = entries(cluster)
    redis = cluster.redis.client()
    job = {"positions": {node: first}, "at": int(time.time() * 1000), "lost": {node: 2048}}
    redis.hset("mq:analytics:jobs", "fleet", json.dumps(job))
    capsys.readouterr()
    assert main(["cluster", "status", "--redis", cluster.url(), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    (log,) = status["logs"]
    assert log["name"] == "a" and log["id"] == node and log["entries"] == 3
    assert log["bytes"] == log["written"] == int(last.split("-")[1])
    (told,) = status["jobs"]
    assert told["name"] == "fleet" and told["lost"] == 2048 and told["behind"] == log["bytes"] - len(block)
    assert main(["cluster", "status", "--redis", cluster.url()]) == 0
    text = capsys.readouterr().out
    assert "log of messages" in text and "fleet" in text and "2.0 KiB" in text


def test_the_api_lists_readers(start_cluster: StartCluster) -> None:
    cluster = start_cluster(EVERYTHING | {"http.listen": "127.0.0.1:0"}, nodes="ab")
    publish_1(SocketClient(cluster["a"].port, "c"), "t", bytes(1000), 1)
    publish_1(SocketClient(cluster["b"].port, "c"), "t", bytes(1000), 1)
    (node, last, block), (_, _, other) = entries(cluster)
    job = {"positions": {node: last}, "at": int(time.time() * 1000) - 5000, "lost": {node: 7}}
    redis = cluster.redis.client()
    redis.hset("mq:analytics:jobs", mapping={"connect:fleet": json.dumps(job), "unreadable": "?"})
    (fleet, unreadable) = HttpClient(cluster["b"]).get("/log/readers")["items"]
    assert fleet["name"] == "connect:fleet" and fleet["behind"] == len(other) and fleet["lost"] == 7
    assert 5 <= fleet["seconds"] < 60
    assert unreadable["name"] == "unreadable" and unreadable["behind"] == len(block) + len(other)


def test_redis_that_has_lost_the_end_of_a_log_costs_nobody_a_connection(start_cluster: StartCluster) -> None:
    """As when a replica takes over: readers see the lost entries as a gap; clients stay, and the log goes on."""
    cluster = start_cluster(EVERYTHING, nodes="a", proxies=True)
    client = SocketClient(cluster.port, "c")
    for number in range(3):
        client.send(Publish("t", b"%d" % number))
        until(lambda number=number: payloads(cluster).total() == number + 1)
    (node, _, _), (_, second, _), (_, third, _) = entries(cluster)
    cluster["a"].proxy.partition()
    cluster.wait_for_log("Redis is away")
    redis = cluster.redis.client()
    redis.xdel(f"mq:analytics:log:{node}", third)
    redis.hset(f"mq:node:{node}", "logged", second.split("-")[1])
    client.send(Publish("t", b"while it is away", qos=1, packet_id=1))
    cluster["a"].proxy.resume()
    assert client.receive() == Puback(packet_id=1)
    found = [row.payload for _, _, block in entries(cluster) for row in decode(block)]
    assert found == [b"0", b"1", b"while it is away"]
    assert client.ping() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_of_a_shared_subscription_is_logged_once(start_cluster: StartCluster, qos: int) -> None:
    """Any member may get it; it may come back and be given again, or become a dead letter."""
    more = {
        "shared.redispatch": 0.2,
        "shared.window": 4,
        "shared.max_deliveries": 2,
        "shared.dead_letter_topic": "dead",
    }
    cluster = start_cluster({**EVERYTHING, "cluster.lease": 1.5, "cluster.timeout": 0.7, **more})
    sent = [b"%d" % number for number in range(12)]
    workers = [Worker(cluster[name].port, name, qos) for name in "ab"]
    with SocketClient(cluster["c"].port, "publisher", level=5) as publisher:
        publish_work(publisher, *sent, qos=qos)
        if qos:  # neither has acknowledged anything; one of them ends, the node of the other one dies
            until(lambda: len(workers[0].look().seen) == len(workers[1].look().seen) == 4)
            workers[0].client.close()
            last = Worker(cluster["c"].port, "last", qos)  # before b is dead: a group without subscribers ends
            cluster["b"].kill()
            given = sent if qos == 1 else [body for body in sent if body not in workers[0].seen + workers[1].seen]
            assert sorted(set(last.wait_for(len(given))), key=int) == given
            publish_work(publisher, b"after", qos=qos)
            assert last.wait_for(len(given) + 1)[-1] == b"after"
            sent.append(b"after")
    until(lambda: len(logged_rows(cluster)) >= len(sent))
    cluster.settle(*(node.name for node in cluster.nodes if node.running))
    assert payloads(cluster) == Counter(sent)
    assert {(row.client_id, row.topic) for row in logged_rows(cluster)} == {("publisher", "jobs/x")}


def test_a_dead_letter_is_logged_as_the_message_that_it_was(start_cluster: StartCluster) -> None:
    """It counts once: the log has what clients publish, not what the broker does with it."""
    more = {"shared.redispatch": 0.1, "shared.max_deliveries": 2, "shared.dead_letter_topic": "dead"}
    cluster = start_cluster({**EVERYTHING, **more}, nodes="ab")
    with SocketClient(cluster["b"].port, "watcher") as watcher, SocketClient(cluster["a"].port, "p", level=5) as p:
        watcher.subscribe(("dead", 0))
        worker = Worker(cluster["b"].port)
        publish_work(p, b"refused")

        def refused() -> bool:
            for packet in worker.look().held:
                assert isinstance(packet, Publish)
                worker.client.send(Puback(packet.packet_id, ReasonCode.QUOTA_EXCEEDED))
            worker.held.clear()
            return len(worker.seen) == 2

        until(refused)
        letter = watcher.receive()
    assert isinstance(letter, Publish)
    assert (letter.topic_name, letter.payload) == ("dead", b"refused")
    cluster.settle()
    assert [(row.topic, row.payload) for row in logged_rows(cluster)] == [("jobs/x", b"refused")]
