"""Many retained messages: few matches are found without a look at the rest, all arrive, no client waits for them."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from flockmq._speedups.codec.decode import decode
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Publish
from tests.harness.cluster_process import Broker
from tests.protocol.wire import Wire

StartBroker = Callable[..., Broker]
MIB = 1 << 20
GROUPS = 100
MANY = [
    pytest.param(1000, id="100000"),  # messages in each group
    pytest.param(10_000, id="1000000", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
]


def topic_of(group: int, n: int) -> str:
    return f"site/{group}/device/{n}/state"


def fill(broker: Broker, each: int) -> None:
    """GROUPS x each retained messages."""
    with Wire(broker.port, name="filler") as client:
        client.connect()
        for group in range(GROUPS):
            client.send(
                b"".join(
                    encode(Publish(topic_of(group, n), b"%200d" % n, 1, True, False, n % 999 + 1), 4)
                    for n in range(each)
                )
            )
            for _ in range(each):
                assert client.receive() is not None
        client.close()


def pings(client: Wire) -> None:
    client.send("pingreq")
    client.expect("pingresp")


def take(client: Wire, count: int, between: Callable[[int], None] = lambda n: None) -> set[str]:
    """So many retained messages, acknowledged; `between` is called now and then."""
    topics = set()
    acknowledgements = []
    for n in range(count):
        frame = client.receive()
        assert frame is not None
        packet = decode(frame, 4)
        assert packet.retain
        topics.add(packet.topic_name)
        if packet.qos:
            acknowledgements.append(b"\x40\x02" + packet.packet_id.to_bytes(2, "big"))
        if acknowledgements and (not client.frames or len(acknowledgements) > 50):
            client.send(*acknowledgements)
            acknowledgements.clear()
        if n % 1000 == 999:
            between(n)
    client.send(*acknowledgements)
    return topics


@pytest.mark.parametrize("each", MANY)
@pytest.mark.parametrize("qos", [0, 1])
def test_all_of_them_arrive_at_a_slow_reader(start_broker: StartBroker, each: int, qos: int) -> None:
    """Once each, with RETAIN, paced by its reading; memory is bounded and others are served at once."""
    broker = start_broker()
    fill(broker, each)
    with ExitStack() as stack:
        other = stack.enter_context(Wire(broker.port, name="other")).connect()
        slow = stack.enter_context(Wire(broker.port, name="slow", receive_buffer=4096)).connect()
        before = broker.rss()
        slow.subscribe(f"#:{qos}")
        peak = before

        def between(n: int) -> None:
            nonlocal peak
            pings(other)
            peak = max(peak, broker.rss())

        for n in range(200):
            between(n)
        topics = take(slow, GROUPS * each, between)
        assert len(topics) == GROUPS * each
        slow.expect_nothing()
        assert peak - before < 8 * MIB


@pytest.mark.one_process  # its CPU time is measured
@pytest.mark.parametrize("each", MANY)
def test_few_matches_are_found_without_a_look_at_the_rest(start_broker: StartBroker, each: int) -> None:
    """The CPU time of a search is compared with the time to take all: by far less, whatever the machine."""
    broker = start_broker({"mqtt.sys_interval": 0})
    fill(broker, each)
    with Wire(broker.port, name="s") as client:
        client.connect()

        def cost(name: str, matches: int, times: int) -> float:
            before = broker.cpu()
            for _ in range(times):
                client.subscribe(f"{name}:0")
                assert len(take(client, matches)) == matches
                client.settle()
            return (broker.cpu() - before) / times

        everything = cost("#", GROUPS * each, 2)
        times = 100
        for name, matches in (
            (topic_of(7, 7), 1),
            ("site/7/device/+/state", each),
            ("site/+/device/7/state", GROUPS),
            ("site/7/device/7/#", 1),
            ("+/7/+/7/+", 1),
            ("nothing/#", 0),
            ("+/none/#", 0),
        ):
            share = max(matches * 4, 2000) / (GROUPS * each)
            assert cost(name, matches, times) <= max(everything * share, 0.002), name


def test_they_are_found_while_they_change(start_broker: StartBroker) -> None:
    """A search that stands still while the tree changes under it: a kept message is found once, removals do no harm."""
    broker = start_broker()
    each = 100
    fill(broker, each)
    with Wire(broker.port, name="slow", receive_buffer=4096) as slow, Wire(broker.port, name="p") as publisher:
        publisher.connect()
        slow.connect()
        slow.send("subscribe 1 #:1")
        slow.expect("suback 1 1")
        for group in range(0, GROUPS, 2):
            publisher.send(*(encode(Publish(topic_of(group, n), b"", 0, True), 4) for n in range(each)))
        for n in range(each):
            publisher.send(encode(Publish(f"new/{n}", b"x", 0, True), 4))
        publisher.settle()
        staying = {topic_of(group, n) for group in range(1, GROUPS, 2) for n in range(each)}
        found: list[str] = []
        while not staying.issubset(found):
            packet = slow.packet()
            if packet.qos:
                slow.send(f"puback {packet.packet_id}")
            if packet.retain:
                found.append(packet.topic_name)
        assert len(found) == len(set(found))
    with Wire(broker.port, name="again") as again:
        again.connect().subscribe("site/#:0")
        take(again, len(staying))
        again.expect_nothing()


@pytest.mark.parametrize("size", [300_000, 1_900_000])
def test_large_ones_arrive_all_at_qos_1(start_broker: StartBroker, size: int) -> None:
    """They are more than the session's queue may hold: they wait for room, they are not dropped."""
    broker = start_broker({"limits.max_queued_bytes": 2 * MIB})
    with Wire(broker.port, name="p") as publisher, Wire(broker.port, name="s") as subscriber:
        publisher.connect()
        for n in range(20):
            publisher.send(encode(Publish(f"large/{n}", bytes(size), 1, True, False, n + 1), 4))
            publisher.expect(f"puback {n + 1}")
        subscriber.connect().subscribe("large/#:1")
        subscriber.send("pingreq")
        subscriber._read(time.monotonic() + 20)  # before the first acknowledgement
        topics = set()
        while len(topics) < 20:
            frame = subscriber.receive()
            if frame == b"\xd0\x00":
                continue
            packet = decode(frame, 4)
            topics.add(packet.topic_name)
            subscriber.send(f"puback {packet.packet_id}")
        subscriber.expect_nothing()


def test_an_unread_search_ends_with_its_client(start_broker: StartBroker) -> None:
    broker = start_broker()
    fill(broker, 100)
    with Wire(broker.port, name="other") as other:
        other.connect()
        for n in range(50):
            with Wire(broker.port, name=f"s{n}", receive_buffer=4096) as client:
                client.connect("clean=0").subscribe("#:1", "site/#:0")
                client.reset() if n % 2 else client.drop()
            pings(other)
        other.send(
            *(encode(Publish(topic_of(group, n), b"", 0, True), 4) for group in range(GROUPS) for n in range(100))
        )
        other.settle()
        other.subscribe("#:0")
        other.expect_nothing()
