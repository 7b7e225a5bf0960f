"""Ways by which one tenant could act on another: by a user of the same name, by long names, by the API."""

import json
import time
from pathlib import Path

import jwt
import pytest

from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.security.test_tenants import RULES, client, messages, publish, start_tenants
from tests.web.http_client import HttpClient

SECRET = "a secret of more than thirty-two bytes"
QUOTA_EXCEEDED = 0x97
BANNED = 0x8A


@pytest.fixture
def store() -> str:
    return "memory"


def start(start_broker: StartBroker, tmp_path: Path, **more: object) -> Broker:
    """A broker whose tenants are the claim `org` of a token."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    settings = {name.replace("__", "."): value for name, value in more.items()}
    rules = json.dumps([{"name": "*", "claim": "org=*"}])
    return start_broker(
        {
            "http.listen": "127.0.0.1:0",
            "auth.jwt_secret_file": tmp_path / "secret",
            "auth.failure_delay": 0,
            "tenants": rules,
            **settings,
        }
    )


def ann(broker: Broker, org: str, client_id: str = "c") -> SocketClient:
    """A client of the user `ann` of a tenant: each tenant has one."""
    token = jwt.encode({"sub": "ann", "exp": time.time() + 60, "org": org}, SECRET, "HS256")
    return SocketClient(broker.port, client_id, level=5, username="ann", password=token.encode())


def code(found: SocketClient) -> int:
    """The reason code of CONNACK."""
    assert found.connack is not None
    return int(found.connack.reason_code)


def test_users_of_the_same_name_are_two_users(start_broker: StartBroker, tmp_path: Path) -> None:
    """The connections of one do not use up the quota of the other."""
    broker = start(start_broker, tmp_path, quotas__max_connections_per_user=1)
    with ann(broker, "acme") as acme, ann(broker, "globex") as globex:
        assert (code(acme), code(globex)) == (0, 0)
        with ann(broker, "globex", "d") as second:
            assert code(second) == QUOTA_EXCEEDED
        globex.close()
        until(lambda: code(ann(broker, "globex", "d")) == 0)
        assert acme.ping() == []


def test_a_ban_of_a_user_may_be_of_one_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    api = HttpClient(broker)
    with ann(broker, "acme") as acme, ann(broker, "globex") as globex:
        api.ask("POST", "/bans", {"kind": "username", "value": "$tenant/acme/ann"})
        until(lambda: acme.receive() is None)
        assert code(ann(broker, "acme")) == BANNED
        assert globex.ping() == []
        api.ask("POST", "/bans", {"kind": "username", "value": "ann"})
        assert code(ann(broker, "globex", "d")) == BANNED


def test_names_that_are_too_long_for_the_prefix(start_broker: StartBroker, tmp_path: Path) -> None:
    """They are refused, or allow nothing; the node has no internal error, and another client notices nothing."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    files.rules("pattern readwrite own/%c/#", "pattern readwrite free/#")
    broker = files.start(start_broker, tenants=RULES)
    with client(broker, "globex", "watcher", 5) as watcher:
        with client(broker, "acme", "x" * 65_525, 5) as refused:
            assert code(refused) == 0x85
        with client(broker, "acme", "x" * 65_520, 5) as silent:  # within the limit; its rule `own/%c/#` is not
            assert silent.connack is not None
            assert silent.subscribe(("free/x", 1)) == [0x87]
            assert publish(silent, "free/x", b"1") == 0x87
        for size in (65_535, 65_523, 65_522):
            with client(broker, "acme", "c", 5) as acme:
                assert acme.subscribe(("free/" + "y" * (size - 5), 0)) == [0x8F if size > 65_522 else 0]
        with client(broker, "acme", "c", 5) as acme:
            acme.subscribe(("free/#", 0))
            publish(acme, "free/" + "y" * (65_522 - 5), b"longest")
            assert [len(topic) for topic, _ in messages(acme)] == [65_522]
        assert watcher.ping() == []


def test_the_api_publishes_to_names_that_clients_know(start_broker: StartBroker, tmp_path: Path) -> None:
    """Names that would be empty for clients are refused: their clients would have to close the connection."""
    broker = start_tenants(start_broker, tmp_path)
    api = HttpClient(broker)
    with client(broker, "acme", "a", 5) as acme:
        acme.subscribe(("#", 0), ("+/+", 0))
        for topic in ("$tenant/acme", "$tenant/acme/", "$tenant/", "$delayed/0/$tenant/acme/"):
            assert api.ask("POST", "/messages", {"topic": topic, "payload": "x"}).status == 422, topic
        assert api.ask("POST", "/messages", {"topic": "$tenant/acme/x", "payload": "y"}).status == 200
        assert messages(acme) == [("x", b"y")]
