"""Streams: subscriptions that begin in the past are read from the logs of all nodes, without gap or double."""

import random
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from flockmq._speedups.codec.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flockmq._speedups.codec.reason_codes import ReasonCode
from flockmq.broker.streams.start_position import parse_since
from tests.conftest import StartBroker, StartLogging
from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE
from tests.harness.logs import Logging, OneNode, logged_rows
from tests.harness.socket_client import SocketClient

EVERYTHING = {"analytics.topics": "#"}
QUICK = {**EVERYTHING, "cluster.lease": 1.5, "cluster.timeout": 0.7}
FOREVER = {"properties": {"session_expiry_interval": 0xFFFFFFFF}, "clean_start": False}


def five(cluster: Logging, node: str, client_id: str, **connect: Any) -> SocketClient:
    client = SocketClient(cluster[node].port, client_id, level=5, **connect)
    assert client.connack is not None and client.connack.reason_code == 0, client.connack
    return client


def subscribe(client: SocketClient, name: str, qos: int = 1, **properties: Any) -> None:
    client.send(Subscribe(1, [(name, qos)], properties))
    suback = client.receive()
    while not isinstance(suback, Suback):  # messages of a session that has returned
        suback = client.receive()
    assert suback.reason_codes == [qos], suback


def message(client: SocketClient, acknowledge: bool = True) -> Publish:
    """The next message; acknowledged as its QoS asks for."""
    packet = client.receive()
    while not isinstance(packet, Publish):
        assert isinstance(packet, Pubrel), packet
        client.send(Pubcomp(packet_id=packet.packet_id))
        packet = client.receive()
    if acknowledge and packet.qos == 1:
        client.send(Puback(packet_id=packet.packet_id))
    elif acknowledge and packet.qos == 2:
        client.send(Pubrec(packet_id=packet.packet_id))
    return packet


def read(client: SocketClient, count: int) -> list[bytes]:
    return [message(client).payload for _ in range(count)]


def publish(client: SocketClient, topic: str, *payloads: bytes, qos: int = 1, **properties: Any) -> None:
    for number, payload in enumerate(payloads, 1):
        client.send(Publish(topic, payload, qos, packet_id=number if qos else 0, properties=properties))
        if qos == 2:
            assert isinstance(client.receive(), Pubrec)
            client.send(Pubrel(packet_id=number))
        if qos:
            answer = client.receive()
            assert isinstance(answer, (Puback, Pubcomp)) and answer.packet_id == number, answer


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def leave(client: SocketClient) -> None:
    """Disconnect, when the node has all acknowledgements."""
    client.ping()
    client.send(Disconnect(0))
    while client.receive() is not None:
        pass


def no_more(client: SocketClient) -> None:
    """Nothing was sent to the client but what has been received."""
    assert client.ping() == []


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_was_and_then_what_is(start_logging: StartLogging, level: int, qos: int) -> None:
    cluster = start_logging(EVERYTHING)
    writers = [SocketClient(cluster[name].port, f"writer {name}") for name in "abc"]
    for writer in writers:
        publish(writer, "site/1", *numbers(0, 20))
        publish(writer, "other", b"other")
    reader = SocketClient(cluster["b"].port, "reader", level=level)
    subscribe(reader, "$stream/1h/site/+", qos)
    found = [message(reader) for _ in range(60)]
    assert Counter(one.payload for one in found) == Counter(numbers(0, 20) * 3)
    assert {(one.topic_name, one.qos, one.retain, one.dup) for one in found} == {("site/1", min(qos, 1), False, False)}
    for number in range(20, 40):
        publish(writers[number % 3], "site/2", b"%d" % number)
        assert message(reader).payload == b"%d" % number
    no_more(reader)


def test_messages_have_their_time_and_position(start_logging: StartLogging) -> None:
    cluster = start_logging(EVERYTHING, nodes="a")
    began = datetime.now(UTC)
    writer = five(cluster, "a", "writer")
    publish(writer, "t", *numbers(0, 3), content_type="n", message_expiry_interval=1000)
    reader = five(cluster, "a", "reader")
    subscribe(reader, "$stream/earliest/t", subscription_identifier=7)
    found = [message(reader) for _ in range(3)]
    for one in found:
        assert one.properties["content_type"] == "n" and one.properties["subscription_identifier"] == [7]
        assert 900 < one.properties["message_expiry_interval"] <= 1000
        origin = dict(one.properties["user_property"])
        assert began <= datetime.fromisoformat(origin["flockmq-time"]) <= datetime.now(UTC)
    second = dict(found[1].properties["user_property"])["flockmq-position"]
    again = five(cluster, "a", "again")
    subscribe(again, f"$stream/{second}/t")
    assert read(again, 1) == [b"2"]
    no_more(again)


def test_each_way_to_say_since(start_logging: StartLogging) -> None:
    cluster = start_logging(EVERYTHING, nodes="a")
    writer = SocketClient(cluster["a"].port, "writer")
    publish(writer, "t", b"old")
    until(lambda: len(logged_rows(cluster)) == 1)
    time.sleep(0.002)  # the clock of the log has microseconds, ISO 8601 may have fewer
    between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    publish(writer, "t", b"new")
    for since, expected in (
        ("earliest", [b"old", b"new"]),
        ("90s", [b"old", b"new"]),
        ("2020-01-01", [b"old", b"new"]),
        (between, [b"new"]),
        ("now", []),
        ("2100-01-01T00:00Z", []),
    ):
        with SocketClient(cluster["a"].port, f"reader {since}", level=5) as reader:
            subscribe(reader, f"$stream/{since}/t")
            assert read(reader, len(expected)) == expected
            no_more(reader)


@pytest.mark.parametrize(
    "name",
    [
        "$stream",
        "$stream/",
        "$stream/10m",
        "$stream/10m/",
        "$stream/10x/t",
        "$stream/x/t",
        "$stream/10m/a#",
        "$stream//t",
    ],
)
def test_wrong_streams_are_refused(start_logging: StartLogging, name: str) -> None:
    cluster = start_logging(EVERYTHING, nodes="a")
    client = five(cluster, "a", "c")
    client.send(Subscribe(1, [(name, 1), (f"$share/g/{name}", 1)]))
    suback = client.receive()
    assert isinstance(suback, Suback)
    plain = name == "$stream"  # an ordinary filter that no message matches
    expected = [1, 1] if plain else [ReasonCode.TOPIC_FILTER_INVALID] * 2
    assert suback.reason_codes == expected


def test_without_a_log_there_is_no_stream(start_broker: StartBroker) -> None:
    client = SocketClient(start_broker().port, "c", level=5)
    client.send(Subscribe(1, [("$stream/10m/t", 1)]))
    suback = client.receive()
    assert isinstance(suback, Suback) and suback.reason_codes == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert "analytics.topics" in suback.properties["reason_string"]


def test_rights_hold_for_the_messages(start_logging: StartLogging, tmp_path: Any) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic write #\ntopic read open/#\n")
    cluster = start_logging({**EVERYTHING, "auth.acl_file": str(rules)}, nodes="a")
    publish(SocketClient(cluster["a"].port, "writer"), "secret/1", b"secret")
    publish(SocketClient(cluster["a"].port, "writer"), "open/1", b"open")
    reader = five(cluster, "a", "reader")
    reader.send(Subscribe(1, [("$stream/1h/secret/#", 1), ("$stream/1h/#", 1)]))
    suback = reader.receive()
    assert isinstance(suback, Suback) and suback.reason_codes == [ReasonCode.NOT_AUTHORIZED, 1]
    assert read(reader, 1) == [b"open"]
    no_more(reader)


def test_streams_of_a_connection_are_limited(start_logging: StartLogging) -> None:
    cluster = start_logging({**EVERYTHING, "limits.max_streams": 2}, nodes="a")
    client = five(cluster, "a", "c")
    client.send(Subscribe(1, [(f"$stream/now/{name}", 1) for name in "aabc"]))
    suback = client.receive()
    assert isinstance(suback, Suback) and suback.reason_codes == [1, 1, 1, ReasonCode.QUOTA_EXCEEDED]
    client.send(Unsubscribe(2, ["$stream/now/a"]))
    client.receive()
    subscribe(client, "$stream/now/b")
    subscribe(client, "$stream/now/c")


def test_a_clean_session_that_unsubscribes_gets_no_more(start_logging: StartLogging) -> None:
    cluster = start_logging(EVERYTHING, nodes="a")
    writer = SocketClient(cluster["a"].port, "writer")
    publish(writer, "t", b"0")
    reader = five(cluster, "a", "reader")
    subscribe(reader, "$stream/1h/t")
    assert read(reader, 1) == [b"0"]
    reader.send(Unsubscribe(2, ["$stream/1h/t"]))
    reader.receive()
    publish(writer, "t", b"1")
    no_more(reader)
    subscribe(reader, "$stream/1h/t")
    assert read(reader, 2) == [b"0", b"1"]  # a new stream begins at the beginning


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_goes_on_where_it_was_at_another_node(start_logging: StartLogging, qos: int) -> None:
    cluster = start_logging(EVERYTHING)
    writer = SocketClient(cluster["c"].port, "writer")
    publish(writer, "t/x", *numbers(0, 100), qos=qos)
    receiver = Receiver(qos)
    receiver.connect(cluster, "a")
    for number, name in enumerate("bcab", 100):
        for _ in range(25):
            receiver.step()
        receiver.leave()
        publish(writer, "t/x", *numbers(10 * number, 10 * number + 10), qos=qos)
        receiver.connect(cluster, name)
    publish(writer, "t/x", b"end", qos=qos)
    while receiver.found[-1] != b"end":
        receiver.step()
    first = list(dict.fromkeys(receiver.found))
    assert first[:100] == numbers(0, 100) and len(first) == 141
    if qos == 2:
        assert first == receiver.found
    again = receiver.client
    subscribe(again, "$stream/1h/t/#", qos)  # the same stream: it goes on
    assert receiver.finished()
    publish(writer, "t/x", b"later", qos=qos)
    receiver.step()
    assert receiver.found[-1] == b"later"


@pytest.mark.parametrize("properties", [{"session_expiry_interval": 100}, {}], ids=["persistent", "clean"])
def test_a_session_that_ends_forgets_its_streams(start_logging: StartLogging, properties: dict[str, int]) -> None:
    cluster = start_logging(EVERYTHING, nodes="ab")
    publish(SocketClient(cluster["a"].port, "writer"), "t", b"0")
    reader = five(cluster, "a", "reader", **FOREVER)
    subscribe(reader, "$stream/1h/t")
    assert read(reader, 1) == [b"0"]
    leave(reader)
    anew = five(cluster, "b", "reader", properties=properties)
    assert anew.connack is not None and not anew.connack.session_present
    no_more(anew)
    subscribe(anew, "$stream/1h/t")
    assert read(anew, 1) == [b"0"]


def test_messages_that_were_trimmed_are_reported(start_logging: StartLogging) -> None:
    cluster = start_logging({**EVERYTHING, "analytics.log_bytes": 1 << 20}, nodes="ab")
    writer = five(cluster, "a", "writer")
    publish(writer, "t", b"0")
    reader = five(cluster, "a", "reader", **FOREVER)
    subscribe(reader, "$stream/1h/t")
    assert read(reader, 1) == [b"0"]
    leave(reader)
    for number in range(30):
        publish(writer, "t", b"%d" % number + b"x" * 100_000)
    if isinstance(cluster, OneNode):
        cluster.restart()
    reader = five(cluster, "b", "reader", **FOREVER)  # node a had the newest entries in memory
    first = message(reader)
    assert not first.payload.startswith(b"0x")
    assert int(dict(first.properties["user_property"])["flockmq-missed"]) > 1 << 20
    cluster["b"].wait_for_log("messages of a stream were trimmed before they were read")
    while not message(reader).payload.startswith(b"29x"):
        pass


def test_a_slow_reader_gets_everything(start_logging: StartLogging) -> None:
    """The log is read as the client takes it: queues stay small, QoS 0 is not dropped."""
    cluster = start_logging(
        {**EVERYTHING, "limits.max_queued_messages": 10, "limits.max_outgoing_bytes": 65536}, nodes="a"
    )
    writer = SocketClient(cluster["a"].port, "writer")
    bulk = b"x" * 1000
    for number in range(3000):
        writer.send(Publish("t", b"%d " % number + bulk))
    writer.ping()
    until(lambda: len(logged_rows(cluster)) == 3000)
    for qos in (0, 1):
        reader = five(cluster, "a", f"reader {qos}")
        subscribe(reader, "$stream/1h/t", qos)
        time.sleep(0.2)  # it reads nothing for a while
        assert [int(message(reader).payload.split()[0]) for _ in range(3000)] == list(range(3000))
        no_more(reader)


@pytest.mark.parametrize("qos", [1, 2])
def test_kills_and_reconnects_lose_and_double_nothing(start_logging: StartLogging, qos: int) -> None:
    """Nodes are killed and the reader roams while publishers go on: G1, G2 and, at QoS 2, G3 hold for the stream.

    A node alone is the publisher's, too.
    """
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    cluster = start_logging(QUICK)
    receiver = Receiver(qos)
    with Writer(cluster, "c", qos) as writer:
        for round_number in range(8):
            name = "ab"[round_number % 2]
            receiver.connect(cluster, name)
            for _ in range(rng.randrange(50, 200)):
                receiver.step()
            cluster[name].kill()
            cluster[name].start()
    receiver.connect(cluster, "c")
    while len(set(receiver.found)) < len(writer.acknowledged):
        receiver.step()
    assert list(dict.fromkeys(receiver.found)) == writer.acknowledged, f"seed {seed}"
    if qos == 2:
        assert len(receiver.found) == len(writer.acknowledged), f"seed {seed}"
    reader = five(cluster, "c", "another")  # the log itself has them, too
    subscribe(reader, "$stream/1h/t/#")
    logged = read(reader, len(writer.acknowledged))
    while logged[-1] != writer.acknowledged[-1]:
        logged += read(reader, 1)
    assert list(dict.fromkeys(logged)) == writer.acknowledged
    if qos == 2:
        assert len(logged) == len(writer.acknowledged)


class Writer(threading.Thread):
    """Publishes numbers one by one over connections, as a client does that keeps its state of QoS 1 and 2."""

    def __init__(self, cluster: Logging, name: str, qos: int) -> None:
        super().__init__()
        self.acknowledged: list[bytes] = []
        self._cluster = cluster
        self._name = name
        self._qos = qos
        self._client: SocketClient | None = None
        self._stop_at = float("inf")
        self._stopping = False
        self._sent = self._received = False  # the message was sent; PUBREC has come

    def __enter__(self) -> "Writer":
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End it after the message that it has begun; at once, if the test has failed."""
        self._stop_at = time.monotonic() + (DEADLINE if kind is None else 0)
        self._stopping = True
        self.join()

    def run(self) -> None:
        while (not self._stopping or self._sent) and time.monotonic() < self._stop_at:
            try:
                self._publish()
            except OSError:
                self._client = None

    def _publish(self) -> None:
        payload = b"%d" % len(self.acknowledged)
        again = self._client is None
        client = self._client = self._client or five(self._cluster, self._name, "writer", **FOREVER)
        packet_id = len(self.acknowledged) % 65535 + 1
        if not self._received:
            packet = Publish("t/x", payload, self._qos, packet_id=packet_id, dup=again and self._sent)
            self._sent = True
            client.send(packet)
            if self._qos == 2:
                self._take(client, Pubrec)
                self._received = True
        if self._received:
            client.send(Pubrel(packet_id=packet_id))
        self._take(client, Pubcomp if self._qos == 2 else Puback)
        self._sent = self._received = False
        self.acknowledged.append(payload)

    def _take(self, client: SocketClient, kind: type) -> None:
        answer = client.receive()
        if answer is None:
            raise ConnectionResetError
        assert isinstance(answer, kind), answer


class Receiver:
    """Reads a stream over connections, as a client does that keeps its state of QoS 2."""

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.found: list[bytes] = []
        self._unreleased: set[int] = set()

    def connect(self, cluster: Logging, name: str) -> None:
        self.client = five(cluster, name, "reader", **FOREVER)
        assert self.client.connack is not None
        if not self.client.connack.session_present:
            subscribe(self.client, "$stream/1h/t/#", self.qos)

    def leave(self) -> None:
        leave(self.client)

    def finished(self) -> bool:
        """Whether nothing more has come but the ends of exchanges."""
        return all(isinstance(packet, Pubrel) for packet in self.client.ping())

    def step(self) -> None:
        packet = self.client.receive()
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            self.client.send(Pubcomp(packet_id=packet.packet_id))
            return
        assert isinstance(packet, Publish), packet
        if packet.packet_id not in self._unreleased:
            self.found.append(packet.payload)
        assert packet.qos == self.qos
        if self.qos == 2:
            self._unreleased.add(packet.packet_id)
            self.client.send(Pubrec(packet_id=packet.packet_id))
        else:
            self.client.send(Puback(packet_id=packet.packet_id))


def test_since_is_parsed() -> None:
    now = 1_700_000_000_000_000
    assert parse_since("earliest", now).since == 0
    assert parse_since("now", now).since == now
    assert parse_since("90s", now).since == now - 90_000_000
    assert parse_since("1w", now).since == now - 604_800_000_000
    assert parse_since("999999w", now).since == 0
    assert parse_since("1970-01-01T00:00:02Z", now).since == 2_000_000
    place = parse_since("a-1f:1700000000000-500:3", now)
    assert place.places == {"a-1f": (1_700_000_000_000, 500, 3)} and place.since == now - 2_000_000
    for wrong in ("", "s", "10", "x", "1.5h", "-1h", "a:1-2", "1e3s", "٣s"):
        with pytest.raises(ValueError, match="SINCE"):
            parse_since(wrong, now)
