"""Tenants do not see each other: an attacker tries all that MQTT has for a trace of the neighbour."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from flockmq._speedups.codec.packets import (
    Connect,
    Disconnect,
    Packet,
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
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles

RULES = json.dumps([{"name": "*", "user": "*-device"}])
LEVELS = pytest.mark.parametrize("level", [3, 4, 5])
FILTERS = (
    "#",
    "+/#",
    "+/+",
    "/#",
    "secret/#",
    "$SYS/#",
    "$SYS/broker/connection/#",
    "$tenant/#",
    "$tenant/+/#",
    "$tenant/acme/#",
    "$tenant/acme/secret/word",
    "+/acme/#",
    "$delayed/#",
    "$delayed/+/secret/#",
    "$share/g/#",
    "$share/g/secret/#",
    "$share/g/$tenant/acme/#",
    "$stream/earliest/#",
    "$stream/1h/secret/#",
    "$stream/earliest/$tenant/acme/#",
    "$share/g/$stream/earliest/#",
    "$share/$tenant/acme/#",
)
TOPICS = (
    "secret/word",
    "inbox",
    "jobs/1",
    "$SYS/x",
    "$SYS/broker/connection/c/state",
    "$tenant/acme/inbox",
    "$tenant/acme/jobs/1",
    "$delayed/0/inbox",
    "$delayed/0/$tenant/acme/inbox",
    "$delayed/0/$SYS/x",
    "$delayed/0/$stream/earliest/inbox",
    "$stream/earliest/inbox",
)


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Any) -> Broker:
    """A broker with two tenants, and clients of none."""
    return start_tenants(start_broker, tmp_path)


def start_tenants(start_broker: StartBroker, tmp_path: Any, **more: object) -> Broker:
    """A broker with two tenants, and clients of none."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device", "wrong/name-device")
    return files.start(start_broker, tenants=RULES, auth__allow_anonymous=True, **more)


def client(broker: Broker, tenant: str, client_id: str = "c", level: int = 4, **connect: Any) -> SocketClient:
    """A client of a tenant; "": of none."""
    user = {"username": f"{tenant}-device", "password": f"{tenant}-device".encode()} if tenant else {}
    return SocketClient(broker.port, client_id, level=level, **user, **connect)


def request(sender: SocketClient, packet: Packet, kind: type) -> Any:
    """Send a packet, and take the answer of this kind; earlier packets stay."""
    sender.send(packet)
    before = []
    while not isinstance(answer := sender.receive(), kind):
        if answer is None:
            raise ConnectionResetError("the node has closed the connection")
        before.append(answer)
    sender._packets[:0] = before
    return answer


def publish(sender: SocketClient, topic: str, payload: bytes, qos: int = 1, **more: Any) -> int:
    """Publish until it is acknowledged; returns the reason code."""
    sent = Publish(topic, payload, qos=qos, packet_id=7 if qos else 0, **more)
    if qos == 0:
        sender.send(sent)
        return 0
    answer = request(sender, sent, Puback if qos == 1 else Pubrec)
    if qos == 2 and answer.reason_code < 0x80:
        request(sender, Pubrel(packet_id=7), Pubcomp)
    return int(answer.reason_code)


def messages(receiver: SocketClient) -> list[tuple[str, bytes]]:
    """Topic name and payload of the messages that have come, acknowledged."""
    found = []
    for packet in receiver.ping():
        if isinstance(packet, Publish):
            found.append((packet.topic_name, packet.payload))
            if packet.qos:
                receiver.send((Puback if packet.qos == 1 else Pubrec)(packet_id=packet.packet_id))
    return found


def seen(attacker: SocketClient, act: Callable[[], object]) -> str:
    """All that the client gets of an attempt, in words; empty if the node ends the connection without a word."""
    try:
        act()
        return repr(attacker.ping())
    except ConnectionError as error:
        return str(error)


@LEVELS
def test_both_tenants_have_the_same_names(broker: Broker, level: int) -> None:
    """No topic, client id, group, retained message or will of one tenant is the other's."""
    acme, globex = client(broker, "acme", level=level), client(broker, "globex", level=level)
    with acme, globex:
        for tenant in (acme, globex):
            assert tenant.subscribe(("#", 1), ("$share/g/jobs/+", 1)) == [1, 1]
        for qos in (0, 1, 2):
            publish(acme, "site/1", b"acme-%d" % qos, qos)
            publish(globex, "site/1", b"globex-%d" % qos, qos)
        publish(acme, "site/1", b"acme-kept", retain=True)
        assert messages(acme) == [
            ("site/1", b"acme-0"),
            ("site/1", b"acme-1"),
            ("site/1", b"acme-2"),
            ("site/1", b"acme-kept"),
        ]
        assert messages(globex) == [("site/1", b"globex-0"), ("site/1", b"globex-1"), ("site/1", b"globex-2")]
        publish(acme, "jobs/1", b"job")
        assert messages(acme) == [("jobs/1", b"job")] * 2
        publish(acme, "$delayed/0/later", b"acme-later")
        until(lambda: ("later", b"acme-later") in messages(acme))
        assert messages(globex) == []
        with client(broker, "acme", "d", level) as later, client(broker, "globex", "d", level) as stranger:
            for newcomer in (later, stranger):
                newcomer.subscribe(("+/1", 1))
            assert messages(later) == [("site/1", b"acme-kept")]
            assert messages(stranger) == []


@LEVELS
def test_a_persistent_session_and_its_will_are_the_tenants(broker: Broker, level: int) -> None:
    stays: dict[str, Any] = {"clean_start": False}
    if level == 5:
        stays["properties"] = {"session_expiry_interval": 3600}
    with client(broker, "acme", "watcher", level) as watcher, client(broker, "globex", "watcher", level) as stranger:
        for each in (watcher, stranger):
            each.subscribe(("gone/#", 1))
        with client(
            broker, "acme", "c", level, will_topic="gone/c", will_payload=b"acme-will", will_qos=1, **stays
        ) as acme:
            acme.subscribe(("inbox", 1))
            with client(broker, "globex", "c", level, **stays) as globex:  # no take-over
                assert globex.connack is not None and not globex.connack.session_present
                assert globex.ping() == []
                assert acme.ping() == []
        until(lambda: ("gone/c", b"acme-will") in messages(watcher))
        assert messages(stranger) == []
        publish(watcher, "inbox", b"acme-queued")
        publish(stranger, "inbox", b"globex-lost")
    with client(broker, "globex", "c", level, **stays) as globex:
        assert messages(globex) == []
    with client(broker, "acme", "c", level, **stays) as acme:
        assert acme.connack is not None and acme.connack.session_present == (level > 3)
        assert messages(acme) == [("inbox", b"acme-queued")]


@LEVELS
@pytest.mark.parametrize("tenant", ["globex", ""])
def test_an_attacker_finds_no_trace(broker: Broker, level: int, tenant: str) -> None:
    """Neither another tenant nor a client without one reads or writes anything of a tenant, or learns its name."""
    with client(broker, "acme", "victim", level, will_topic="gone", will_payload=b"acme-will") as acme:
        acme.subscribe(("inbox", 1), ("$share/g/jobs/#", 1), ("$SYS/#", 1))
        publish(acme, "secret/word", b"acme-kept", retain=True)
        publish(acme, "$delayed/3600/secret/later", b"acme-later")
        texts: list[str] = []
        for number, topic_filter in enumerate(FILTERS):
            with client(broker, tenant, f"a{number}", level) as attacker:

                def subscribe(attacker: SocketClient = attacker, topic_filter: str = topic_filter) -> None:
                    packet = Subscribe(packet_id=1, topic_filters=[(topic_filter, 1)])
                    texts.append(repr(request(attacker, packet, Suback)))
                    publish(acme, "secret/word", b"acme-live", 0)
                    publish(acme, "jobs/1", b"acme-job", 0)
                    acme.ping()

                texts.append(seen(attacker, subscribe))
            with client(broker, tenant, f"a{number}", level) as attacker:
                packet = Unsubscribe(packet_id=1, topic_filters=[topic_filter])
                texts.append(seen(attacker, lambda a=attacker, p=packet: request(a, p, Unsuback)))  # type: ignore[misc]
        for topic in TOPICS:
            for qos in (0, 1, 2):
                with client(broker, tenant, "a", level) as attacker:
                    texts.append(
                        seen(attacker, lambda a=attacker, t=topic, q=qos: publish(a, t, b"evil", q, retain=True))
                    )  # type: ignore[misc]
            with SocketClient(broker.port, level=level) as attacker:
                user = {"username": "globex-device", "password": b"globex-device"} if tenant else {}
                will = Connect(client_id="w", protocol_level=level, will_topic=topic, will_payload=b"evil", **user)
                texts.append(seen(attacker, lambda a=attacker, w=will: a.send(w)))  # type: ignore[misc]
        for client_id in ("victim", "$tenant/acme/victim", "$link/acme", "acme/victim", ""):
            with SocketClient(broker.port, level=level) as attacker:
                user = {"username": "globex-device", "password": b"globex-device"} if tenant else {}
                connect = Connect(client_id=client_id, protocol_level=level, clean_start=True, **user)
                texts.append(seen(attacker, lambda a=attacker, c=connect: a.send(c)))  # type: ignore[misc]
        for text in texts:
            assert "acme" not in text and "tenant" not in text, text
        got = [message for message in messages(acme) if message[1] not in (b"acme-job",)]
        assert got == []
        with client(broker, "acme", "reader", level) as reader:
            reader.subscribe(("secret/#", 1))
            assert messages(reader) == [("secret/word", b"acme-kept")]
        acme.send(Disconnect())


def test_a_name_that_is_no_tenant_is_refused(broker: Broker) -> None:
    with client(broker, "wrong/name") as refused:
        assert refused.connack is not None and refused.connack.reason_code == 5


def test_names_are_the_tenants_own_in_properties(broker: Broker) -> None:
    """A Response Topic is valid where it arrives; aliases and assigned client ids have no prefix."""
    properties = {"topic_alias_maximum": 5}
    with (
        client(broker, "acme", "", 5, properties=properties) as acme,
        client(broker, "acme", "other", 5) as other,
    ):
        assert acme.connack is not None
        assert str(acme.connack.properties["assigned_client_identifier"]).startswith("flockmq-")
        acme.subscribe(("request/1", 0), ("reply/1", 1))
        for number in range(2):
            alias = {"topic_alias": 1, "response_topic": "reply/1"}
            other.send(Publish("" if number else "request/1", b"?", properties=alias))
        other.ping()
        first, second = (packet for packet in acme.ping() if isinstance(packet, Publish))
        assert first.topic_name == "request/1" and second.topic_name == ""  # by the alias of the broker
        assert first.properties["response_topic"] == "reply/1"
        publish(other, str(first.properties["response_topic"]), b"!")
        assert messages(acme) == [("reply/1", b"!")]
