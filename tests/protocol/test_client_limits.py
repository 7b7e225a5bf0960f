"""The limits: the cost that one client may cause, and that a client at a limit harms nobody else."""

import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Publish, Unsuback, Unsubscribe
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker, ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.protocol.wire import Wire

StartBroker = Callable[..., Broker]
MIB = 1 << 20
SLOW = 4096  # receive buffer of a slow reader


@contextmanager
def figure(broker: Broker, topic: str) -> Iterator[Callable[[], int]]:
    """A figure of the node's $SYS tree, read again at each call; needs a small mqtt.sys_interval."""
    with Wire(broker.port, name="figure") as client:
        client.connect()

        def read() -> int:
            client.send(f"unsubscribe 2 '$SYS/broker/{topic}'")
            while type(client.packet()).__name__ != "Unsuback":
                pass
            client.send(f"subscribe 1 '$SYS/broker/{topic}':0")
            while True:  # an update may come before SUBACK; the retained message comes after it
                packet = client.packet()
                if type(packet).__name__ == "Publish" and packet.retain:
                    return int(packet.payload)

        yield read


def message(topic: str, payload: str, qos: int = 0, packet_id: int = 0) -> bytes:
    """A PUBLISH, made faster than from a line."""
    return encode(Publish(topic, payload.encode(), qos, packet_id=packet_id), 4)


def pings(client: Wire) -> None:
    client.send("pingreq")
    client.expect("pingresp")


def publish_of(size: int, topic: str = "t") -> bytes:
    """A QoS 0 PUBLISH of so many bytes in all."""
    for header in (5, 4, 3, 2):
        payload = size - header - 2 - len(topic)
        data = encode(Publish(topic, bytes(max(payload, 0))), 4)
        if len(data) == size:
            return data
    raise AssertionError(size)


# ---- packets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [128, 20_000, 2 * MIB, 8 * MIB])
def test_the_largest_packet_and_one_byte_more(start_broker: StartBroker, most: int) -> None:
    broker = start_broker({"limits.max_packet_size": most})
    with Wire(broker.port, name="s") as reader, Wire(broker.port, name="p") as writer:
        reader.connect().subscribe("t:0")
        writer.connect()
        data = publish_of(most)
        writer.send(data)
        reader.expect(data)
        writer.send(publish_of(most + 1))
        writer.expect(None)
        reader.expect_nothing()
        line = broker.wait_for_log("connection ended", client_id="p")
        assert str(most) in line["reason"]


@pytest.mark.one_node
def test_a_large_packet_is_refused_before_it_is_read(start_broker: StartBroker) -> None:
    """Its header is enough; nothing is allocated for bytes that were only announced."""
    broker = start_broker()
    with Wire(broker.port, name="p") as writer:
        writer.connect()
        before = broker.rss()
        writer.send(b"\x30\xff\xff\xff\x7f\x00\x01t")
        writer.expect(None)
        assert broker.rss() - before < MIB


@pytest.mark.one_node
def test_announced_packets_cost_what_has_come(start_broker: StartBroker) -> None:
    """A hundred packets of 250 MB are announced, allowed, and never sent."""
    broker = start_broker({"limits.max_packet_size": 268_435_460})
    with ExitStack() as stack:
        witness = stack.enter_context(Wire(broker.port, name="witness")).connect()
        before = broker.rss()
        for i in range(100):
            writer = stack.enter_context(Wire(broker.port, name=f"p{i}")).connect()
            writer.send(b"\x30\xff\xff\xff\x7f\x00\x01t" + bytes(10_000))
        pings(witness)
        assert broker.rss() - before < 100 * 150_000


def test_announced_connects_are_refused(start_broker: StartBroker) -> None:
    """Before CONNECT no more is allowed than CONNECT can need [CVE-2017-7651]."""
    broker = start_broker({"limits.max_packet_size": 268_435_460})
    with Wire(broker.port) as client:
        client.send(b"\x10\xff\xff\xff\x7f")
        client.expect(None)


@pytest.mark.soak
def test_the_largest_packet_of_the_standard(start_broker: StartBroker) -> None:
    patience = {"cluster.timeout": 20, "cluster.lease": 40}  # Redis and nodes send nothing while they copy
    broker = start_broker({"limits.max_packet_size": 268_435_460, "limits.max_outgoing_bytes": 300 * MIB, **patience})
    if isinstance(broker, ClusterProcess):
        broker.wait_for_log("set client-output-buffer-limit pubsub 1073741840 1073741840 60")
        broker.redis.set(client_output_buffer_limit="pubsub 1073741840 1073741840 60")
    with Wire(broker.port, name="s") as reader, Wire(broker.port, name="p") as writer:
        reader.connect().subscribe("t:0")
        writer.connect()
        data = publish_of(268_435_460)
        sender = threading.Thread(target=writer.send, args=(data,))
        sender.start()
        found = reader.receive(120)
        sender.join()
        assert found == data


@pytest.mark.parametrize("level", [3, 4])
def test_the_longest_topic_name(start_broker: StartBroker, level: int) -> None:
    """65 535 bytes at level 4; 32 767 characters at level 3."""
    broker = start_broker()
    topic = "a" * (65_535 if level == 4 else 32_767)
    with Wire(broker.port, level) as client:
        client.connect().subscribe("#:1")
        client.send(f"publish {topic} x q1 id=1")
        found = [client.packet(), client.packet()]
        (delivered,) = [packet for packet in found if isinstance(packet, Publish)]
        assert delivered.topic_name == topic
        client.send("puback 1", f"publish {topic} x retain")
        assert client.packet().topic_name == topic
        client.subscribe(f"{topic}:0", packet_id=2)
        assert client.packet().retain
        client.send(f"publish {topic} retain")
        client.packet()
        if level == 3:
            long = struct.pack("!H", 32_768) + b"a" * 32_768
            client.send(b"\x30" + bytes([0x82, 0x80, 0x02]) + long)
            client.expect(None)


def test_topic_levels(start_broker: StartBroker) -> None:
    broker = start_broker({"limits.max_topic_levels": 3})
    with Wire(broker.port) as client:
        client.connect()
        client.send("subscribe 1 a/b/c:0 a/b/c/d:0 a/b/c/#:0 a/+/#:0")
        client.expect("suback 1 0 128 128 0")
        client.send("publish a/b/c x")
        client.expect("publish a/b/c x")
        client.send("publish a/b/c/d x")
        client.expect(None)


def test_as_many_levels_as_a_topic_can_have(start_broker: StartBroker) -> None:
    """No recursion [CVE-2019-11779]."""
    broker = start_broker({"limits.max_topic_levels": 65_536})
    topic = b"/" * 65_535
    deep = struct.pack("!H", len(topic)) + topic
    publish = b"\x31" + b"\x82\x80\x04" + deep + b"x"
    clear = b"\x31" + b"\x81\x80\x04" + deep
    with Wire(broker.port) as client:
        client.connect().subscribe("/" * 65_534 + "+:0", "+/" * 32_767 + "#:0")
        client.send(publish)
        client.expect(b"\x30" + publish[1:])
        client.subscribe("#:0", packet_id=2)
        client.expect(publish)
        client.send(clear)
        client.expect(b"\x30" + clear[1:])
        client.send("unsubscribe 3 '#' " + "/" * 65_534 + "+")
        client.expect("unsuback 3")
        client.close()
    with Wire(broker.port) as client:
        client.connect().subscribe("#:0")
        client.expect_nothing()


# ---- queues ---------------------------------------------------------------------------------------------------------


def arrived(client: Wire, count: int) -> list[str]:
    """So many messages, acknowledged."""
    found = []
    for _ in range(count):
        packet = client.packet()
        client.send(f"puback {packet.packet_id}")
        found.append(packet.payload.decode().rstrip("."))
    client.expect_nothing()
    return found


@pytest.mark.one_node
@pytest.mark.parametrize(("policy", "kept"), [("drop-new", "12345"), ("drop-old", "45678")])
@pytest.mark.parametrize(
    ("limit", "filler"), [({"limits.max_queued_messages": 5}, ""), ({"limits.max_queued_bytes": 1050}, "." * 200)]
)
def test_a_full_queue(start_broker: StartBroker, policy: str, kept: str, limit: dict[str, int], filler: str) -> None:
    """For a client that is away; a policy chooses the dropped messages, and they are counted. Others get everything."""
    broker = start_broker({"limits.queue_policy": policy, "mqtt.sys_interval": 0.1, **limit})
    with (
        Wire(broker.port, name="s") as subscriber,
        Wire(broker.port, name="p") as publisher,
        Wire(broker.port, name="other") as other,
    ):
        subscriber.connect("clean=0").subscribe("t:1")
        subscriber.close()
        other.connect().subscribe("t:1")
        publisher.connect()
        for n in range(1, 9):
            publisher.send(f"publish t {n}{filler} q1 id={n}")
            publisher.expect(f"puback {n}")
            other.expect(f"publish t {n}{filler} q1 id={n}")
            other.send(f"puback {n}")
            other.settle()
        other.expect_nothing()
        with figure(broker, "publish/messages/dropped/queue full") as dropped:
            until(lambda: dropped() == 3)
    with Wire(broker.port, name="s") as subscriber:
        subscriber.connect("clean=0", "connack present")
        assert arrived(subscriber, 5) == list(kept)


@pytest.mark.parametrize(("policy", "kept"), [("drop-new", "12345"), ("drop-old", "12678")])
def test_a_full_queue_drops_nothing_that_was_sent(start_broker: StartBroker, policy: str, kept: str) -> None:
    broker = start_broker({"limits.queue_policy": policy, "limits.max_queued_messages": 5, "limits.max_inflight": 2})
    with Wire(broker.port, name="s") as subscriber, Wire(broker.port, name="p") as publisher:
        subscriber.connect("clean=0").subscribe("t:1")
        publisher.connect()
        sent = []
        for n in range(1, 9):
            publisher.send(f"publish t {n} q1 id={n}")
            publisher.expect(f"puback {n}")
            if n <= 2:  # in a cluster its node may not have sent it yet, and unsent messages may be dropped
                sent.append(subscriber.packet())
        for packet in sent:
            subscriber.send(f"puback {packet.packet_id}")
        assert [packet.payload.decode() for packet in sent] + arrived(subscriber, 3) == list(kept)


@pytest.mark.one_node
def test_a_client_that_never_acknowledges(start_broker: StartBroker) -> None:
    """Its queue is bounded; QoS 0 goes on."""
    broker = start_broker({"limits.max_queued_bytes": MIB, "mqtt.sys_interval": 0.1})
    with Wire(broker.port, name="s") as subscriber, Wire(broker.port, name="p") as publisher:
        subscriber.connect().subscribe("t:2")
        publisher.connect()
        before = broker.rss()
        for n in range(200):
            publisher.send(message("t", "x" * 50_000, 1, n + 1))
            publisher.expect(f"puback {n + 1}")
        assert broker.rss() - before < 12 * MIB
        publisher.send("publish t now")
        while subscriber.packet().payload != b"now":
            pass
        with figure(broker, "publish/messages/dropped/queue full") as dropped:
            until(lambda: dropped() >= 150)


def test_too_many_messages_that_wait_for_pubrel(start_broker: StartBroker) -> None:
    broker = start_broker({"limits.max_awaiting_release": 3})
    with Wire(broker.port, name="w") as witness, Wire(broker.port) as client:
        witness.connect().subscribe("t:0")
        client.connect("clean=0")
        for n in (1, 2, 3):
            client.send(f"publish t {n} q2 id={n}")
            client.expect(f"pubrec {n}")
        client.send("publish t 1 q2 id=1 dup")
        client.expect("pubrec 1")
        client.send("publish t 4 q2 id=4")
        client.expect(None)
        witness.expect_nothing()
    with Wire(broker.port) as client:
        client.connect("clean=0", "connack present")
        client.send("pubrel 2", "publish t 4 q2 id=4", "pubrel 4")
        client.expect("pubcomp 2", "pubrec 4", "pubcomp 4")


def test_a_burst_of_qos_2_messages(start_broker: StartBroker) -> None:
    """MQTT 3 lets a client publish as many as it has identifiers before it reads the first PUBREC."""
    broker = start_broker()
    with Wire(broker.port) as client:
        client.connect()
        client.send(b"".join(message("t", "x", 2, n) for n in range(1, 5001)))
        for n in range(1, 5001):
            client.expect(bytes([0x50, 2, n >> 8, n & 255]))
        client.send(b"".join(bytes([0x62, 2, n >> 8, n & 255]) for n in range(1, 5001)))
        for n in range(1, 5001):
            client.expect(bytes([0x70, 2, n >> 8, n & 255]))


# ---- slow consumers -------------------------------------------------------------------------------------------------


@pytest.mark.one_node
def test_a_slow_consumer_harms_only_itself(start_broker: StartBroker) -> None:
    """QoS 0 for it is dropped and counted, QoS 1 waits and comes later; others get everything at once."""
    broker = start_broker({"limits.max_outgoing_bytes": MIB, "mqtt.sys_interval": 0.1})
    payload = "x" * 20_000
    with (
        Wire(broker.port, name="slow", receive_buffer=SLOW) as slow,
        Wire(broker.port, name="quick") as quick,
        Wire(broker.port, name="p") as publisher,
    ):
        slow.connect().subscribe("zero:0", "one:1")
        quick.connect().subscribe("zero:0", "one:1")
        publisher.connect()
        before = broker.rss()
        for n in range(1000):
            publisher.send(message("zero", f"{n}-{payload}"))
            quick.expect(message("zero", f"{n}-{payload}"))
            if n % 10 == 0:
                identifier = n // 10 + 1
                publisher.send(message("one", f"{n}-{payload}", 1, identifier))
                publisher.expect(f"puback {identifier}")
                quick.expect(message("one", f"{n}-{payload}", 1, identifier))
                quick.send(f"puback {identifier}")
        assert broker.rss() - before < 12 * MIB
        with figure(broker, "publish/messages/dropped/slow") as dropped:
            until(lambda: dropped() > 100)
        ones = []
        zeros = 0
        while len(ones) < 100:  # now it reads
            packet = slow.packet()
            if packet.qos:
                ones.append(int(packet.payload.partition(b"-")[0]))
                slow.send(f"puback {packet.packet_id}")
            else:
                zeros += 1
        assert ones == list(range(0, 1000, 10))
        assert 10 < zeros < 900
        slow.settle()
        publisher.send("publish zero again")
        slow.expect("publish zero again")


@pytest.mark.one_node
def test_a_client_that_reads_none_of_its_answers(start_broker: StartBroker) -> None:
    """PINGREQ without end, no PINGRESP read: memory is bounded, others are served."""
    broker = start_broker({"limits.max_outgoing_bytes": MIB})
    with Wire(broker.port, name="rude", receive_buffer=SLOW) as rude, Wire(broker.port, name="w") as witness:
        rude.connect()
        witness.connect()
        before = broker.rss()
        data = b"\xc0\x00" * 50_000
        stuck = rude._socket
        stuck.settimeout(0.5)
        sent = 0
        try:
            while sent < 100 * MIB:
                sent += stuck.send(data)
        except (TimeoutError, ConnectionError):
            pass
        pings(witness)
        assert broker.rss() - before < 12 * MIB, f"after {sent} bytes of PINGREQ"


def test_publishers_wait_for_a_store_that_is_behind(start_broker: StartBroker) -> None:
    """Held back again and again, and each time read on."""
    broker = start_broker(
        {"flockmq.broker.core.data_plane.MAX_UNCOMMITTED_BYTES": 65_536, "limits.max_queued_bytes": 100 * MIB}
    )
    with ExitStack() as stack:
        subscriber = stack.enter_context(Wire(broker.port, name="s")).connect("clean=0").subscribe("t:1")
        subscriber.close()
        publishers = [stack.enter_context(Wire(broker.port, name=f"p{n}")).connect() for n in range(5)]
        data = b"".join(message("t", "x" * 1000, 1, n) for n in range(1, 2001))
        senders = [threading.Thread(target=publisher.send, args=(data,)) for publisher in publishers]
        for sender in senders:
            sender.start()
        for publisher in publishers:
            for n in range(1, 2001):
                publisher.expect(bytes([0x40, 2, n >> 8, n & 255]))
        for sender in senders:
            sender.join()


# ---- connections ----------------------------------------------------------------------------------------------------


@pytest.mark.one_node
def test_max_connections(start_broker: StartBroker) -> None:
    """One connection too many waits in the kernel, and comes in when another goes."""
    broker = start_broker({"limits.max_connections": 3})
    with ExitStack() as stack:
        clients = [stack.enter_context(Wire(broker.port, name=f"c{n}")) for n in range(4)]
        for client in clients[:3]:
            client.connect()
        clients[3].send("connect")
        for client in clients[:3]:
            pings(client)
        with pytest.raises(AssertionError, match="in time"):
            clients[3].receive(0.3)
        clients[0].close()
        clients[3].expect("connack")


@pytest.mark.one_node
def test_max_pending_connects(start_broker: StartBroker) -> None:
    """Connections without CONNECT hold up new ones only until their time is over."""
    broker = start_broker({"limits.max_pending_connects": 3, "limits.connect_timeout": 1})
    with ExitStack() as stack:
        known = stack.enter_context(Wire(broker.port, name="known")).connect()
        silent = [stack.enter_context(Wire(broker.port, name=f"s{n}")) for n in range(3)]
        late = stack.enter_context(Wire(broker.port, name="late"))
        late.send("connect")
        pings(known)
        for client in silent:
            client.expect(None)
        late.expect("connack")


@pytest.mark.one_node
def test_file_descriptors_run_out(start_broker: StartBroker) -> None:
    """Accepting pauses, nothing spins, connected clients are served; it resumes when there are some again."""
    broker = start_broker()
    with ExitStack() as stack:
        first = stack.enter_context(Wire(broker.port, name="first")).connect()
        limit = broker.open_files() + 5
        hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, hard))
        clients = [stack.enter_context(Wire(broker.port, name=f"c{n}")) for n in range(20)]
        for client in clients:
            client.send("connect")
        until(lambda: broker.open_files() >= limit)
        served = clients[:5]
        for client in served:
            client.expect("connack")
        pings(first)
        before = broker.cpu()
        time.sleep(2)  # long enough for a loop that spins to show
        assert broker.cpu() - before < 0.2
        with pytest.raises(AssertionError, match="in time"):
            clients[19].receive(0.1)
        pings(first)
        for client in served:
            client.close()
        for client in clients[5:10]:
            client.expect("connack")
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (hard, hard))
        for client in clients[10:]:
            client.expect("connack")


# ---- memory ---------------------------------------------------------------------------------------------------------


def soak_or_short(soak: int, short: int) -> list[object]:
    return [pytest.param(short, id=str(short)), pytest.param(soak, id=str(soak), marks=pytest.mark.soak)]


def of_store(store: str, count: int) -> int:
    """How many lives: the short form has fewer where the same code reads the packets before another store."""
    return count if store == "memory" or count >= 100_000 else count // 4


CONNECT_BYTES = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"
MALFORMED = [
    (b"\x10\x0d\x00\x04MQTT\x04\x03\x00\x00\x00\x01a",),  # a reserved flag, before a session is there
    (b"\x10\x0e\x00\x04MQTT\x04\x82\x00\x00\x00\x01a\x00",),  # cut user name [CVE-2017-7654]
    (b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x00\x00\x01a",),  # refused with an answer
    (CONNECT_BYTES, b"\x36\x05\x00\x01t\x00\x01"),
    (CONNECT_BYTES, b"\x82\x0c\x00\x01\x00\x01a\x00\x00\x05abcde\x07"),  # the second filter is wrong
    (CONNECT_BYTES, b"\x32\x07\x00\x01t\x00\x00hi"),
    (CONNECT_BYTES, b"\x30\x80\x80\x80\x80\x01"),
    (b"\x00\x00",),
]


def by_different_clients(stream: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
    """The stream with other client ids: connections that share one have to wait for each other."""
    return [tuple(part.replace(b"\x01a", b"\x01" + bytes([n])) for part in stream) for n in range(0x41, 0x7A)]


def hammer(broker: Broker, count: int, streams: list[tuple[bytes, ...]]) -> None:
    """Open `count` connections, some at a time, each sends a stream; it ends when the node closes it."""
    done = 0
    while done < count:
        opened = []
        for i in range(min(50, count - done)):
            client = socket.create_connection(("127.0.0.1", broker.port), 20)
            client.sendall(b"".join(streams[(done + i) % len(streams)]))
            opened.append(client)
        for client in opened:
            try:
                while client.recv(1000):
                    pass
            except ConnectionError:
                pass
            client.close()
        done += len(opened)
        if len(broker.log) > 10_000:  # the log of a million packets is not to fill our own memory
            broker.check()
            del broker.log[:-100]


@pytest.mark.parametrize("count", soak_or_short(1_000_000, 20_000))
@pytest.mark.timeout(3600)
def test_memory_after_malformed_packets(start_broker: StartBroker, store: str, count: int) -> None:
    broker = start_broker()
    count = of_store(store, count)
    streams = [stream for life in MALFORMED for stream in by_different_clients(life)]
    random.Random(1).shuffle(streams)
    hammer(broker, 2000, streams)
    before, files = broker.rss(), broker.open_files()
    hammer(broker, count, streams)
    until(lambda: broker.open_files() <= files)
    assert broker.rss() - before < MIB


@pytest.mark.parametrize("count", soak_or_short(100_000, 5000))
@pytest.mark.timeout(3600)
def test_memory_after_connects(start_broker: StartBroker, store: str, count: int) -> None:
    """Clean sessions that subscribe, publish, and leave politely."""
    broker = start_broker()
    count = of_store(store, count)
    life = (
        CONNECT_BYTES,
        b"\x82\x06\x00\x01\x00\x01t\x01",
        b"\x32\x06\x00\x01t\x00\x01x",
        b"\xe0\x00",
    )
    streams = by_different_clients(life)
    hammer(broker, 2000, streams)
    before, files = broker.rss(), broker.open_files()
    hammer(broker, count, streams)
    until(lambda: broker.open_files() <= files)
    assert broker.rss() - before < MIB


def test_the_memory_of_all_subscriptions(start_broker: StartBroker) -> None:
    """An empty level counts 80 bytes: filters of 200 levels are refused when they are too many, others are not."""
    broker = start_broker({"limits.max_subscription_bytes": 170_000})
    deep = [f"{number}" + "/" * 199 for number in range(11)]
    with SocketClient(broker.port, "one") as one, SocketClient(broker.port, "other") as other:
        assert one.subscribe(*((name, 0) for name in deep[:10])) == [0] * 10
        assert other.subscribe((deep[10], 0), (deep[0], 0), ("short", 0)) == [0x80, 0, 0]
        one.send(Unsubscribe(1, deep[1:2]))
        assert one.receive() == Unsuback(1)
        assert other.subscribe((deep[10], 0)) == [0]
