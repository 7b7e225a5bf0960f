"""Transactions: staged in parts, published all together or not at all, each once. For every store, and in a cluster."""

import pytest

from flockmq._speedups.codec.packets import Disconnect, Puback, Publish
from tests.conftest import StartBroker, StartCluster
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.harness.transaction_client import (
    COMMITTED,
    DENIED,
    DONE,
    FULL,
    MISSING,
    WRONG_CHUNK,
    WRONG_TOPIC,
    TransactionClient,
    row,
)

KEPT = {"session_expiry_interval": 3600}


def take(client: SocketClient, count: int) -> list[bytes]:
    """The payloads of the next messages, acknowledged."""
    found = []
    while len(found) < count:
        packet = client.receive()
        assert isinstance(packet, Publish)
        if packet.qos:
            client.send(Puback(packet.packet_id))
        found.append(packet.payload)
    return found


def test_nothing_is_published_before_the_commit_and_all_after_it(broker: Broker) -> None:
    with SocketClient(broker.port, "s", level=5) as subscriber, TransactionClient(broker.port) as client:
        subscriber.subscribe(("t/#", 1))
        assert client.stage("q/0/a/0", row("t/1", b"1"), row("t/2", b"2", 0)) == DONE
        assert client.stage("q/0/a/1", row("t/3", b"3", retain=True)) == DONE
        assert client.stage("q/0/b/0", row("t/4", b"4")) == DONE
        client.send(Publish("t/0", b"0", 0))
        assert take(subscriber, 1) == [b"0"]
        assert client.commit("q/0", a=2, b=1) == DONE
        assert sorted(take(subscriber, 4)) == [b"1", b"2", b"3", b"4"]
        assert client.commit("q/0", a=2, b=1) == COMMITTED
        client.send(Publish("t/0", b"end", 0))
        assert take(subscriber, 1) == [b"end"]
        with SocketClient(broker.port, "late", level=5) as late:
            late.subscribe(("t/#", 1))
            assert take(late, 1) == [b"3"]


def test_a_part_keeps_its_order(broker: Broker) -> None:
    with SocketClient(broker.port, "s", level=5) as subscriber, TransactionClient(broker.port) as client:
        subscriber.subscribe(("t", 1))
        for chunk in range(20):
            rows = [row("t", b"%d" % (50 * chunk + place)) for place in range(50)]
            assert client.stage(f"q/7/part/{chunk}", *rows) == DONE
        assert client.commit("q/7", part=20) == DONE
        assert take(subscriber, 1000) == [b"%d" % number for number in range(1000)]


def test_a_chunk_that_comes_again_counts_once(broker: Broker) -> None:
    """After a lost connection a client does not know which chunks have arrived: it repeats them."""
    with SocketClient(broker.port, "s", level=5) as subscriber:
        subscriber.subscribe(("t", 1))
        with TransactionClient(broker.port) as client:
            assert client.stage("q/0/a/0", row("t", b"0")) == DONE
            assert client.stage("q/0/a/1", row("t", b"1")) == DONE
        with TransactionClient(broker.port, "spark-2") as client:
            assert client.stage("q/0/a/0", row("t", b"0")) == DONE
            assert client.stage("q/0/a/1", row("t", b"1")) == DONE
            assert client.stage("q/0/a/3", row("t", b"3")) == MISSING
            assert client.stage("q/0/a/2", row("t", b"2")) == DONE
            assert client.commit("q/0", a=2) == MISSING  # it has three
            assert client.commit("q/0", a=3, b=1) == MISSING
            assert client.commit("q/0", a=3) == DONE
        assert take(subscriber, 3) == [b"0", b"1", b"2"]


def test_a_committed_number_is_never_published_again(broker: Broker) -> None:
    """A query that starts again from its checkpoint computes its last batch again, in other parts."""
    with SocketClient(broker.port, "s", level=5) as subscriber, TransactionClient(broker.port) as client:
        subscriber.subscribe(("t", 1))
        assert client.stage("q/5/failed/0", row("t", b"failed")) == DONE
        assert client.stage("q/4/failed/0", row("t", b"failed")) == DONE
        assert client.stage("q/5/a/0", row("t", b"5")) == DONE
        assert client.commit("q/5", a=1) == DONE
        assert client.stage("q/5/again/0", row("t", b"again")) == COMMITTED
        assert client.commit("q/5", again=1) == COMMITTED
        assert client.commit("q/4", failed=1) == COMMITTED
        assert client.commit("q/6") == DONE  # an empty batch
        assert client.stage("q/6/a/0", row("t", b"late")) == COMMITTED
        assert client.stage("other/5/a/0", row("t", b"other")) == DONE
        assert client.commit("other/5", a=1) == DONE
        assert take(subscriber, 2) == [b"5", b"other"]


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_parts_and_numbers_outlive_a_restart(start_broker: StartBroker, store: str, ending: str) -> None:
    if store == "memory":
        pytest.skip("keeps nothing")
    node = start_broker()
    with SocketClient(node.port, "s", clean_start=False, level=5, properties=KEPT) as subscriber:
        subscriber.subscribe(("t", 1))
    with TransactionClient(node.port) as client:
        assert client.stage("q/1/a/0", row("t", b"1")) == DONE
        assert client.commit("q/1", a=1) == DONE
        assert client.stage("q/2/a/0", row("t", b"2")) == DONE
        assert client.stage("q/2/a/1", row("t", b"3")) == DONE
    getattr(node, ending)()
    node.start()
    with TransactionClient(node.port) as client:
        assert client.commit("q/1", a=1) == COMMITTED
        assert client.stage("q/2/a/1", row("t", b"3")) == DONE
        assert client.commit("q/2", a=2) == DONE
    getattr(node, ending)()
    node.start()
    with TransactionClient(node.port) as client:
        assert client.commit("q/2", a=2) == COMMITTED
    with SocketClient(node.port, "s", clean_start=False, level=5, properties=KEPT) as subscriber:
        assert sorted(take(subscriber, 3)) == [b"1", b"2", b"3"]
        with TransactionClient(node.port) as client:
            client.send(Publish("t", b"end", 0))
        assert take(subscriber, 1) == [b"end"]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (b"", WRONG_CHUNK),
        (b"\x30", WRONG_CHUNK),
        (row("t", b"x")[:-1], WRONG_CHUNK),
        (row("t", b"x") + b"\xc0\x00", WRONG_CHUNK),
        (row("t", b"x", topic_alias=1), WRONG_CHUNK),
        (row("?", b"x").replace(b"?", b"+"), WRONG_CHUNK),
        (row("$SYS/x", b"x"), DENIED),
        (row("$transaction/q/0/a/0", b"x"), DENIED),
        (row("$tenant/a/t", b"x"), DENIED),
        (row("t", b"\xff", payload_format_indicator=1), WRONG_CHUNK),
    ],
    ids=range(10),
)
def test_chunks_that_are_refused(start_broker: StartBroker, rows: bytes, code: int) -> None:
    node = start_broker({"mqtt.validate_payload": True})
    with TransactionClient(node.port) as client:
        assert client.stage("q/0/a/0", row("t", b"fine"), rows) == (DONE if not rows else code)
        assert client.stage("q/0/b/0", rows) == code
        assert client.commit("q/0", b=1) == MISSING


@pytest.mark.parametrize("topic", ["q", "q/x", "q/1/a", "q/1/a/b", "q/1/a/0/b", "q q/1", "q/-1", "q/1/a/"])
def test_topics_that_are_no_transaction(broker: Broker, topic: str) -> None:
    with TransactionClient(broker.port) as client:
        assert client.ask(topic, b"{}") == WRONG_TOPIC


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b'{"a": 0}', b'{"a": true}', b'{"a/b": 1}', b"\xff"])
def test_commits_that_are_wrong(broker: Broker, payload: bytes) -> None:
    with TransactionClient(broker.port) as client:
        assert client.ask("q/1", payload) == WRONG_TOPIC


def test_levels_below_5_can_not_learn_of_a_refusal(broker: Broker) -> None:
    """So nothing of them is staged: the message is dropped, as any to a topic of the broker's own."""
    with SocketClient(broker.port, "old", level=4) as client:
        client.send(Publish("$transaction/q/0/a/0", row("t", b"x"), 1, packet_id=1))
        assert client.receive() == Puback(1)
    with TransactionClient(broker.port) as client:
        assert client.commit("q/0", a=1) == MISSING


def test_limits(start_broker: StartBroker) -> None:
    node = start_broker({"limits.max_delayed_messages": 3, "limits.max_delayed_bytes": 1000})
    with TransactionClient(node.port) as client:
        assert client.stage("q/0/a/0", row("t", bytes(2000))) == FULL
        for chunk in range(3):
            assert client.stage(f"q/0/a/{chunk}", row("t", b"x")) == DONE
        assert client.stage("q/0/a/3", row("t", b"x")) == FULL
        assert client.commit("q/0", a=3) == DONE
        assert client.stage("q/1/a/0", row("t", b"x")) == DONE


def test_a_message_expires_from_its_publication_on(broker: Broker) -> None:
    with SocketClient(broker.port, "s", level=5) as subscriber, TransactionClient(broker.port) as client:
        subscriber.subscribe(("t", 1))
        rows = row("t", b"x", message_expiry_interval=100, user_property=[("a", "b")], content_type="text")
        assert client.stage("q/0/a/0", rows) == DONE
        assert client.commit("q/0", a=1) == DONE
        packet = subscriber.receive()
        assert isinstance(packet, Publish)
        assert packet.properties == {
            "message_expiry_interval": 100,
            "user_property": [("a", "b")],
            "content_type": "text",
        }


def test_connections_that_end_before_the_reply(broker: Broker) -> None:
    """The node stages what it has read, or not; it lives in any case."""
    for number in range(50):
        client = TransactionClient(broker.port, f"c{number % 3}")
        packet = Publish(f"$transaction/q/{number}/a/0", row("t", b"x") * 100, 1, packet_id=1)
        client.send(*[packet] * (1 + number % 3))
        if number % 2:
            client.send(Disconnect())
        client.close()
    with TransactionClient(broker.port) as client:
        assert client.commit("q/1000") == DONE


def test_rows_may_be_delayed(broker: Broker) -> None:
    with SocketClient(broker.port, "s", level=5) as subscriber, TransactionClient(broker.port) as client:
        subscriber.subscribe(("t", 1))
        assert client.stage("q/0/a/0", row("$delayed/1/t", b"later"), row("t", b"now")) == DONE
        assert client.commit("q/0", a=1) == DONE
        assert take(subscriber, 2) == [b"now", b"later"]


def test_parts_of_all_nodes_make_one_transaction(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes="abc")
    with SocketClient(cluster["c"].port, "s", level=5) as subscriber:
        subscriber.subscribe(("t", 1))
        for node in "abc":
            with TransactionClient(cluster[node].port, f"task-{node}") as client:
                assert client.stage(f"q/0/{node}/0", *(row("t", node.encode() + b"%d" % n) for n in range(100))) == DONE
        with TransactionClient(cluster["b"].port, "again") as client:
            assert client.stage("q/0/a/0", row("t", b"doubled")) == DONE
            assert client.commit("q/0", a=1, b=1, c=1) == DONE
        expected = [node + b"%d" % n for node in (b"a", b"b", b"c") for n in range(100)]
        assert sorted(take(subscriber, 300)) == sorted(expected)
        with TransactionClient(cluster["a"].port, "again") as client:
            assert client.commit("q/0", a=1, b=1, c=1) == COMMITTED
