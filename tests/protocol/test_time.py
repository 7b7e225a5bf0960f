"""Keep alive, the time for CONNECT, retries of level 3: the times when nothing is sent."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Publish
from tests.harness.cluster_process import Broker, make_broker
from tests.harness.socket_client import SocketClient
from tests.protocol.wire import Wire

StartBroker = Callable[..., Broker]
KEEP_ALIVE_TIMEOUT = 0x8D
LEVELS = pytest.mark.parametrize("level", [3, 4, 5])


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    return start_broker({"mqtt.sys_interval": 0})


@LEVELS
def test_keep_alive_ends_the_connection_after_one_and_a_half_periods(broker: Broker, level: int) -> None:
    """Not before [MQTT-3.1.2-24], soon after, and its will is published; one that pings stays."""
    with Wire(broker.port, level, "s") as watcher, Wire(broker.port, level, "alive") as alive:
        watcher.connect().subscribe("w/#:0")
        alive.connect("keep=1 will=w/alive message=wrong")
        with Wire(broker.port, level, "silent") as silent:
            began = time.monotonic()  # the node's time begins a little later
            silent.connect("keep=1 will=w/silent message=gone")
            while not silent.closed and time.monotonic() - began < 4:  # `alive` pings until the other has ended
                alive.send("pingreq")
                alive.expect("pingresp")
                try:
                    silent.receive(0.2)
                except AssertionError:
                    continue
            took = time.monotonic() - began
            assert silent.closed, "it should have been closed after one and a half periods"
        watcher.expect("publish w/silent gone")
        alive.send("pingreq")
        alive.expect("pingresp")
        watcher.expect_nothing()
        assert took + 0.05 >= 1.5


@LEVELS
def test_other_packets_keep_a_connection_alive_too(broker: Broker, level: int) -> None:
    with Wire(broker.port, level, "busy") as busy, Wire(broker.port, level, "silent") as silent:
        busy.connect("keep=1")
        silent.connect("keep=2")
        for _ in range(100):
            busy.send("publish t x q1 id=1")
            busy.expect("puback 1 code=0x10")
            try:
                end = silent.receive(0.2)
                assert end is None or (level == 5 and (end[0], end[2]) == (0xE0, KEEP_ALIVE_TIMEOUT))
                break
            except AssertionError as error:
                assert "in time" in str(error)
        else:
            pytest.fail("the silent one was never closed")


@LEVELS
def test_keep_alive_counts_after_a_packet_too(broker: Broker, level: int) -> None:
    """Later bytes start the period again; half a packet is no reason to wait for ever."""
    with Wire(broker.port, level) as client:
        client.connect("keep=1")
        client.send("publish t x q1 id=1")
        client.expect("puback 1 code=0x10")
        client.send(b"\x30\x05\x00")
        client.expect_end(KEEP_ALIVE_TIMEOUT)
    assert broker.running


def test_keep_alive_0_is_never(broker: Broker) -> None:
    """The silent one outlives others whose period ran out twice."""
    with Wire(broker.port, name="forever") as forever:
        forever.connect("keep=0 will=w message=wrong")
        for _ in range(2):
            with Wire(broker.port, name="short") as short:
                short.connect("keep=1")
                short.expect(None)
        forever.send("pingreq")
        forever.expect("pingresp")


def test_a_cap_holds_those_without_keep_alive(start_broker: StartBroker) -> None:
    broker = start_broker({"limits.max_keep_alive": 1})
    with Wire(broker.port) as client:
        client.connect("keep=0")
        client.expect(None)
    with Wire(broker.port) as client:
        client.connect("keep=600")
        client.expect(None)


@pytest.mark.one_node
def test_a_connection_without_connect_is_closed(start_broker: StartBroker) -> None:
    """One that is silent, one that drips: neither may stay. One that has connected may."""
    broker = start_broker({"limits.connect_timeout": 1, "mqtt.sys_interval": 0.1})
    with Wire(broker.port, name="ok") as ok, Wire(broker.port) as silent, Wire(broker.port) as drip:
        ok.connect().subscribe("$SYS/broker/connections/connect timeouts:0")
        assert ok.packet().payload == b"0"
        data = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"
        for i in range(len(data) - 1):
            drip.send(data[i : i + 1])
            if drip.closed:
                break
            try:
                drip.receive(0.15)
            except AssertionError:
                continue
            break
        drip.expect(None)
        silent.expect(None)
        while ok.packet().payload != b"2":
            pass


def retried(client: Wire, line: str) -> None:
    """The packet comes again, with DUP, though nothing has happened."""
    client.expect(line)
    client.expect(f"{line} dup")
    client.expect(f"{line} dup")


@pytest.mark.parametrize("qos", [1, 2])
def test_level_3_gets_unacknowledged_messages_again(start_broker: StartBroker, qos: int) -> None:
    broker = start_broker({"mqtt.retry_interval": 1})
    with Wire(broker.port, 3, "s") as subscriber, Wire(broker.port, 4, "four") as four:
        four.connect().subscribe(f"t:{qos}")
        subscriber.connect().subscribe(f"t:{qos}")
        subscriber.send(f"publish t x q{qos} id=1", *(["pubrel 1"] if qos == 2 else []))
        for line in ["puback 1"] if qos == 1 else ["pubrec 1", "pubcomp 1"]:
            subscriber.expect(line)
        retried(subscriber, f"publish t x q{qos} id=1")
        if qos == 1:
            subscriber.send("puback 1")
        else:
            subscriber.send("pubrec 1")
            subscriber.expect("pubrel 1", "pubrel 1", "pubrel 1")
            subscriber.send("pubcomp 1")
        four.expect(f"publish t x q{qos} id=1")
        four.expect_nothing()  # level 4 is not retried, whose interval has passed several times by now
        for frame in subscriber.frames:
            assert frame[0] in (0x3A, 0x3C, 0x62), "repetitions on their way are all that may come"


def test_level_3_is_not_retried_when_that_is_off(start_broker: StartBroker) -> None:
    broker = start_broker({"mqtt.retry_interval": 0})
    with Wire(broker.port, 3, "s") as subscriber, Wire(broker.port, 4, "clock") as clock:
        subscriber.connect().subscribe("t:1")
        subscriber.send("publish t x q1 id=1")
        subscriber.expect("puback 1")
        subscriber.expect("publish t x q1 id=1")
        clock.connect("keep=1")
        clock.expect(None)
        subscriber.expect_nothing()


def test_a_will_is_published_when_the_node_stops(tmp_path: Path, store: str) -> None:
    if store == "memory":
        pytest.skip("nobody is left to see it")
    broker = make_broker(tmp_path, store).start()
    with Wire(broker.port, name="s") as subscriber, Wire(broker.port, name="a") as client:
        subscriber.connect("clean=0").subscribe("w:1")
        subscriber.close()
        client.connect("will=w message=gone q1 retain")
        broker.restart()
    with Wire(broker.port, name="s") as subscriber, Wire(broker.port, name="new") as new:
        subscriber.connect("clean=0", "connack present")
        subscriber.expect("publish w gone q1 id=1")
        subscriber.expect_nothing()
        new.connect().subscribe("w:0")
        new.expect("publish w gone retain")
        new.expect_nothing()
    assert broker.stop() == 0
    broker.close()
    broker.check()


def test_a_stopped_process_does_not_time_its_clients_out(broker: Broker) -> None:
    """SIGSTOP for longer than keep alive: packets sent during the stop count."""
    with Wire(broker.port, name="short") as client:
        client.connect("keep=1")
        broker.signal(signal.SIGSTOP)
        client.send("pingreq")
        time.sleep(2)  # a period of the protocol
        broker.signal(signal.SIGCONT)
        client.expect("pingresp")
        client.send("pingreq")
        client.expect("pingresp")


@pytest.mark.parametrize("ready", [False, True], ids=["slow", "stalled"])
def test_a_retry_delivers_nothing_twice_at_qos_2(start_broker: StartBroker, ready: bool) -> None:
    """A level 3 client that reads nothing for longer than the interval, then answers what it had been sent before."""
    broker = start_broker({"mqtt.retry_interval": 1, "limits.max_queued_bytes": 64 << 20})
    count, size = (60, 100_000) if not ready else (20, 100_000)
    with Wire(broker.port, 3, "s", receive_buffer=4096) as subscriber, Wire(broker.port, 4, "p") as publisher:
        subscriber.connect().subscribe("t:2")
        publisher.connect()
        for n in range(1, count + 1):
            publisher.send(encode(Publish("t", b"%d " % n + bytes(size), 2, packet_id=n), 4))
            publisher.expect(f"pubrec {n}")
            publisher.send(f"pubrel {n}")
            publisher.expect(f"pubcomp {n}")
        time.sleep(2.5)  # two intervals
        delivered: list[int] = []
        unfinished: set[int] = set()
        finished = 0
        while finished < count:
            packet = subscriber.packet()
            if isinstance(packet, Publish):
                if packet.packet_id not in unfinished:
                    delivered.append(int(packet.payload.partition(b" ")[0]))
                    unfinished.add(packet.packet_id)
                subscriber.send(f"pubrec {packet.packet_id}")
            else:
                if packet.packet_id in unfinished:
                    unfinished.discard(packet.packet_id)
                    finished += 1
                subscriber.send(f"pubcomp {packet.packet_id}")
        assert sorted(set(delivered)) == list(range(1, count + 1))
        assert len(delivered) == count, "some were delivered twice"


def test_a_persistent_session_ends_when_its_client_stays_away(start_broker: StartBroker) -> None:
    broker = start_broker({"mqtt.session_expiry": "1s"})
    for client_id in ("away", "there"):
        SocketClient(broker.port, client_id, clean_start=False).close()
    with SocketClient(broker.port, "there", clean_start=False) as there:
        time.sleep(3)  # there is no event for the end of a session
        there.ping()
        with SocketClient(broker.port, "away", clean_start=False) as away:
            assert away.connack is not None
            assert not away.connack.session_present
    with SocketClient(broker.port, "there", clean_start=False) as there:
        assert there.connack is not None
        assert there.connack.session_present
