"""Messages that a full queue in Redis drops: counted, and logged once per session and episode."""

import pytest

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.function_caller import Caller
from tests.harness.shared_subscriber import Worker
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import change_session, stored_queue, stored_session


@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
def test_the_node_that_accepted_them_names_the_session(start_cluster: StartCluster, policy: str) -> None:
    settings = {"limits.max_queued_messages": 3, "limits.queue_policy": policy}
    cluster: ClusterProcess = start_cluster(settings, nodes="ab")
    for name in ("full", "roomy"):
        with SocketClient(cluster["a"].port, name, clean_start=False) as client:
            client.subscribe(("t" if name == "full" else "u", 1))
    with SocketClient(cluster["b"].port, "publisher") as publisher:
        for number in range(1, 6):
            publisher.send(Publish(topic_name="t", payload=b"%d" % number, qos=1, packet_id=number))
        publisher.send(Publish(topic_name="u", payload=b"", qos=1, packet_id=6))
        assert [publisher.receive() for _ in range(6)] == [Puback(packet_id=number) for number in range(1, 7)]
        line = cluster.wait_for_log("queue is full", node="b")
        assert (line["client_id"], line["max_queued_messages"], line["policy"]) == ("full", 3, policy)
    cluster["b"].stop()
    line = cluster.wait_for_log("no longer dropping", node="b")
    assert (line["client_id"], line["dropped"]) == ("full", 2)
    assert len([line for line in cluster.log if "queue is full" in line["event"]]) == 1
    with SocketClient(cluster["a"].port, "full", clean_start=False) as client:
        kept = [client.receive() for _ in range(3)]
        assert [packet.payload for packet in kept] == (  # type: ignore[union-attr]
            [b"1", b"2", b"3"] if policy == "drop-new" else [b"3", b"4", b"5"]
        )


def test_an_absent_client_loses_nothing_that_was_sent(start_cluster: StartCluster) -> None:
    """drop-old dropped the oldest messages of its queue: those in flight, and QoS 2 that was half done."""
    limits = {"limits.max_queued_messages": 5, "limits.max_inflight": 2, "limits.queue_policy": "drop-old"}
    cluster = start_cluster({**limits, "log.level": "debug"}, nodes="ab")
    with SocketClient(cluster["b"].port, "publisher") as publisher:

        def publish(first: int, last: int, qos: int = 1) -> None:
            for number in range(first, last + 1):
                publisher.send(Publish(topic_name="t", payload=b"%d" % number, qos=qos, packet_id=number))
                answer = publisher.receive()
                if qos == 2:
                    assert answer == Pubrec(packet_id=number)
                    publisher.send(Pubrel(packet_id=number))
                    publisher.receive()

        with SocketClient(cluster["a"].port, "full", clean_start=False) as client:
            client.subscribe(("t", 2))
            publish(1, 2, qos=2)
            sent = [client.receive(), client.receive()]
            assert [packet.payload for packet in sent] == [b"1", b"2"]  # type: ignore[union-attr]
            client.send(Pubrec(packet_id=1))
            assert client.receive() == Pubrel(packet_id=1)
        cluster.wait_for_log("connection ended", node="a", client_id="full")
        cluster.settle()
        publish(3, 12)
    with SocketClient(cluster["a"].port, "full", clean_start=False) as client:
        assert client.receive() == Pubrel(packet_id=1)
        assert client.receive() == Publish("t", b"2", qos=2, packet_id=2, dup=True)
        client.send(Pubrec(packet_id=2))
        assert client.receive() == Pubrel(packet_id=2)
        client.send(Pubcomp(packet_id=1), Pubcomp(packet_id=2))
        for number, payload in enumerate((b"10", b"11", b"12"), 3):
            assert client.receive() == Publish("t", payload, qos=1, packet_id=number)
            client.send(Puback(packet_id=number))
        assert client.ping() == []


@pytest.mark.parametrize("end", ["released", "dead"])
def test_a_queue_that_an_earlier_connection_may_have_read(caller: Caller, end: str) -> None:
    """The client has left its second node, and the first has not released it: drop-old dropped what that had sent."""
    first = caller.claimed(b"n2", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)[0]
    caller.commit(pushes=caller.push(b"a", b"a"))
    second = caller.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)[0]
    caller.commit(releases=[[b"a", second]])
    pushes = [[b"a", caller.incarnation(b"a"), 1, 1, 1]]
    assert caller.commit(pushes=pushes, most=2, drop_oldest=True)[1] == 3
    assert stored_session(caller.redis, "a").head == 1
    if end == "released":
        assert caller.send(1, node=b"n2", releases=[[b"a", first, 2]])
    else:
        caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
        assert caller.commit(pushes=pushes, most=2, drop_oldest=True)[1] == 3
        caller.call("tidy", 100)
    session = stored_session(caller.redis, "a")
    assert (session.head, session.sent, session.waits) == (1, 2 if end == "released" else 3, b"")
    assert len(stored_queue(caller.redis, "a")) == 2


def test_the_node_of_a_slow_client_names_its_session(start_cluster: StartCluster) -> None:
    """With drop-old the node of a connected client drops the oldest messages that it has not sent."""
    limits = {"limits.max_queued_messages": 3, "limits.max_inflight": 1, "limits.queue_policy": "drop-old"}
    cluster = start_cluster(limits, nodes="ab")
    with (
        SocketClient(cluster["a"].port, "slow", clean_start=False) as client,
        SocketClient(cluster["b"].port, "publisher") as publisher,
    ):
        client.subscribe(("t", 1))

        def publish(first: int, last: int) -> None:
            for number in range(first, last + 1):
                publisher.send(Publish(topic_name="t", payload=b"%d" % number, qos=1, packet_id=number))
                assert publisher.receive() == Puback(packet_id=number)

        def taken(payload: bytes) -> int:
            packet = client.receive()
            assert isinstance(packet, Publish) and packet.payload == payload
            return packet.packet_id

        publish(1, 1)
        packet_id = taken(b"1")  # it is sent before others come
        publish(2, 5)
        line = cluster.wait_for_log("queue is full", node="a")
        assert (line["client_id"], line["policy"]) == ("slow", "drop-old")
        for payload in (b"4", b"5"):
            client.send(Puback(packet_id=packet_id))
            packet_id = taken(payload)
        client.send(Puback(packet_id=packet_id))
        assert client.ping() == []


def test_marks_go_with_the_messages_that_are_dropped(caller: Caller) -> None:
    """A message that went back to its group is marked, and stands behind one that was never sent."""
    caller.commit(pushes=[[b"a", caller.incarnation(b"a"), 1, 1, 1]])
    caller.redis.hset("mq:st:a", 2, "d")
    change_session(caller.redis, "a", marks=1, done=1)
    caller.commit(pushes=[[b"a", caller.incarnation(b"a"), 1]], most=2, drop_oldest=True)
    assert len(stored_queue(caller.redis, "a")) == 2
    session = stored_session(caller.redis, "a")
    assert (session.marks, session.done) == (0, 0)
    assert caller.redis.hlen("mq:st:a") == 0


@pytest.mark.parametrize("largest", [0, 100_000], ids=["by itself", "by leases"])
@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
def test_a_full_queue_of_a_member_drops_nothing_of_its_group(
    start_cluster: StartCluster, policy: str, largest: int
) -> None:
    """They were acknowledged, and no other member got them: the queue had more than its session's own limit."""
    cluster = start_cluster({"limits.max_queued_messages": 3, "limits.queue_policy": policy}, nodes="ab")
    worker = Worker(cluster["a"].port, persistent=True, maximum_packet_size=largest)
    cluster.settle()
    jobs = [b"%d" % number for number in range(1, 21)]
    with SocketClient(cluster["b"].port, "publisher") as publisher:
        publisher.send(*(Publish("jobs/x", job, 1, packet_id=int(job)) for job in jobs))
        assert [publisher.receive() for _ in jobs] == [Puback(int(job)) for job in jobs]
        until(lambda: len(worker.look().seen) >= len(jobs))
        worker.answer()
        publisher.send(*(Publish("jobs/x", job, 1, packet_id=int(job)) for job in jobs))
    worker.wait_for(2 * len(jobs))  # none of the first is counted any more
    assert worker.seen == 2 * jobs


@pytest.mark.parametrize(
    ("limits", "size"),
    [({"limits.max_queued_messages": 10}, 1), ({"limits.max_queued_bytes": "64 KiB"}, 4000)],
    ids=["messages", "bytes"],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_that_wait_at_the_node_of_a_client_do_not_count(
    start_cluster: StartCluster, limits: dict[str, object], size: int, qos: int
) -> None:
    """Few acknowledgements are sent with a later block: it is sent before the queue seems full to other nodes."""
    cluster = start_cluster(limits, nodes="ab")
    with (
        SocketClient(cluster["a"].port, "s", clean_start=False) as subscriber,
        SocketClient(cluster["b"].port, "p", level=5) as publisher,
    ):
        subscriber.subscribe(("t", qos))
        cluster.settle()
        for number in range(1, 60):
            payload = b"%06d" % number + bytes(size)
            publisher.send(Publish("t", payload, qos, packet_id=number))
            publisher.receive()
            if qos == 2:
                publisher.send(Pubrel(number))
                publisher.receive()
            message = subscriber.receive()
            assert isinstance(message, Publish) and message.payload == payload
            if qos == 1:
                subscriber.send(Puback(message.packet_id))
            else:
                subscriber.send(Pubrec(message.packet_id))
                assert isinstance(subscriber.receive(), Pubrel)
                subscriber.send(Pubcomp(message.packet_id))
