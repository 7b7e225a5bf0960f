"""The sink without Spark: rows as packets, and the plain client against real brokers that go, refuse and limit."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from flockmq.cluster.analytics.errors import BrokerError, OptionError, RowError
from flockmq.cluster.analytics.sink.options import BrokerAddress, parse_options
from flockmq.cluster.analytics.sink.packets import Encoder, Packet
from flockmq.cluster.analytics.sink.publisher import Publisher
from tests.harness.broker_process import BrokerProcess
from tests.harness.certificates import Authority
from tests.harness.mosquitto_process import MosquittoProcess
from tests.harness.socket_client import SocketClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A node with SQLite: acknowledged messages outlive it."""
    process = BrokerProcess(tmp_path, "sqlite").start()
    yield process
    process.close()


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def packets(rows: pa.RecordBatch, level: int = 5, qos: int = 1, retain: bool = False) -> Iterator[Packet]:
    return Encoder(level, qos, retain).packets(rows)


def publish(port: int, rows: pa.RecordBatch, **options: object) -> None:
    given = {name: str(value) for name, value in options.items()}
    parsed = parse_options({"url": f"mqtt://127.0.0.1:{port}", "patience": "20", **given})
    with Publisher(parsed) as publisher:
        publisher.publish(packets(rows, parsed.level, parsed.qos, parsed.retain))
        publisher.finish()


def subscriber(port: int, qos: int = 1) -> SocketClient:
    """A client with the session `reader`, which stays."""
    client = SocketClient(port, "reader", level=5, clean_start=False, properties={"session_expiry_interval": 600})
    assert client.subscribe(("#", qos)) == [qos]
    return client


def received(client: SocketClient, count: int) -> list[Publish]:
    """So many messages; each of QoS 1 is acknowledged."""
    found: list[Publish] = []
    while len(found) < count:
        packet = client.receive()
        if isinstance(packet, Publish):
            found.append(packet)
            if packet.qos == 1:
                client.send(Puback(packet_id=packet.packet_id))
        else:
            assert packet is not None
    return found


# ---- options ----


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker.example", BrokerAddress("broker.example", 1883)),
        ("mqtts://ada:a%40b@[::1]:8884/", BrokerAddress("::1", 8884, True, "ada", "a@b")),
        ("mqtts://broker.example", BrokerAddress("broker.example", 8883, True)),
    ],
)
def test_addresses(url: str, address: BrokerAddress) -> None:
    assert parse_options({"URL": url}).broker == address


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "the option url is missing"),
        ({"url": "broker.example:1883"}, "expected a URL such as mqtt://HOST:PORT"),
        ({"url": "mqtt://u:secret@broker.example/path"}, "expected a URL"),
        ({"url": "mqtt://h", "qoss": "1"}, "did you mean qos?"),
        ({"url": "mqtt://h", "qos": "3"}, "option qos: expected 0, 1 or 2, not '3'"),
        ({"url": "mqtt://h", "inflight": "0"}, "expected a number from 1 to 65535"),
        ({"url": "mqtt://h", "protocol": "3.1"}, "expected 5 or 3.1.1"),
        ({"url": "mqtt://h", "caFile": "ca.pem"}, "write mqtts://"),
        ({"url": "mqtts://h", "certFile": "a.pem"}, "a certificate needs its key"),
    ],
)
def test_wrong_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"topic": [None]}, "a row has no topic"),
        ({"topic": [""]}, "'' is no topic name"),
        ({"topic": ["site/+/temp"]}, "is no topic name"),
        ({"topic": ["a\0"]}, "is no topic name"),
        ({"topic": ["ä" * 32768]}, "a topic has 65536 bytes; MQTT allows 65535"),
        ({"qos": [3]}, "the QoS of a message to 'a' must be 0, 1 or 2, not 3"),
        ({"expiry": [-1]}, "the expiry of a message must be from 0 to 4294967295 seconds, not -1"),
        ({"user_properties": [[("k", "v" * 65536)]]}, "a user_properties has 65536 bytes"),
    ],
)
def test_wrong_rows(columns: dict[str, list[Any]], text: str) -> None:
    with pytest.raises(RowError) as caught:
        list(packets(batch(**{"topic": ["a"], "payload": [b""], **columns})))
    assert text in str(caught.value)


# ---- messages ----


def test_messages_of_all_kinds(broker: BrokerProcess) -> None:
    rows = batch(
        topic=["a", "ü/€", "c" * 65535, "e", "a"],
        payload=[b"\0\xff", "Grüße".encode(), b"x" * 200_000, b"5", None],
        qos=[0, 1, None, 1, 2],
        retain=[True, None, None, None, False],
        expiry=[None, 3600, None, None, 0xFFFFFFFF],
        content_type=["text/plain", None, None, "", None],
        response_topic=[None, "answers", None, None, None],
        correlation_data=[None, b"\1\2", None, None, None],
        user_properties=pa.array([None, [("k", "1"), ("l", "2")], None, None, []], pa.map_(pa.string(), pa.string())),
    )
    with subscriber(broker.port, qos=2) as client:
        publish(broker.port, rows)
        found = received(client, 5)
    assert [(one.topic_name, one.payload, one.qos) for one in found] == [
        ("a", b"\0\xff", 0),
        ("ü/€", "Grüße".encode(), 1),
        ("c" * 65535, b"x" * 200_000, 1),
        ("e", b"5", 1),
        ("a", b"", 2),
    ]
    assert found[0].properties == {"content_type": "text/plain"}
    assert found[1].properties == {
        "message_expiry_interval": 3600,
        "response_topic": "answers",
        "correlation_data": b"\1\2",
        "user_property": [("k", "1"), ("l", "2")],
    }
    with SocketClient(broker.port, "later", level=5) as late:
        late.send(Subscribe(packet_id=1, topic_filters=[("#", 0)]))
        [kept] = received(late, 1)
        assert (kept.topic_name, kept.payload, kept.retain) == ("a", b"\0\xff", True)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_all_arrive_in_order(broker: BrokerProcess, qos: int, protocol: str) -> None:
    count = 3000
    payloads = [b"%d" % number for number in range(count)]
    with subscriber(broker.port) as client:
        reader = []
        thread = threading.Thread(target=lambda: reader.extend(received(client, count)))
        thread.start()
        publish(broker.port, batch(topic=["t"] * count, payload=payloads), qos=qos, protocol=protocol, inflight=700)
        thread.join()
    assert [one.payload for one in reader] == payloads


def test_messages_without_a_subscriber_are_acknowledged(broker: BrokerProcess) -> None:
    """PUBACK has the reason code 0x10 then."""
    publish(broker.port, batch(topic=["alone"] * 2000, payload=[b""] * 2000))


# ---- brokers that go ----


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_is_killed_gets_the_rest_when_it_is_back(broker: BrokerProcess, qos: int) -> None:
    """What was acknowledged before is not sent again, but for the messages under way."""
    subscriber(broker.port).close()
    options = parse_options({"url": f"mqtt://127.0.0.1:{broker.port}", "qos": str(qos), "inflight": "50"})
    payloads = [b"%d" % number for number in range(600)]
    with Publisher(options) as publisher:
        publisher.publish(packets(batch(topic=["t"] * 300, payload=payloads[:300]), qos=qos))
        broker.kill()
        starts = threading.Thread(target=broker.start)
        starts.start()
        publisher.publish(packets(batch(topic=["t"] * 300, payload=payloads[300:]), qos=qos))
        publisher.finish()
        starts.join()
    with SocketClient(broker.port, "reader", level=5, clean_start=False) as client:
        found, known = [], set()
        while len(known) < len(payloads):
            [message] = received(client, 1)
            found.append(message.payload)
            known.add(message.payload)
    assert known == {*payloads}
    assert len(found) <= len(payloads) + 50


def test_a_broker_that_does_not_come_back(broker: BrokerProcess) -> None:
    options = parse_options({"url": f"mqtt://127.0.0.1:{broker.port}", "patience": "0.5"})
    with Publisher(options) as publisher:
        broker.kill()
        publisher.publish(packets(batch(topic=["t"], payload=[b""])))
        with pytest.raises(BrokerError, match=f"can't connect to mqtt://127.0.0.1:{broker.port}"):
            publisher.finish()


def test_a_broker_that_is_not_there() -> None:
    with pytest.raises(BrokerError, match=r"can't connect to mqtt://127\.0\.0\.1:1: .*refused"):
        Publisher(parse_options({"url": "mqtt://ada:secret@127.0.0.1:1", "patience": "0"}))


# ---- brokers that refuse ----


def test_messages_that_a_user_may_not_send(tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic write open/#\n")
    process = BrokerProcess(tmp_path, settings={"auth.acl_file": rules}).start()
    try:
        publish(process.port, batch(topic=["open/a"], payload=[b""]))
        with pytest.raises(BrokerError, match="has refused a message to closed/a: not authorized"):
            publish(process.port, batch(topic=["open/a", "closed/a"], payload=[b"", b""]))
    finally:
        process.close()


def test_a_wrong_password(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    process = BrokerProcess(tmp_path, settings={"auth.password_file": users}).start()
    try:
        for protocol in ("5", "3.1.1"):
            with pytest.raises(BrokerError, match=r"has refused the connection: (bad user name|not authorized)") as it:
                publish(
                    process.port,
                    batch(topic=["t"], payload=[b""]),
                    url=f"mqtt://a:secret@127.0.0.1:{process.port}",
                    protocol=protocol,
                )
            assert "secret" not in str(it.value)
    finally:
        process.close()


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    process = BrokerProcess(
        tmp_path, settings={"tls.certificate": server.cert, "tls.key": server.key}, listen="mqtts://127.0.0.1:0"
    ).start()
    rows = batch(topic=["t"] * 20_000, payload=[b"x" * 100] * 20_000)
    try:
        publish(process.port, rows, url=f"mqtts://localhost:{process.port}", caFile=authority.ca)
        with pytest.raises(BrokerError, match="certificate verify failed"):
            publish(process.port, rows, url=f"mqtts://localhost:{process.port}", patience="0")
    finally:
        process.close()


# ---- Mosquitto ----


@pytest.mark.skipif(not MosquittoProcess.is_installed(), reason="no Mosquitto")
def test_mosquitto_with_limits(tmp_path: Path) -> None:
    """A Receive Maximum of 20, QoS 1 at most, no retained messages, and small packets."""
    process = MosquittoProcess(
        tmp_path, "max_inflight_messages 20", "max_qos 1", "retain_available false", "max_packet_size 1000"
    ).start()
    try:
        with SocketClient(process.port, "reader", level=5) as client:
            client.subscribe(("#", 1))
            payloads = [b"%d" % number for number in range(500)]
            reader: list[Publish] = []
            thread = threading.Thread(target=lambda: reader.extend(received(client, 500)))
            thread.start()
            publish(process.port, batch(topic=["t"] * 500, payload=payloads))
            thread.join()
            assert [one.payload for one in reader] == payloads
        for columns, text in (
            ({"qos": [2]}, "takes QoS 1 at most"),
            ({"retain": [True]}, "has no retained messages"),
            ({"payload": [b"x" * 1000]}, "a message to t is too large: 1000 bytes at most"),
            ({"payload": [b"x" * 995]}, "a message to t is too large: 1000 bytes at most"),  # with its head
        ):
            with pytest.raises(BrokerError, match=text):
                publish(process.port, batch(**{"topic": ["t"], "payload": [b""], **columns}))
    finally:
        process.stop()
