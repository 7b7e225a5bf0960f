"""Everything that a configuration does with names holds for the names that clients of a tenant use."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartBroker, StartLogging
from tests.harness.broker_process import until
from tests.harness.certificates import Authority
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.harness.transports import ports, tls_settings, tls_socket, trusting
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import RULES, client, messages, publish, start_tenants

SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture
def store() -> str:
    return "memory"


def test_wildcards_do_not_match_dollar_topics(start_broker: StartBroker, tmp_path: Path) -> None:
    """[MQTT-4.7.2-1] holds behind the prefix, for live and for retained messages."""
    broker = start_tenants(start_broker, tmp_path)
    with client(broker, "acme", "a") as one, client(broker, "acme", "b") as other:
        one.subscribe(("#", 0), ("+/x", 0))
        publish(other, "$own/x", b"live", retain=True)
        publish(other, "own/x", b"live", retain=True)
        assert messages(one) == [("own/x", b"live")]
        other.subscribe(("#", 0), ("+/x", 0))
        assert set(messages(other)) == {("own/x", b"live")}
        other.subscribe(("$own/#", 0))
        assert messages(other) == [("$own/x", b"live")]


def test_access_rules_are_of_the_tenants_names(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    files.rules("pattern readwrite own/%c/#", "user acme-device", "topic read shared/#")
    broker = files.start(start_broker, tenants=RULES)
    with client(broker, "acme", "c", 5) as acme, client(broker, "globex", "c", 5) as globex:
        assert acme.subscribe(("own/c/#", 1), ("shared/#", 1), ("own/d/#", 1), ("#", 1)) == [1, 1, 0x87, 1]
        assert globex.subscribe(("own/c/#", 1), ("shared/#", 1)) == [1, 0x87]
        assert publish(acme, "own/c/x", b"1") < 0x80
        assert publish(acme, "own/d/x", b"2") == 0x87
        assert publish(acme, "$delayed/0/own/d/x", b"2") == 0x87
        assert messages(acme) == [("own/c/x", b"1")]
        assert messages(globex) == []


def test_rights_that_change_stay_the_tenants(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("acme-device")
    files.rules("user acme-device", "topic readwrite a/#", "topic read b/#")
    broker = files.start(start_broker, tenants=RULES)
    with client(broker, "acme", "c", 5) as acme:
        assert acme.subscribe(("#", 1)) == [1]
        assert publish(acme, "b/c", b"1") == 0x87
        files.rules("pattern readwrite b/%c")
        until(lambda: publish(acme, "b/c", b"2") < 0x80)
        assert publish(acme, "a/x", b"1") == 0x87
        assert messages(acme) == [("b/c", b"2")]


def test_rewrite_rules_and_configured_subscriptions(start_broker: StartBroker, tmp_path: Path) -> None:
    """Rules see the client's own names: they come before the prefix."""
    broker = start_tenants(
        start_broker,
        tmp_path,
        mqtt__rewrite='[{"source": "old/+", "target": "new/%c/$1"}, {"source": "bad/+", "target": "$tenant/globex/y"}]',
        mqtt__auto_subscribe='[{"topic_filter": "commands/%c/#", "qos": 1}]',
    )
    with client(broker, "acme", "c", 5) as acme, client(broker, "globex", "c", 5) as globex:
        acme.subscribe(("old/x", 1))
        globex.subscribe(("#", 1))
        publish(acme, "old/x", b"1")
        publish(acme, "commands/c/x", b"2")
        assert publish(acme, "bad/y", b"3") == 0x87
        assert messages(acme) == [("new/c/x", b"1"), ("commands/c/x", b"2")]
        assert messages(globex) == []


def test_dead_letters_stay_with_the_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    more = {"shared__max_deliveries": 1, "shared__dead_letter_topic": "dead"}
    broker = start_tenants(start_broker, tmp_path, **more)
    with client(broker, "acme", "w", 5) as worker, client(broker, "globex", "g", 5) as globex:
        worker.subscribe(("$share/g/jobs", 1), ("dead", 0))
        globex.subscribe(("#", 0))
        publish(worker, "jobs", b"job")
        job = next(packet for packet in worker.ping() if isinstance(packet, Publish))
        worker.send(Puback(packet_id=job.packet_id, reason_code=0x80))  # the letter follows a turn later
        letter = until(lambda: next(iter(worker.ping()), None))
        assert isinstance(letter, Publish)
        told = dict(letter.properties["user_property"])
        assert (letter.topic_name, told["dead-letter-topic"]) == ("dead", "jobs")
        assert told["dead-letter-group"] == "$share/g/jobs"
        assert messages(globex) == []


def test_a_stream_has_the_tenants_messages(start_logging: StartLogging, tmp_path: Path) -> None:
    """The log has all tenants' messages if `analytics.topics` has `#`; a stream reads only its client's tenant's."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    settings = files.settings(tenants=RULES, analytics__topics="#")
    del settings["http.listen"]
    node: Any = start_logging(settings)
    with client(node, "acme", "a") as acme, client(node, "globex", "a") as globex:
        publish(acme, "site/1", b"acme")
        publish(globex, "site/1", b"globex")
        acme.subscribe(("$stream/earliest/#", 1))
        globex.subscribe(("$stream/earliest/site/+", 1))
        assert until(lambda: messages(acme)) == [("site/1", b"acme")]
        assert until(lambda: messages(globex)) == [("site/1", b"globex")]
        assert messages(acme) == []


def test_a_claim_of_a_token(start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    rules = json.dumps([{"name": "*", "claim": "org=*"}, {"name": "rest"}])
    broker = start_broker({"auth.jwt_secret_file": tmp_path / "secret", "auth.failure_delay": 0, "tenants": rules})

    def let_in(**claims: object) -> SocketClient:
        token = jwt.encode({"sub": "u", "exp": time.time() + 60, **claims}, SECRET, "HS256")
        return SocketClient(broker.port, "c", username="u", password=token.encode())

    with let_in(org="acme") as acme, let_in(org="globex") as globex, let_in() as rest:
        for each in (acme, globex, rest):
            each.subscribe(("#", 0))
        publish(acme, "t", b"1")
        assert [messages(each) for each in (acme, globex, rest)] == [[("t", b"1")], [], []]
    with let_in(org="a/#") as refused:
        assert refused.connack is not None and refused.connack.reason_code == 5


def test_the_server_name_and_the_certificate(start_broker: StartBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    rules = [{"name": "sensors", "certificate": "sensor-*"}, {"name": "*", "server_name": "*.localhost"}]
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0")
    trust = {"tls.client_ca": authority.ca, "tls.client_certificate": "optional", "tls.username_from": "cn"}
    broker = start_broker({**settings, **trust, "auth.allow_anonymous": True, "tenants": json.dumps(rules)})
    found: list[SocketClient] = []
    for number, (name, pair) in enumerate(
        [("acme.localhost", None), ("globex.localhost", None), ("localhost", authority.client("sensor-1"))]
    ):
        context = trusting(authority)
        context.check_hostname = False
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        connected = tls_socket(_tls_port(broker), context, name)
        found.append(SocketClient(broker.port, f"c{number}", connected=connected))
        found[-1].subscribe(("#", 0))
    for number, each in enumerate(found):
        publish(each, "t", b"%d" % number)
    assert [messages(each) for each in found] == [[("t", b"%d" % number)] for number in range(3)]
    for each in found:
        each.close()


def _tls_port(broker: Broker) -> int:
    return ports(broker)["mqtts"]


def test_flapping_and_bans_know_the_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    """A client that connects too often shuts out no client of another tenant with its client identifier."""
    broker = start_tenants(start_broker, tmp_path, quotas__flapping="3 in 600 s")
    codes = []
    for _ in range(5):
        with client(broker, "acme") as acme:
            assert acme.connack is not None
            codes.append(acme.connack.reason_code)
    assert codes[0] == 0 and codes[-1] != 0
    with client(broker, "globex") as globex:
        assert globex.connack is not None and globex.connack.reason_code == 0
