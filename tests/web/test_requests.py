"""Messages to single clients: each has one answer, or a clear failure."""

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from flockmq._speedups.codec.packets import Puback, Publish, Pubrec
from flockmq.broker.admin.http.tokens import add
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.web.http_client import HttpClient, Reply

HTTP = {"http.listen": "127.0.0.1:0"}


@pytest.fixture(params=["sqlite", "cluster"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker(store: str, start_broker: StartBroker, start_cluster: StartCluster) -> Broker:
    """A node alone, or the first of two, whose clients are at the second."""
    return start_broker(HTTP) if store == "sqlite" else start_cluster(HTTP, nodes="ab")


def node_of(broker: Any, store: str, name: str) -> BrokerProcess:
    found = broker if store == "sqlite" else broker[name]
    assert isinstance(found, BrokerProcess)
    return found


@pytest.fixture
def api(broker: Any, store: str) -> HttpClient:
    return HttpClient(node_of(broker, store, "a"))


@pytest.fixture
def port(broker: Any, store: str) -> int:
    return node_of(broker, store, "b").port


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def send(api: HttpClient, client_id: str, topic: str, payload: str = "", **body: object) -> Reply:
    return api.ask("POST", "/client/message", {"topic": topic, "payload": payload, **body}, client_id=client_id)


class Responder:
    """A client of paho that responds to each request."""

    def __init__(self, port: int, client_id: str, level: int = paho.MQTTv5) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=level)
        self.got: list[paho.MQTTMessage] = []
        self.client.on_message = self._respond
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        until(self.client.is_connected)

    def _respond(self, client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        self.got.append(message)
        if message.properties is None:
            client.publish(f"{message.topic}/done", b"done " + message.payload, 1)
            return
        if not hasattr(message.properties, "ResponseTopic"):
            return
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = message.properties.CorrelationData
        client.publish(message.properties.ResponseTopic, b"done " + message.payload, 1, properties=properties)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("level", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_a_request_has_its_response(api: HttpClient, port: int, level: int) -> None:
    responder = Responder(port, "pump", level)
    reply = send(api, "pump", "pump/get", "state", wait="response", response_topic="pump/get/done")
    assert reply.status == 200, reply
    found = reply.json
    assert (found["outcome"], found["response"]["payload"], found["response"]["qos"]) == ("responded", "done state", 1)
    assert found["response"]["topic"] == "pump/get/done"
    (message,) = responder.got
    assert (message.topic, message.qos, message.retain) == ("pump/get", 1, False)
    responder.close()


def test_many_at_a_time_are_not_confused(api: HttpClient, port: int, pool: ThreadPoolExecutor) -> None:
    responders = [Responder(port, f"pump-{number}") for number in range(3)]

    def ask(number: int) -> str:
        reply = send(api, f"pump-{number % 3}", "get", f"{number}", wait="response", response_topic="all/done")
        return str(reply.json["response"]["payload"])

    assert list(pool.map(ask, range(60))) == [f"done {number}" for number in range(60)]
    for responder in responders:
        responder.close()


def test_the_command(api: HttpClient, port: int) -> None:
    responder = Responder(port, "pump")
    command = ("request", "pump", "get")
    assert api.command(*command, "-m", "x", "--response-topic", "done") == "done x"
    assert api.command(*command, "-m", "x") == "acknowledged by the client\n"
    assert api.command(*command, "-m", "x", "-q", "0") == "sent\n"
    assert json.loads(api.command(*command, "-r", "done", "--json"))["outcome"] == "responded"
    responder.close()
    assert "no such client is connected" in api.command(*command, status=1)
    assert "exclude each other" in api.command(*command, "-r", "done", "--wait", "ack", status=2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_it_waits_for_the_acknowledgement(
    api: HttpClient, port: int, pool: ThreadPoolExecutor, qos: int, persistent: bool
) -> None:
    with SocketClient(port, "pump", clean_start=not persistent) as client:
        waiting = pool.submit(send, api, "pump", "set", "on", wait="ack", qos=qos)
        packet = client.receive()
        assert isinstance(packet, Publish) and (packet.topic_name, packet.payload, packet.qos) == ("set", b"on", qos)
        assert not waiting.done()
        client.send(Puback(packet.packet_id) if qos == 1 else Pubrec(packet.packet_id))
        assert waiting.result().json["outcome"] == "acknowledged"


def test_a_refusal_of_the_client_is_a_failure(api: HttpClient, port: int, pool: ThreadPoolExecutor) -> None:
    with SocketClient(port, "pump", level=5) as client:
        waiting = pool.submit(send, api, "pump", "set", "on", wait="ack")
        client.send(Puback(client.receive().packet_id, 0x99))
        reply = waiting.result()
        assert (reply.status, reply.json["detail"]) == (409, "PUBACK with a failure")
        large = send(api, "pump", "set", "x" * 500)
    with SocketClient(port, "pump", level=5, properties={"maximum_packet_size": 100}):
        large = send(api, "pump", "set", "x" * 500)
        assert (large.status, large.json["detail"]) == (409, "the client takes no packet of its size")


def test_time_is_over(api: HttpClient, port: int) -> None:
    with SocketClient(port, "pump") as client:
        reply = send(api, "pump", "set", "1", wait="ack", timeout=0.3)
        assert (reply.status, reply.json["detail"]) == (504, "the client has not acknowledged it within 0.3 s")
        client.send(Puback(client.receive().packet_id))
        reply = send(api, "pump", "set", "2", wait="response", response_topic="done", timeout=0.3)
        assert (reply.status, reply.json["detail"]) == (504, "the client has not acknowledged it within 0.3 s")


def test_a_client_that_is_gone(api: HttpClient, port: int, pool: ThreadPoolExecutor) -> None:
    assert send(api, "nobody", "set").status == 404
    with SocketClient(port, "pump") as client:
        waiting = pool.submit(send, api, "pump", "set", "on", wait="ack")
        client.receive()
    reply = waiting.result()
    assert (reply.status, reply.json["detail"]) == (502, "the connection of the client has ended")
    assert send(api, "pump", "set").status == 404


def test_a_request_that_was_given_up_is_never_sent(api: HttpClient, port: int, pool: ThreadPoolExecutor) -> None:
    """The client has no room for it: `receive_maximum`."""
    with SocketClient(port, "pump", level=5, properties={"receive_maximum": 1}) as client:
        first = pool.submit(send, api, "pump", "set", "first", wait="ack")
        packet = client.receive()
        reply = send(api, "pump", "set", "second", wait="ack", timeout=0.5)
        assert (reply.status, reply.json["detail"]) == (504, "it could not be sent yet within 0.5 s")
        time.sleep(2)  # it expires
        client.send(Puback(packet.packet_id))
        assert first.result().status == 200
        client.subscribe(("mark", 0))
        api.ask("POST", "/messages", {"topic": "mark"})
        assert client.receive().topic_name == "mark"


def test_a_client_that_returns_to_its_session_acknowledges(
    api: HttpClient, port: int, pool: ThreadPoolExecutor
) -> None:
    with SocketClient(port, "pump", clean_start=False) as client:
        waiting = pool.submit(send, api, "pump", "set", "on", wait="ack")
        client.receive()
    with SocketClient(port, "pump", clean_start=False) as client:
        again = client.receive()
        assert again.dup
        client.send(Puback(again.packet_id))
        assert waiting.result().json["outcome"] == "acknowledged"


def test_another_client_can_not_respond(api: HttpClient, port: int, pool: ThreadPoolExecutor) -> None:
    responder = Responder(port, "pump")
    responder.client.on_message = None
    ask = {"wait": "response", "response_topic": "done", "timeout": 0.5, "properties": {"correlation_data": "AAAA"}}
    with SocketClient(port, "eve", level=5) as eve:
        waiting = pool.submit(send, api, "pump", "get", **ask)
        for correlation in (b"\x00\x00\x00", b"other"):
            eve.send(Publish("done", b"forged", properties={"correlation_data": correlation}))
        eve.ping()
        reply = waiting.result()
    assert (reply.status, reply.json["detail"]) == (
        504,
        "the client has acknowledged it, without a response within 0.5 s",
    )
    responder.close()


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"topic": "a/+"}, 400, "topic"),
        ({"topic": "$SYS/x"}, 400, "topic"),
        ({"topic": "a", "wait": "response"}, 422, "response_topic"),
        ({"topic": "a", "wait": "response", "response_topic": "a/#"}, 400, "response_topic"),
        ({"topic": "a", "wait": "ack", "qos": 0}, 422, "qos"),
        ({"topic": "a", "timeout": 61}, 400, "timeout"),
        ({"topic": "a", "payload": "*", "encoding": "base64"}, 422, "payload"),
    ],
)
@pytest.mark.parametrize("store", ["sqlite"])
def test_a_wrong_request(api: HttpClient, body: dict[str, object], status: int, detail: str) -> None:
    reply = api.ask("POST", "/client/message", body, client_id="pump")
    assert reply.status == status, reply
    assert detail in reply.json["detail"]


@pytest.mark.parametrize("store", ["sqlite"])
def test_rights_and_roles_hold(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("ann")
    files.rules("user ann", "topic read open/#")
    path = tmp_path / "tokens"
    tokens = {role: add(path, role, role) for role in ("admin", "viewer")}
    node = start_broker(files.settings(http__listen="127.0.0.1:0", http__tokens_file=path))
    api, reader = HttpClient(node, tokens["admin"]), HttpClient(node, tokens["viewer"])
    with SocketClient(node.port, "pump", username="ann", password=b"ann") as client:
        reply = send(api, "pump", "closed/set", "on")
        assert (reply.status, reply.json["detail"]) == (409, "the client may not read it")
        assert send(reader, "pump", "open/set", "on").status == 403
        assert send(api, "pump", "open/set", "on").status == 200
        assert client.receive().topic_name == "open/set"


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_token_of_a_tenant_reaches_its_clients_only(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = {tenant: add(path, tenant or "boss", "admin", tenant) for tenant in ("acme", "globex", "")}
    rules = [{"name": "acme", "listener": "default"}]
    node = start_broker(HTTP | {"http.tokens_file": str(path), "tenants": json.dumps(rules)})
    acme, globex, boss = (HttpClient(node, tokens[name]) for name in ("acme", "globex", ""))
    responder = Responder(node.port, "pump")
    ask = {"wait": "response", "response_topic": "done"}
    assert send(acme, "pump", "get", "x", **ask).json["response"]["topic"] == "done"
    assert send(globex, "pump", "get", "x", **ask).status == 404
    assert send(boss, "$tenant/acme/pump", "get", "x", **ask).json["response"]["topic"] == "$tenant/acme/done"
    assert [message.topic for message in responder.got] == ["get", "get"]
    responder.close()


def test_other_subscribers_get_nothing_of_it(api: HttpClient, port: int) -> None:
    responder = Responder(port, "pump")
    with SocketClient(port, "other") as other:
        other.subscribe(("get", 1), ("done", 1))
        send(api, "pump", "get", "x", wait="response", response_topic="done")
        message = other.receive()
        assert message.topic_name == "done"  # an ordinary message of the responder
        other.ping()
    responder.close()


def test_binary_payloads(api: HttpClient, port: int) -> None:
    responder = Responder(port, "pump")
    data = base64.b64encode(b"\x00\xff").decode()
    reply = send(api, "pump", "get", data, encoding="base64", wait="response", response_topic="done")
    assert base64.b64decode(reply.json["response"]["payload"]) == b"done \x00\xff"
    assert responder.got[0].payload == b"\x00\xff"
    responder.close()
