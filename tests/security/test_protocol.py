"""Published faults of MQTT brokers in the handling of packets: each ends its own connection, and nothing else.

A row has the bytes that a client sends, after CONNECT or instead of it. The node must close that connection, log the
reason, and go on serving others; memory is measured where an attack takes it.
"""

import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect, Disconnect, Publish, Pubrel, Subscribe, Unsubscribe
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import make_broker
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.harness.socket_client import SocketClient

MIB = 1 << 20


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def frame(first_byte: int, body: bytes) -> bytes:
    """A packet, well-formed or not."""
    size, length = len(body), b""
    while True:
        size, digit = size >> 7, size & 0x7F
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            return bytes([first_byte]) + length + body


def connect(
    client_id: bytes = b"c", level: int = 4, flags: int = 2, rest: bytes = b"", properties: bytes = b""
) -> bytes:
    """CONNECT: header, client id, then whatever follows."""
    return frame(0x10, text(b"MQTT") + bytes([level, flags]) + b"\0\x3c" + properties + text(client_id) + rest)


HELLO = connect()
WILL = 0x06
BAD_TEXT = {
    "surrogate D800": b"\xed\xa0\x80",
    "overlong": b"\xc0\xaf",
    "U+0000": b"a\0b",
    "half a character": b"\xe2\x82",
    "beyond U+10FFFF": b"\xf5\x80\x80\x80",
}

ROWS: dict[str, bytes] = {
    **{
        f"CVE-2017-7653 {name} in {where}": packet
        for name, bad in BAD_TEXT.items()
        for where, packet in {
            "topic": HELLO + frame(0x30, text(bad)),
            "filter": HELLO + frame(0x82, b"\0\1" + text(bad) + b"\0"),
            "client id": connect(bad),
            "user": connect(flags=0x82, rest=text(bad)),
            "will": connect(flags=WILL, rest=text(bad) + text(b"x")),
        }.items()
    },
    **{
        f"CVE-2017-7655 CVE-2021-28166 packet type {kind} from a client": HELLO + frame(kind << 4, body)
        for kind, body in ((0, b""), (2, b"\0\0"), (9, b"\0\1\0"), (11, b"\0\1"), (15, b""))
    },
    "CVE-2021-28166 a Connack before CONNECT": frame(0x20, b"\0\0"),
    "CVE-2021-34432 topic name of no bytes": HELLO + frame(0x30, text(b"")),
    "CVE-2021-34432 topic name of no bytes, QoS 1": HELLO + frame(0x32, text(b"") + b"\0\1x"),
    "CVE-2023-0809 the first packet is not CONNECT and long": b"\x30\xff\xff\xff\x7f" + bytes(1000),
    "CVE-2026-21888 a Remaining Length of five bytes": HELLO + b"\x30\xff\xff\xff\xff\x01",
    "CVE-2024-10525 SUBACK without codes": HELLO + frame(0x90, b"\0\1"),
    "CVE-2024-50948 CONNECT cut off by its own length": frame(0x10, text(b"MQTT") + b"\4\x02"),
    "CVE-2018-12551 password without user name": connect(flags=0x42, rest=text(b"secret")),
    "CONNECT twice": HELLO + HELLO,
    "packet identifier 0, PUBLISH": HELLO + frame(0x32, text(b"t") + b"\0\0"),
    "packet identifier 0, SUBSCRIBE": HELLO + frame(0x82, b"\0\0" + text(b"t") + b"\0"),
    "QoS 3": HELLO + frame(0x36, text(b"t") + b"\0\1"),
    "reserved flags, SUBSCRIBE": HELLO + frame(0x80, b"\0\1" + text(b"t") + b"\0"),
    "reserved flags, CONNECT": b"\x11" + HELLO[1:],
    "reserved flag in CONNECT's flags": connect(flags=3),
    "QoS 3 for the will": connect(flags=0x1E, rest=text(b"w") + text(b"x")),
    "SUBSCRIBE without filters": HELLO + frame(0x82, b"\0\1"),
    "UNSUBSCRIBE without filters": HELLO + frame(0xA2, b"\0\1"),
    "publish to a wildcard": HELLO + frame(0x30, text(b"a/+")),
    "will to a wildcard": connect(flags=WILL, rest=text(b"a/#") + text(b"x")),
    "will to $SYS": connect(flags=WILL, rest=text(b"$SYS/broker/version") + text(b"x")),
}
# Levels are refused in SUBACK, which closes nothing; a PUBLISH or a will with them closes.
DEEP = b"/" * 65_400
ROWS |= {
    "CVE-2019-11779 topic name of 65 400 levels": HELLO + frame(0x30, text(DEEP)),
    "aedes maxTopicLevels, will": connect(flags=WILL, rest=text(DEEP) + text(b"x")),
}
# Crafted properties of CONNECT at level 5: refused with a reason code in CONNACK.
FIVE = {
    "CVE-2019-11778 will delay beyond the session": connect(
        level=5,
        flags=WILL,
        properties=b"\0",
        rest=b"\5\x18\0\0\0\1",  # no topic follows
    ),
    "CVE-2021-34431 CVE-2023-3592 will with an invalid property": connect(
        level=5, flags=WILL, properties=b"\0", rest=b"\2\x24\1" + text(b"w") + text(b"")
    ),
    "CVE-2021-41039 20 000 user properties": connect(
        level=5, properties=b"\xc0\xa9\x07" + (b"\x26" + text(b"a") + text(b"b")) * 20_000
    ),
    "CVE-2026-21888 property length of five bytes": connect(level=5, properties=b"\xff\xff\xff\xff\x01"),
    "duplicate properties": connect(level=5, properties=b"\6\x21\0\1\x21\0\1"),
    "receive maximum 0": connect(level=5, properties=b"\3\x21\0\0"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "log.level": "debug",
        "limits.max_awaiting_release": 100,
        "limits.max_queued_messages": 1000,
        "limits.connect_timeout": 60,
    }
    process = make_broker(tmp_path_factory.mktemp("node"), "memory", settings).start()
    assert isinstance(process, BrokerProcess)
    yield process
    status = process.stop()
    process.close()
    process.check()
    assert status == 0


@pytest.fixture
def witness(node: BrokerProcess) -> Iterator[SocketClient]:
    """A client that has nothing to do with it: at the end it still publishes and receives."""
    client = SocketClient(node.port, "witness")
    client.subscribe(("witness", 0))
    yield client
    client.send(Publish("witness", b"still here"))
    packet = client.receive()
    assert isinstance(packet, Publish)
    assert packet.payload == b"still here"
    client.close()


def ended(client: socket.socket) -> bytes:
    """The node's last bytes before it closes the connection."""
    client.settimeout(20)
    said = b""
    try:
        while data := client.recv(65536):
            said += data
    except ConnectionResetError:
        pass
    return said


def attack(node: BrokerProcess, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", node.port)) as client:
        try:
            client.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return b""  # it was closed before it had sent all
        return ended(client)


@pytest.mark.parametrize("row", ROWS)
def test_it_ends_its_own_connection_with_a_logged_reason(row: str, node: BrokerProcess, witness: SocketClient) -> None:
    seen = len(node.log)
    attack(node, ROWS[row])
    until(lambda: any(line.get("reason") or line.get("code") for line in node.log[seen:]), f"a reason for {row}")


@pytest.mark.parametrize("row", FIVE)
def test_what_is_crafted_for_level_5_is_refused(row: str, node: BrokerProcess, witness: SocketClient) -> None:
    reply = attack(node, FIVE[row])
    assert reply[:1] == b"\x20" and reply[3] in (0x81, 0x82, 0x95, 0x97), reply


def test_cve_2019_11779_a_filter_of_65400_levels_is_refused(node: BrokerProcess, witness: SocketClient) -> None:
    client = SocketClient(node.port, "deep")
    assert client.subscribe((DEEP.decode(), 0), ("+/" * 32_000 + "#", 0), ("ok", 0)) == [0x80, 0x80, 0]
    client.close()


@pytest.mark.parametrize("topic", ["$CONTROL/x", "$", "$share", "$share/g/t", "$SYSx", "$/#"])
def test_cve_2018_12543_topics_that_begin_with_a_dollar(topic: str, node: BrokerProcess, witness: SocketClient) -> None:
    client = SocketClient(node.port, "dollar", **({} if "#" in topic else {"will_topic": topic, "will_payload": b"w"}))
    client.subscribe((topic, 1))
    if "#" not in topic:
        client.send(Publish(topic, b"x", retain=True), Publish(topic, b"", retain=True))
    assert len(client.ping()) <= 2
    client.close()


def test_cve_2017_7651_announced_bytes_take_no_memory(node: BrokerProcess, witness: SocketClient) -> None:
    """A thousand CONNECT of 256 MiB each, of which little comes; so CVE-2021-33175, 2021-33176 and 2021-22116."""
    before = node.rss()
    clients = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(1000)]
    for client in clients:
        client.sendall(b"\x10\xff\xff\xff\x7f\0")
    for client in clients:
        ended(client)  # more than a CONNECT can have: refused as soon as its length is there
        client.close()
    largest = b"\x10\x90\x80\x14" + bytes(30)  # 327 696 bytes: the most that a CONNECT can have
    clients = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(1000)]
    for client in clients:
        client.sendall(largest)
    assert witness.ping() == []
    assert node.rss() - before < 24 * MIB
    for client in clients:
        client.close()


def test_cve_2020_13849_slow_connections_hold_up_nobody(node: BrokerProcess, witness: SocketClient) -> None:
    """SlowITe and SlowTT: a thousand that send a byte at a time, and a thousand that hold on after CONNACK."""
    before = node.rss()
    slow = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(1000)]
    for byte in HELLO[:8]:
        for client in slow:
            client.sendall(bytes([byte]))
    idle = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(1000)]
    for number, client in enumerate(idle):
        client.sendall(encode(Connect(f"idle-{number}", keep_alive=65535)))
    assert witness.ping() == []
    assert node.rss() - before < 24 * MIB
    for client in slow + idle:
        client.close()


def test_cve_2017_7654_malformed_connects_leak_nothing(node: BrokerProcess, witness: SocketClient) -> None:
    """The short form; `make soak` sends a million."""
    rows = [ROWS[name] for name in ROWS if ROWS[name][0] == 0x10 and len(ROWS[name]) < 200]
    hurl(node.port, rows, 500)
    before = node.rss()
    hurl(node.port, rows, 5000)
    assert node.rss() - before < 4 * MIB


def hurl(port: int, rows: list[bytes], times: int) -> None:
    """Send many of them, a hundred connections at a time."""
    data = itertools.cycle(rows)
    for _ in range(times // 100):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for client in clients:
            client.sendall(next(data))
        for client in clients:
            client.shutdown(socket.SHUT_WR)
            ended(client)
            client.close()


def test_cve_2023_28366_unfinished_qos_2_is_bounded(node: BrokerProcess, witness: SocketClient) -> None:
    """The same identifier again and again is one message; many of them end the connection at the limit."""
    client = SocketClient(node.port, "qos2")
    client.send(*[Publish("t", bytes(1000), qos=2, packet_id=7, dup=n > 0) for n in range(10_000)])
    before = node.rss()
    assert len(client.ping()) == 10_000
    assert node.rss() - before < 4 * MIB
    seen = len(node.log)
    client.send(*[Publish("t", b"", qos=2, packet_id=n) for n in range(1, 200)])
    while client.receive() is not None:
        pass
    node.wait_for_log("connection ended", seen, client_id="qos2")


def test_cve_2024_8376_sequences_of_packets_leak_nothing(node: BrokerProcess, witness: SocketClient) -> None:
    def round_of(n: int) -> None:
        for number in range(n):
            will = {"will_topic": "w", "will_payload": b"x"}
            client = SocketClient(node.port, f"seq-{number % 10}", clean_start=number % 3 == 0, **will)
            client.send(
                Subscribe(packet_id=1, topic_filters=[(f"a/{number}/#", 2), ("a/+", 1)]),
                Unsubscribe(packet_id=2, topic_filters=[f"a/{number}/#", "nothing"]),
                Publish("a/b", bytes(100), qos=2, packet_id=3),
                Pubrel(packet_id=3),
                Unsubscribe(packet_id=4, topic_filters=["a/+"]),
                *([Disconnect()] if number % 2 else []),
            )
            client.close()

    round_of(300)
    assert witness.ping() == []
    before = node.rss()
    round_of(1500)
    assert witness.ping() == []
    assert node.rss() - before < 4 * MIB


def test_cve_2025_59946_and_2026_22040_floods_kicks_and_jitter(node: BrokerProcess, witness: SocketClient) -> None:
    """Subscriptions come and go, the same client id comes again and again, while others publish without pause."""
    flood = [SocketClient(node.port, f"flood-{n}") for n in range(3)]
    burst = b"".join(encode(Publish(f"j/{n % 7}", bytes(50), qos=n % 2, packet_id=n % 2 * (n + 1))) for n in range(200))
    jitter = [(f"j/{n}", n % 3) for n in range(7)] + [("j/+", 1), ("#", 0)]
    for _ in range(60):
        for client in flood:
            client.socket.sendall(burst)
        kicked = SocketClient(node.port, "kicked", clean_start=False)
        kicked.send(Subscribe(packet_id=1, topic_filters=jitter), Unsubscribe(packet_id=2, topic_filters=["j/+", "#"]))
        for client in flood:
            client.socket.recv(65536)
    assert witness.ping() == []
    for client in flood:
        client.close()
    kicked.close()


def test_sol_17_a_second_connection_with_the_same_client_id(node: BrokerProcess, witness: SocketClient) -> None:
    first = SocketClient(node.port, "same")
    first.subscribe(("mine", 0))
    second = SocketClient(node.port, "same")
    assert first.receive() is None
    witness.send(Publish("mine", b"of the first"))
    assert second.ping() == []  # a clean session: nothing of the first is the second's
    second.close()


def test_aedes_1087_the_queue_of_an_absent_client_is_bounded(node: BrokerProcess, witness: SocketClient) -> None:
    client = SocketClient(node.port, "absent", clean_start=False)
    client.subscribe(("q", 1))
    client.close()
    for start in range(1, 3000, 100):
        witness.send(*[Publish("q", bytes(100), qos=1, packet_id=start + n) for n in range(100)])
        assert len(witness.ping()) == 100
    back = SocketClient(node.port, "absent", clean_start=False)
    assert len(back.ping()) <= 1000
    back.close()


def test_ghsa_2hjf_wildcards_cost_no_time(node: BrokerProcess, witness: SocketClient) -> None:
    """Filters that made a regular expression run for ever are matched level by level."""
    client = SocketClient(node.port, "patterns")
    filters = ["/".join("+" * n + "a" * (30 - n)) for n in range(31)]
    assert client.subscribe(*((name, 0) for name in filters)) == [0] * 31
    client.send(*[Publish("/".join("a" * 29 + "b"), b"")] * 200)
    assert len(client.ping()) == 200  # the filter that is all `+`
    assert client.subscribe(("a#", 0), ("+a", 0), ("#/b", 0)) == [0x80] * 3
    client.close()


@pytest.mark.parametrize("field", ["client id", "user name", "topic"])
def test_fields_of_65535_bytes(field: str, node: BrokerProcess, witness: SocketClient) -> None:
    long = "x" * 65_535
    client = SocketClient(
        node.port, long if field == "client id" else "long", **({"username": long} if field == "user name" else {})
    )
    if field == "topic":
        assert client.subscribe((long, 0)) == [0]
        client.send(Publish(long, b"1"))
        (packet,) = client.ping()
        assert isinstance(packet, Publish)
        assert packet.topic_name == long
    client.close()


def test_cve_2024_3935_what_another_node_sends_may_be_damaged() -> None:
    """A bridge that took what it got for well-formed: here a batch that is cut or changed anywhere."""
    batch = b"".join(encode(Publish(f"a/{n}", bytes(n * 50), qos=n % 3, packet_id=n % 3 and n), 4) for n in range(5))
    router = Node().router
    assert router.deliver(batch) == 5
    for end in range(len(batch)):
        with suppress(ValueError):
            router.deliver(batch[:end])
    for at, value in itertools.product(range(len(batch)), (0, 0x7F, 0x80, 0xFF)):
        with suppress(ValueError):
            router.deliver(batch[:at] + bytes([value]) + batch[at + 1 :])


def test_cve_2026_8741_a_crash_between_publish_and_its_identifier() -> None:
    """A QoS 2 message goes on when its PUBREL has come, in one step with that: whenever the node dies, once."""
    node = Node()
    for name in ("keeper", "device"):
        Client(node, name, clean_start=False).close()
    keeper = Client(node, "keeper", clean_start=False)
    keeper.send(Subscribe(packet_id=1, topic_filters=[("t", 2)]))
    begin = len(node.store.told)
    device = Client(node, "device", clean_start=False)
    device.send(Publish("t", b"x", qos=2, packet_id=5))
    device.send(Pubrel(packet_id=5))
    for moment in range(begin, len(node.store.told)):  # after the last one, the repeated PUBLISH is a new message
        again = Node(KeepingStore(node.store.after(moment)))
        device = Client(again, "device", clean_start=False)
        device.send(Publish("t", b"x", qos=2, packet_id=5, dup=True), Pubrel(packet_id=5))
        keeper = Client(again, "keeper", clean_start=False)
        assert sum(isinstance(packet, Publish) for packet in keeper.take()) == 1
        again.close()
    node.close()
