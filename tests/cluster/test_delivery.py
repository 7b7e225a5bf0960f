"""Messages published at one node reach clients of another: every QoS, in order, whatever the names: G1, G2, G4."""

import itertools

import pytest
import redis

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue
from tests.protocol.wire import Wire

PAIRS = list(itertools.permutations("abc", 2))


def publish(
    client: Wire, topic: str, payload: bytes, qos: int = 0, packet_id: int = 1, *, retain: bool = False
) -> None:
    """Publish, and go through with the handshake."""
    client.send(encode(Publish(topic, payload, qos, retain, packet_id=packet_id if qos else 0), 4))
    if qos == 1:
        client.expect(f"puback {packet_id}")
    elif qos == 2:
        client.expect(f"pubrec {packet_id}")
        client.send(f"pubrel {packet_id}")
        client.expect(f"pubcomp {packet_id}")


def take(client: Wire) -> Publish:
    """The next message, acknowledged."""
    packet = client.packet()
    assert isinstance(packet, Publish), packet
    if packet.qos == 1:
        client.send(f"puback {packet.packet_id}")
    elif packet.qos == 2:
        client.send(f"pubrec {packet.packet_id}")
        client.expect(f"pubrel {packet.packet_id}")
        client.send(f"pubcomp {packet.packet_id}")
    return packet


@pytest.mark.parametrize("clean", [1, 0], ids=["clean", "persistent"])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_every_qos_between_every_pair_of_nodes(
    cluster: ClusterProcess, published: int, granted: int, clean: int
) -> None:
    for number, (here, there) in enumerate(PAIRS):
        with (
            Wire(cluster[here].port, name=f"s{number}") as subscriber,
            Wire(cluster[there].port, name="p") as publisher,
        ):
            subscriber.connect(f"clean={clean}").subscribe(f"t/{number}/+:{granted}")
            publisher.connect()
            for packet_id, payload in enumerate((b"one", b"", bytes(70_000)), 1):
                publish(publisher, f"t/{number}/x", payload, published, packet_id)
                packet = take(subscriber)
                assert (packet.topic_name, packet.payload) == (f"t/{number}/x", payload)
                assert (packet.qos, packet.dup, packet.retain) == (min(published, granted), False, False)
            subscriber.close()


def test_each_subscriber_gets_it_once_whatever_it_is_subscribed_with(cluster: ClusterProcess) -> None:
    """Routes of several filters and queues of several sessions at one node, one message [MQTT-3.3.5-1]."""
    with (
        Wire(cluster["a"].port, name="clean") as clean,
        Wire(cluster["a"].port, name="persistent") as persistent,
        Wire(cluster["b"].port, name="other") as other,
        Wire(cluster["c"].port, name="p") as publisher,
    ):
        clean.connect().subscribe("t/#:0", "t/x:1", "+/x:2")
        persistent.connect("clean=0").subscribe("t/#:2", "t/x:0")
        other.connect().subscribe("#:1")
        publisher.connect()
        for number in range(1, 60):
            qos = number % 3
            publish(publisher, "t/x", b"%d" % number, qos, number)
            for client, most in ((clean, 2), (persistent, 2), (other, 1)):
                packet = take(client)
                assert (packet.payload, packet.qos) == (b"%d" % number, min(qos, most))
        cluster.settle()
        for client in (clean, persistent, other):
            client.expect_nothing()


def test_messages_for_queues_go_to_another_node_once(cluster: ClusterProcess) -> None:
    """They go there as messages of QoS 0, too, only while a persistent session has subscribed with QoS 0."""
    with (
        Wire(cluster["a"].port, name="queued") as queued,
        Wire(cluster["a"].port, name="other") as other,
        Wire(cluster["b"].port, name="p") as publisher,
        redis.Redis(port=cluster.redis.port) as client,
        client.pubsub(ignore_subscribe_messages=True) as sent,
    ):
        sent.psubscribe("mq:to:*")
        packet_ids = itertools.count(1)

        def twice(*receivers: Wire) -> bool:
            """Publish a message; whether it was sent as one of QoS 0, too."""
            publish(publisher, "q/x", b"first", 1, next(packet_ids))
            publish(publisher, "q/x", b"last")
            for receiver in receivers:
                assert {take(receiver).payload for _ in range(2)} == {b"first", b"last"}  # the levels have no order
            batches = b""
            while b"last" not in batches:
                found = sent.get_message(timeout=DEADLINE)  # None: the channel is subscribed to
                batches += found["data"] if found and found["data"].startswith(b"Q") else b""
            return b"first" in batches

        queued.connect("clean=0").subscribe("q/x:1", "q/+:2")
        publisher.connect()
        assert not twice(queued)
        other.connect("clean=0").subscribe("q/#:0")
        assert twice(queued, other)
        other.subscribe("q/#:1")
        assert not twice(queued, other)
        other.subscribe("q/#:0")
        assert twice(queued, other)
        other.close()
        until(lambda: not twice(queued))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_of_one_publisher_under_load(cluster: ClusterProcess, qos: int) -> None:
    """As fast as they can be sent, to subscribers at all nodes, clean and persistent (G2)."""
    count = 3000
    with Wire(cluster["b"].port, name="p") as publisher:
        publisher.connect()
        subscribers = []
        for name in "abc":
            for clean in (0, 1):
                client = SocketClient(cluster[name].port, f"{name}{clean}", clean_start=bool(clean))
                assert client.subscribe(("t", qos)) == [qos]
                subscribers.append(client)
        for start in range(0, count, 100):
            publisher.send(
                b"".join(
                    encode(Publish("t", b"%d" % n, qos, packet_id=n % 60000 + 1 if qos else 0), 4)
                    for n in range(start, start + 100)
                )
            )
            for _ in range(100 if qos else 0):
                packet = publisher.packet()
                if qos == 2:
                    publisher.send(encode(Pubrel(packet_id=packet.packet_id), 4))
            for _ in range(100 if qos == 2 else 0):
                assert isinstance(publisher.packet(), Pubcomp)
            if not qos:
                publisher.settle()
        for client in subscribers:
            found: list[int] = []
            while len(found) < count:
                packet = client.receive()
                if isinstance(packet, Publish):
                    found.append(int(packet.payload))
                    if packet.qos:
                        client.send((Puback if qos == 1 else Pubrec)(packet_id=packet.packet_id))
                elif isinstance(packet, Pubrel):
                    client.send(Pubcomp(packet_id=packet.packet_id))
                else:
                    raise AssertionError(packet)
            assert found == list(range(count))
            client.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_after_suback_nothing_is_missed(cluster: ClusterProcess, clean: bool, qos: int) -> None:
    """G4, F24: SUBSCRIBE at one node, and right after its SUBACK a publication at another, again and again."""
    with (
        SocketClient(cluster["a"].port, "subscriber", clean_start=clean) as subscriber,
        SocketClient(cluster["b"].port, "near") as near,
        SocketClient(cluster["c"].port, "far") as far,
    ):
        for number in range(150):
            publisher = (near, far)[number % 2]
            name = f"t/{number}/+" if number % 3 else "same"  # as wildcards, and as what was there before
            topic = f"t/{number}/x" if number % 3 else "same"
            subscriber.send(Subscribe(packet_id=1, topic_filters=[(name, qos)]))
            assert isinstance(subscriber.receive(), Suback)
            publisher.send(Publish(topic, b"%d" % number, qos=qos, packet_id=qos))
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"%d" % number
            if qos:
                assert isinstance(publisher.receive(), Puback)
                subscriber.send(Puback(packet_id=packet.packet_id))
            subscriber.send(Unsubscribe(packet_id=2, topic_filters=[name]))
            assert isinstance(subscriber.receive(), Unsuback)
            publisher.send(Publish(topic, b"late", qos=qos, packet_id=qos))
            if qos:
                assert isinstance(publisher.receive(), Puback)


def test_a_subscription_is_known_to_a_node_that_starts_later(cluster: ClusterProcess) -> None:
    with SocketClient(cluster["a"].port, "clean") as clean:
        clean.subscribe(("t", 1))
        with SocketClient(cluster["b"].port, "away", clean_start=False) as away:
            away.subscribe(("t", 1))
        late = cluster.add("d").start()
        with SocketClient(late.port, "p") as publisher:
            publisher.send(Publish("t", b"x", qos=1, packet_id=1))
            assert isinstance(publisher.receive(), Puback)
        packet = clean.receive()
        assert isinstance(packet, Publish)
        assert packet.payload == b"x"
        with SocketClient(late.port, "away", clean_start=False) as away:
            assert away.connack is not None
            assert away.connack.session_present
            packet = away.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"x"


ODD = [
    "a:b",
    "{a}",
    "}{",
    "a b",
    "*",
    "a*",
    "[a-z]",
    "?",
    "\\",
    "mq:nodes",
    "ümläut/€",
    "\u200b",
    "\U0001f40c",
    "%s",
    "'\"",
    "a\tb",
    "0",
    "-1",
    "a,b=c",
    "=",
    "x" * 400,
]


@pytest.mark.parametrize("client_id", ODD, ids=range(len(ODD)))
def test_odd_client_ids(start_cluster: StartCluster, client_id: str) -> None:
    """They are part of keys: a session keeps its own, and another with a similar name has none of it."""
    cluster = start_cluster({"mqtt.control_characters": True})
    with SocketClient(cluster["a"].port, client_id, clean_start=False) as client:
        assert client.subscribe(("t", 1)) == [1]
    others = [client_id + "y", "y" + client_id, client_id[:-1] or "y"]
    for other in others:
        with SocketClient(cluster["b"].port, other, clean_start=False) as client:
            assert client.connack is not None
            assert not client.connack.session_present
    with SocketClient(cluster["c"].port, "publisher") as publisher:
        publisher.send(Publish("t", b"x", qos=1, packet_id=1))
        assert isinstance(publisher.receive(), Puback)
    with SocketClient(cluster["b"].port, client_id, clean_start=False) as client:
        assert client.connack is not None
        assert client.connack.session_present
        packet = client.receive()
        assert isinstance(packet, Publish)
        assert packet.payload == b"x"
    for name in (client_id, *others):
        with SocketClient(cluster["a"].port, name) as client:
            assert client.connack is not None
            assert not client.connack.session_present


GLOBS = ["t[ab]", "t?", "t*", "t\\", "t\\*", "t[^a]", "a b", "t{x}", "*", "?", "[", "]", "$1", "%d", "t\u00e4", "a\tb"]


@pytest.mark.parametrize("qos", [0, 1])
def test_topics_that_look_like_patterns(start_cluster: StartCluster, qos: int) -> None:
    """A8: to Redis they are bytes. Each is delivered to its own subscription and no other's."""
    cluster = start_cluster({"mqtt.control_characters": True})
    with (
        Wire(cluster["a"].port, name="s") as subscriber,
        Wire(cluster["b"].port, name="p") as publisher,
        Wire(cluster["c"].port, name="w") as watcher,
    ):
        subscriber.connect()
        for number, topic in enumerate(GLOBS):
            subscriber.send(subscription(topic, qos, number + 1))
            assert isinstance(subscriber.packet(), Suback)
        watcher.connect().subscribe(*(f"{topic}/+:{qos}" for topic in GLOBS[:4]))
        publisher.connect()
        for topic in [*GLOBS, "ta", "tx", "t", "tab", "t1"]:
            publisher.send(encode(Publish(topic, topic.encode(), qos, packet_id=qos), 4))
            if qos:
                publisher.expect("puback 1")
            if topic in GLOBS:
                packet = take(subscriber)
                assert packet.topic_name == topic
        for topic in GLOBS[:4]:
            publisher.send(encode(Publish(f"{topic}/x", b"deep", qos, packet_id=qos), 4))
            if qos:
                publisher.expect("puback 1")
            assert take(watcher).topic_name == f"{topic}/x"
        publisher.send(encode(Publish("ta/x", b"no", qos, packet_id=qos), 4))
        cluster.settle()
        subscriber.expect_nothing()
        watcher.expect_nothing()


def subscription(topic: str, qos: int, packet_id: int) -> bytes:
    return encode(Subscribe(packet_id=packet_id, topic_filters=[(topic, qos)]), 4)


@pytest.mark.one_shard
def test_a_fan_out_to_many_sessions_is_several_blocks(start_cluster: StartCluster) -> None:
    """Redis replies to others in between, and the client gets its acknowledgement after all of them."""
    cluster = start_cluster(nodes="a")
    port = cluster["a"].port
    names = [f"away {number}" for number in range(2000)]  # all blocks are full: the last one, too
    for name in names:
        with SocketClient(port, name, clean_start=False) as client:
            assert client.subscribe(("t", 2)) == [2]
    with cluster.redis.client() as redis, SocketClient(port, "p", clean_start=False) as publisher:
        (node,) = redis.hkeys("mq:nodes")

        def blocks() -> int:
            return int(redis.hget(f"mq:node:{node}", "seq") or 0)

        until(lambda: redis.scard(f"mq:owned:{node}") == 1, "all others are away")
        cluster.settle()
        before = blocks()
        publisher.send(Publish("t", b"one", qos=1, packet_id=1))
        assert publisher.receive() == Puback(packet_id=1)
        assert blocks() == before + 2
        assert {len(stored_queue(redis, name)) for name in names} == {1}
        publisher.send(Publish("t", b"two", qos=2, packet_id=2))
        assert publisher.receive() == Pubrec(packet_id=2)
        assert blocks() == before + 3
        publisher.send(Pubrel(packet_id=2))
        assert publisher.receive() == Pubcomp(packet_id=2)
        assert blocks() == before + 5
        assert redis.hgetall("mq:in:p") == {}
        assert {len(stored_queue(redis, name)) for name in names} == {2}
