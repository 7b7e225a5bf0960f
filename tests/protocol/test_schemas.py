"""`[[schemas]]`: payloads that do not fit are refused, marked or routed, at all levels and with every QoS."""

import json
import signal
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties

from flockmq._speedups.codec.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.broker.cli import main
from flockmq.broker.hooks.api import Client, Hooks, Message
from tests.conftest import StartBroker
from tests.harness.broker_process import BrokerProcess
from tests.harness.command import flockmq
from tests.harness.descriptors import descriptor_set
from tests.harness.socket_client import SocketClient
from tests.harness.transaction_client import DONE, WRONG_CHUNK, TransactionClient, row
from tests.security.access_files import AccessFiles, counted, login

JSON = {"type": "object", "properties": {"temp": {"type": "number", "maximum": 100}}, "required": ["temp"]}
AVRO = {"type": "record", "name": "R", "fields": [{"name": "temp", "type": "double"}]}
GOOD, BAD = b'{"temp": 21.5}', b'{"temp": "hot"}'
MISFIT = 0x99  # Payload format invalid
MARK = ("flockmq-schema", "mismatch")
LEVELS = pytest.mark.parametrize("level", [4, 5])


@pytest.fixture(params=["memory", "cluster"])
def store(request: pytest.FixtureRequest) -> str:
    """The node that a client is connected to judges its messages."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with schemas of each kind."""
    (tmp_path / "reading.json").write_text(json.dumps(JSON))
    (tmp_path / "reading.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "reading.desc").write_bytes(descriptor_set("message Reading\ndouble temp\nstring unit"))
    return tmp_path


def rules(folder: Path, *tables: dict[str, Any]) -> dict[str, object]:
    """Settings with tables of schemas, and figures by HTTP."""
    named = [{**table, "file": str(folder / table.get("file", "reading.json"))} for table in tables]
    return {"schemas": json.dumps(named), "http.listen": "127.0.0.1:0"}


def publish(client: SocketClient, topic: str, payload: bytes, qos: int, **fields: Any) -> int:
    """Publish; returns the reason code of the acknowledgement. QoS 0 has none: 0."""
    client.send(Publish(topic, payload, qos, packet_id=1 if qos else 0, **fields))
    if qos == 0:
        return 0
    packet = client.receive()
    if isinstance(packet, Pubrec) and packet.reason_code < 0x80:
        client.send(Pubrel(1))
        packet = client.receive()
    assert isinstance(packet, (Puback, Pubrec, Pubcomp))
    return 0 if packet.reason_code == 0x10 else packet.reason_code


def take(client: SocketClient) -> tuple[str, bytes, Any]:
    """Topic, payload and user properties of the next message, acknowledged."""
    packet = client.receive()
    assert isinstance(packet, Publish)
    if packet.qos == 1:
        client.send(Puback(packet.packet_id))
    elif packet.qos == 2:
        client.send(Pubrec(packet.packet_id))
        assert client.receive() == Pubrel(packet.packet_id)
        client.send(Pubcomp(packet.packet_id))
    return packet.topic_name, packet.payload, packet.properties.get("user_property")


@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_refuse_mark_and_route(start_broker: StartBroker, folder: Path, level: int, qos: int) -> None:
    broker = start_broker(
        rules(
            folder,
            {"filter": "refuse/+"},
            {"filter": ["mark/#", "also/#"], "on_mismatch": "mark"},
            {"filter": "route/#", "on_mismatch": "route", "route": "bad/json"},
        )
    )
    code = MISFIT if level == 5 and qos else 0
    with SocketClient(broker.port, "s", level=5) as all_, SocketClient(broker.port, "p", level=level) as client:
        all_.subscribe(("#", 2))
        for topic in ("refuse/a", "mark/a", "also", "route/a", "other"):
            assert publish(client, topic, GOOD, qos) == 0
            assert take(all_) == (topic, GOOD, None)
        assert publish(client, "refuse/a", BAD, qos) == code
        assert publish(client, "refuse/a", b'{"temp": 101}', qos) == code
        assert publish(client, "refuse/a/b", BAD, qos) == 0  # no schema
        assert take(all_) == ("refuse/a/b", BAD, None)
        for topic in ("mark/a", "also"):
            assert publish(client, topic, BAD, qos) == 0
            assert take(all_) == (topic, BAD, [MARK])
        assert publish(client, "route/a/b", BAD, qos) == 0
        assert take(all_) == ("bad/json/route/a/b", BAD, None)
        assert publish(client, "refuse/a", GOOD, qos) == 0
        assert take(all_) == ("refuse/a", GOOD, None)
    broker.wait_for_log(
        "payload does not fit the schema of its topic", filter="refuse/+", client_id="p", topic="refuse/a"
    )


@pytest.mark.one_process
def test_figures(start_broker: StartBroker, folder: Path) -> None:
    broker = start_broker(rules(folder, {"filter": "a"}, {"filter": "b", "on_mismatch": "mark"}))
    with SocketClient(broker.port, "p", level=5) as client:
        assert [publish(client, topic, BAD, 1) for topic in ("a", "a", "b", "c")] == [MISFIT, MISFIT, 0, 0]
    assert counted(broker, "schema_mismatches") == 3
    assert counted(broker, r'schema_filter_mismatches_total{filter="a",on_mismatch="refuse",node="[^"]*"}') == 2


@pytest.mark.one_process
@LEVELS
@pytest.mark.parametrize(
    ("file", "good", "bad"),
    [
        ("reading.json", GOOD, BAD),
        ("reading.avsc", b"\0" * 8, b"\0" * 7),
        ("reading.desc", b"\x12\x01C", b"\x12\x02C"),
        ("reading.desc#site.Reading", b"", b"text"),
        ("sparkplug", b"\x18\x07", b'{"online": true}'),
    ],
)
def test_kinds_of_schemas(
    start_broker: StartBroker, folder: Path, level: int, file: str, good: bytes, bad: bytes
) -> None:
    named = "sparkplug" if file == "sparkplug" else str(folder / file)
    broker = start_broker({"schemas": json.dumps([{"filter": "#", "file": named}])})
    with SocketClient(broker.port, "s") as subscriber, SocketClient(broker.port, "p", level=level) as client:
        subscriber.subscribe(("#", 0))
        assert publish(client, "t", bad, 1) == (MISFIT if level == 5 else 0)
        assert publish(client, "t", good, 1) == 0
        assert take(subscriber) == ("t", good, None)


@pytest.mark.one_process
def test_the_reason_is_in_the_acknowledgement(start_broker: StartBroker, folder: Path) -> None:
    """A client of another library gets it, too."""
    broker = start_broker(rules(folder, {"filter": "#"}))
    codes: list[tuple[int, str]] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "p", protocol=MQTTProtocolVersion.MQTTv5)

    def on_publish(_: Any, __: Any, ___: int, code: Any, properties: Properties) -> None:
        codes.append((code.value, getattr(properties, "ReasonString", "")))

    client.on_publish = on_publish
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    client.publish("t", BAD, 1).wait_for_publish(30)  # with QoS 2 it sends PUBREL for a PUBREC that refuses
    client.disconnect()
    client.loop_stop()
    assert codes == [(MISFIT, "the payload does not fit the schema of the topic")]


@pytest.mark.one_process
def test_retained_messages(start_broker: StartBroker, folder: Path) -> None:
    """A refused one is not kept, a routed one is kept where it was routed, and no payload clears."""
    settings = rules(folder, {"filter": "a"}, {"filter": "b", "on_mismatch": "route", "route": "bad"})
    broker = start_broker(settings)
    with SocketClient(broker.port, "p", level=5) as client:
        assert publish(client, "a", GOOD, 1, retain=True) == 0
        assert publish(client, "a", BAD, 1, retain=True) == MISFIT
        assert publish(client, "b", BAD, 1, retain=True) == 0
        with SocketClient(broker.port, "s") as subscriber:
            subscriber.subscribe(("#", 0))
            assert sorted(take(subscriber)[:2] for _ in range(2)) == [("a", GOOD), ("bad/b", BAD)]
        assert publish(client, "a", b"", 1, retain=True) == 0
        assert publish(client, "a", b"", 1) == MISFIT
    with SocketClient(broker.port, "s") as subscriber:
        subscriber.subscribe(("#", 0))
        assert take(subscriber)[:2] == ("bad/b", BAD)
        assert subscriber.ping() == []


@pytest.mark.one_process
def test_delayed_messages_are_judged_when_they_are_sent(start_broker: StartBroker, folder: Path) -> None:
    settings = rules(
        folder,
        {"filter": "a"},
        {"filter": "b", "on_mismatch": "route", "route": "bad"},
        {"filter": "$delayed/#"},  # a topic's own schema counts
    )
    broker = start_broker(settings)
    with SocketClient(broker.port, "s", level=5) as subscriber, SocketClient(broker.port, "p", level=5) as client:
        subscriber.subscribe(("#", 0))
        assert publish(client, "$delayed/0/a", BAD, 1) == MISFIT
        for topic, payload in (("a", GOOD), ("b", BAD), ("c", BAD)):
            assert publish(client, f"$delayed/0/{topic}", payload, 1) == 0
        assert sorted(take(subscriber)[:2] for _ in range(3)) == [("a", GOOD), ("bad/b", BAD), ("c", BAD)]


@pytest.mark.one_process
def test_messages_of_transactions(start_broker: StartBroker, folder: Path) -> None:
    """One that is refused refuses its chunk."""
    settings = rules(
        folder,
        {"filter": "a"},
        {"filter": "b", "on_mismatch": "route", "route": "bad"},
        {"filter": "c", "on_mismatch": "mark"},
    )
    broker = start_broker(settings)
    with SocketClient(broker.port, "s", level=5) as subscriber, TransactionClient(broker.port) as client:
        subscriber.subscribe(("#", 0))
        assert client.stage("q/0/a/0", row("d", BAD), row("a", BAD)) == WRONG_CHUNK == MISFIT
        assert client.stage("q/0/a/0", *(row(topic, BAD) for topic in "bcd"), row("a", GOOD)) == DONE
        assert client.commit("q/0", a=1) == DONE
        assert sorted(take(subscriber) for _ in range(4)) == [
            ("a", GOOD, None),
            ("bad/b", BAD, None),
            ("c", BAD, [MARK]),
            ("d", BAD, None),
        ]


@pytest.mark.one_process
@LEVELS
def test_wills(start_broker: StartBroker, folder: Path, level: int) -> None:
    """A will is judged at CONNECT; its client is refused, or the will is marked."""
    settings = rules(
        folder,
        {"filter": "a"},
        {"filter": "b", "on_mismatch": "route", "route": "bad"},
        {"filter": "c", "on_mismatch": "mark"},
    )
    broker = start_broker(settings)
    with SocketClient(broker.port, "s", level=5) as subscriber:
        subscriber.subscribe(("#", 0))
        for topic, payload, code in (("a", BAD, MISFIT), ("b", BAD, MISFIT), ("c", BAD, 0), ("a", GOOD, 0)):
            with SocketClient(broker.port, level=level) as client:
                client.send(Connect("w", will_topic=topic, will_payload=payload, protocol_level=level))
                connack = client.receive()
                assert isinstance(connack, Connack)
                assert connack.reason_code == (0 if code == 0 else code if level == 5 else 3)
            if code == 0:
                assert take(subscriber) == (topic, payload, [MARK] if payload == BAD else None)


@pytest.mark.one_process
def test_rewritten_topics_and_rights(start_broker: StartBroker, folder: Path) -> None:
    """The topic that a rewrite rule gives counts. A client needs no right to the topic to which a message is routed."""
    files = AccessFiles(folder)
    files.users("ada", "bob")
    files.rules("user ada", "topic write new/#", "user bob", "topic read #")
    settings = rules(folder, {"filter": "new/+", "on_mismatch": "route", "route": "bad"})
    broker = start_broker(files.settings() | settings | {"mqtt.rewrite": '[{"source": "old/+", "target": "new/$1"}]'})
    with login(broker, "bob", "b") as bob, login(broker, "ada", "a") as ada:
        bob.send("subscribe 1 #:0")
        bob.expect("suback 1 0")
        ada.send("publish old/x wrong", "publish bad/x wrong")
        bob.expect("publish bad/new/x wrong")
        bob.send("pingreq")
        bob.expect("pingresp")
        assert counted(broker, "publish_denied") == 1


@pytest.mark.one_process
def test_tenants(start_broker: StartBroker, folder: Path) -> None:
    """Filters and routes are of names as the clients know them, and a routed message stays with its tenant."""
    files = AccessFiles(folder)
    files.users("ada", "bob", "eve")
    tenants = [{"name": "acme", "user": "ada"}, {"name": "acme", "user": "bob"}, {"name": "other", "user": "eve"}]
    settings = rules(folder, {"filter": "t/#", "on_mismatch": "route", "route": "bad"})
    broker = start_broker(files.settings() | settings | {"tenants": json.dumps(tenants)})
    with login(broker, "bob") as bob, login(broker, "eve") as eve, login(broker, "ada") as ada:
        for client in (bob, eve):
            client.send("subscribe 1 #:0")
            client.expect("suback 1 0")
        ada.send("publish t/1 wrong")
        bob.expect("publish bad/t/1 wrong")
        eve.send("pingreq")
        eve.expect("pingresp")


class Renames(Hooks):
    """Gives messages another topic and another payload."""

    def publish(self, client: Client, message: Message) -> Message:
        return message._replace(topic=message.topic.removeprefix("raw/"), payload=message.payload.strip(b"!"))


@pytest.mark.one_process
def test_hooks_come_before(start_broker: StartBroker, folder: Path) -> None:
    """The message that is published has to fit: its topic and payload are the ones that a hook has made."""
    hooks = {"hooks.load": "tests.protocol.test_schemas:Renames"}
    broker = start_broker(rules(folder, {"filter": "t"}) | hooks)
    with SocketClient(broker.port, "p", level=5) as client:
        assert publish(client, "raw/t", BAD, 1) == MISFIT
        assert publish(client, "t", b"!" + GOOD + b"!", 1) == 0
        assert publish(client, "raw/other", BAD, 1) == 0


@pytest.mark.one_process
def test_a_routed_name_that_is_too_long_is_refused(start_broker: StartBroker, folder: Path) -> None:
    settings = rules(folder, {"filter": "#", "on_mismatch": "route", "route": "bad/json"})
    broker = start_broker(settings | {"limits.max_topic_levels": 3})
    with SocketClient(broker.port, "p", level=5) as client:
        assert publish(client, "a", BAD, 1) == 0
        assert publish(client, "a/b", BAD, 1) == MISFIT
        assert publish(client, "a" * 65_530, BAD, 1) == MISFIT


@pytest.mark.one_process
def test_many_topics(start_broker: StartBroker, folder: Path) -> None:
    """More than plans and remembered schemas: each message is judged, whatever the order."""
    broker = start_broker(rules(folder, {"filter": "odd/+"}) | {"limits.max_inflight": 1000})
    with SocketClient(broker.port, "p", level=5) as client, SocketClient(broker.port, "s") as subscriber:
        subscriber.subscribe(("#", 0))
        for number in range(12_000):
            client.send(Publish(f"{'odd' if number % 2 else 'even'}/{number}", BAD))
        client.send(Publish("odd/1", GOOD))
        expected = [f"even/{number}" for number in range(0, 12_000, 2)] + ["odd/1"]
        assert [take(subscriber)[0] for _ in expected] == expected


@pytest.mark.one_process
def test_reload(start_broker: StartBroker, folder: Path) -> None:
    """SIGHUP reads the files again, and the tables of the configuration; a wrong file changes nothing."""
    config = folder / "flockmq.toml"

    def write(on_mismatch: str) -> None:
        file = json.dumps(str(folder / "reading.json"))
        config.write_text(f'[[schemas]]\nfilter = "t"\nfile = {file}\non_mismatch = "{on_mismatch}"\n')

    def reload(event: str, **values: object) -> None:
        assert isinstance(broker, BrokerProcess)
        since = len(broker.log)
        broker.signal(signal.SIGHUP)
        broker.wait_for_log(event, since, **values)

    write("refuse")
    broker = start_broker(arguments=["--config", str(config)])
    with SocketClient(broker.port, "p", level=5) as client:
        assert [publish(client, "t", payload, 1) for payload in (GOOD, BAD)] == [0, MISFIT]
        (folder / "reading.json").write_text('{"properties": {"temp": {"type": "string"}}}')
        reload("configuration read", changed=f"schemas: {folder / 'reading.json'} read again")
        assert [publish(client, "t", payload, 1) for payload in (GOOD, BAD)] == [MISFIT, 0]
        (folder / "reading.json").write_text("{")
        reload("configuration not changed")
        assert [publish(client, "t", payload, 1) for payload in (GOOD, BAD)] == [MISFIT, 0]
        (folder / "reading.json").write_text(json.dumps(JSON))
        write("mark")
        reload("configuration read")
        assert [publish(client, "t", payload, 1) for payload in (GOOD, BAD)] == [0, 0]
        config.write_text("")
        reload("configuration read")
        assert publish(client, "t", BAD, 1) == 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('filter = "t"\nfile = "FOLDER/none.json"', "schemas, number 1: FOLDER/none.json: No such file"),
        ('filter = "t"\nfile = "FOLDER/a.json"', "schemas, number 1: FOLDER/a.json: no JSON Schema"),
        ('filter = "t"\nfile = "FOLDER/a.json"\non_mismatch = "drop"', '"refuse" or "mark" or "route" for on_mismatch'),
        ('filter = "t"\nfile = "FOLDER/a.json"\non_mismatch = "route"', "a topic for route"),
        ('filter = "t"\nfile = "FOLDER/a.json"\nroute = "bad"', "a topic for route"),
        ('filter = "t"\nfile = "FOLDER/a.json"\non_mismatch = "route"\nroute = "bad/#"', "a topic name for route"),
        ('filter = "t"\nfile = "FOLDER/a.json"\non_mismatch = "route"\nroute = "$SYS"', "does not begin with"),
        ('filter = "a/#/b"\nfile = "FOLDER/a.json"', "topic filters"),
        ('filter = "$share/g/t"\nfile = "FOLDER/a.json"', "without $share/NAME/"),
        ('filter = []\nfile = "FOLDER/a.json"', "topic filters"),
        ('filter = "t"', "tables such as"),
        ('filter = "t"\nfile = "FOLDER/a.json"\nfilters = "t"', "filters"),
    ],
)
def test_wrong_configurations(tmp_path: Path, table: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('{"type": "objekt"}')
    config = tmp_path / "flockmq.toml"
    config.write_text(f"[[schemas]]\n{table}\n".replace("FOLDER", str(tmp_path)))
    assert main(["check-config", "--config", str(config)]) == 2
    assert words.replace("FOLDER", str(tmp_path)) in capsys.readouterr().err


def test_a_node_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    tables = json.dumps([{"filter": "t", "file": str(tmp_path / "a.json")}])
    assert "a.json: Expecting property name" in flockmq("serve", "--set", f"schemas={tables}", status=2)


@pytest.mark.one_process
def test_messages_by_links(start_broker: StartBroker, folder: Path) -> None:
    """A link is a client of both brokers: each checks what it gets."""
    there = start_broker({"schemas": json.dumps([{"filter": "out/#", "file": str(folder / "reading.json")}])})
    topics = ["out/# out 1", "in/# in 1"]
    link = {"far": {"url": f"mqtt://127.0.0.1:{there.port}", "topics": topics, "wanted_only": False}}
    here = start_broker(rules(folder, {"filter": "in/#", "on_mismatch": "mark"}) | {"links": json.dumps(link)})
    here.wait_for_log("link is connected")
    with SocketClient(here.port, "h", level=5) as client, SocketClient(there.port, "t", level=5) as other:
        client.subscribe(("in/#", 1))
        other.subscribe(("out/#", 1))
        for port, topic in ((here.port, "out/1"), (there.port, "in/1")):
            with SocketClient(port, "p", level=5) as publisher:
                assert [publish(publisher, topic, payload, 1) for payload in (BAD, GOOD)] == [0, 0]
        assert take(other)[:2] == ("out/1", GOOD)
        found = [take(client) for _ in range(2)]  # a link adds a user property of its own
        assert [(payload, MARK in properties) for _, payload, properties in found] == [(BAD, True), (GOOD, False)]
    there.wait_for_log("payload does not fit the schema", topic="out/1")
