"""Ways by which one tenant could act on another: by a user of the same name, by long names, by the API."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import jwt
import pytest

from flockmq.broker.admin.http.tokens import add
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import RULES, client, messages, publish, start_tenants
from tests.web.http_client import HttpClient
from tests.web.test_tenant_tokens import api_of, settings

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


RESERVED = ("$tenant/globex/x", "$tenant/acme/x", "$tenant/", "$SYS", "$SYS/x", "$stream/0/x")


@pytest.mark.parametrize("delay", ["", "$delayed/0/"])
def test_names_behind_a_delay_obey_the_rule_of_names_without_one(
    start_broker: StartBroker, tmp_path: Path, delay: str
) -> None:
    """A token could delay messages to names that it may not publish to."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    acme_api, api = api_of(broker, tokens["acme"]), api_of(broker, tokens[""])
    with client(broker, "acme", "c", 5) as acme, client(broker, "globex", "c", 5) as globex:
        for each in (acme, globex):
            each.subscribe(("#", 0), ("$SYS/#", 0), ("+/+/+/+", 0))
        for topic in RESERVED:
            assert acme_api.ask("POST", "/messages", {"topic": delay + topic}).status in (400, 422), topic
            assert publish(acme, delay + topic, b"x") == 0x87, topic
            if not topic.startswith("$tenant/acme") and not topic.startswith("$tenant/globex"):
                assert api.ask("POST", "/messages", {"topic": delay + topic}).status in (400, 422), topic
            below = f"{delay}$tenant/globex/{topic}"  # no client of globex could publish there either
            assert api.ask("POST", "/messages", {"topic": below}).status == 422, topic
            will = {"username": "acme-device", "password": b"acme-device", "will_topic": delay + topic}
            with SocketClient(broker.port, "w", level=5, **will) as refused:
                assert code(refused) == 0x87, topic
        assert api.ask("POST", "/messages", {"topic": f"{delay}$tenant/globex/done"}).status == 200
        assert acme_api.ask("POST", "/messages", {"topic": f"{delay}done"}).status == 200
        for each in (acme, globex):
            found: list[tuple[str, bytes]] = []
            until(lambda each=each, found=found: found.extend(messages(each)) or found)
            assert [topic for topic, _ in found] == ["done"]


def test_filters_and_groups_of_another_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    """They are refused as to its clients."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    acme_api = api_of(broker, tokens["acme"])
    for topic_filter in ("$tenant/globex/#", "$tenant/#", "$stream/0/$tenant/globex/#", "$share/g/$tenant/globex/#"):
        assert acme_api.ask("GET", "/retained/messages", filter=topic_filter).status == 422, topic_filter
        assert acme_api.ask("DELETE", "/retained", filter=topic_filter).status == 422, topic_filter
    for method, path in (("GET", "/group"), ("PUT", "/group"), ("DELETE", "/group"), ("DELETE", "/group/messages")):
        body = {} if method == "PUT" else None
        assert acme_api.ask(method, path, body, group="$share/g/$tenant/globex/jobs").status == 422, (method, path)
    assert acme_api.ask("PUT", "/group", {}, group="$share/g/jobs").status == 204


def test_delayed_messages_of_another_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    """A token lists and cancels its own only, also with ids and places in the list that it has learned elsewhere."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    acme_api, globex_api, api = (api_of(broker, tokens[name]) for name in ("acme", "globex", ""))
    for tenant in ("acme", "globex", ""):
        with client(broker, tenant, f"{tenant}-c", 5) as each:
            assert publish(each, f"$delayed/600/{tenant}-x", b"secret") < 0x80
    every = api.get("/delayed")["items"]
    assert len(every) == 3
    assert [item["topic"] for item in api.get("/delayed", tenant="/")["items"]] == ["-x"]
    for name, own in (("acme", acme_api), ("globex", globex_api)):
        for after in ("", "0-0"):
            (found,) = own.get("/delayed", after=after)["items"]
            assert (found["topic"], found["client_id"]) == (f"{name}-x", f"{name}-c")
        for tenant in ("acme", "globex", "/"):
            assert [item["id"] for item in own.get("/delayed", tenant=tenant)["items"]] == [found["id"]]
    for item in every:
        if item["topic"] != "$tenant/globex/globex-x":
            assert globex_api.ask("DELETE", "/delayed", id=item["id"]).status == 404
            assert globex_api.ask("DELETE", "/delayed", id=item["id"], tenant="acme").status == 400
    assert len(api.get("/delayed")["items"]) == 3
    assert globex_api.ask("DELETE", "/delayed", id=globex_api.get("/delayed")["items"][0]["id"]).status == 204
    assert len(api.get("/delayed")["items"]) == 2


def test_declared_groups_of_another_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    """A token declares within its own names; its groups hold no more than others; their dead letters stay its own."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    acme_api, globex_api, api = (api_of(broker, tokens[name]) for name in ("acme", "globex", ""))
    group = "$share/g/jobs"
    for own in (acme_api, globex_api, api):
        assert own.ask("PUT", "/group", {"expiry": 60}, group=group).status == 204
        assert [item["group"] for item in own.get("/groups")["items"] if item["group"] == group] == [group]
    assert len(api.get("/groups")["items"]) == 3
    assert [item["group"] for item in globex_api.get("/groups")["items"]] == [group]
    foreign = "$share/g/$tenant/acme/jobs"
    assert globex_api.ask("PUT", "/group", {"expiry": 1}, group=foreign).status == 422
    assert globex_api.ask("PUT", "/group/paused", {"paused": True}, group="$share/g/other").status == 404
    assert globex_api.ask("PUT", "/group/paused", {"paused": True}, group=group).status == 204
    assert globex_api.ask("DELETE", "/group", group=group).status == 200
    assert acme_api.get("/group", group=group)["settings"]["paused"] is False
    assert acme_api.get("/group", group=group)["settings"]["expiry"] == 60
    assert api.get("/group", group=group)["settings"]["expiry"] == 60
    for name in ("window", "max_queued_messages", "max_queued_bytes"):
        most = api.get("/group", group=group)["settings"][name]
        assert globex_api.ask("PUT", "/group", {name: most + 1}, group="$share/g/more").status == 422
        assert globex_api.ask("PUT", "/group", {name: most}, group="$share/g/more").status == 204
    for topic in ("$tenant/acme/dead", "$SYS/x"):
        assert globex_api.ask("PUT", "/group", {"dead_letter_topic": topic}, group="$share/g/more").status == 422
    reader = api_of(broker, add(tmp_path / "tokens", "reader", "viewer", "globex"))
    until(lambda: reader.ask("GET", "/groups").status == 200)
    assert reader.ask("PUT", "/group", {}, group="$share/g/x").status == 403


def test_traces_of_another_tenant(start_broker: StartBroker, tmp_path: Path) -> None:
    """A token gets only steps of its tenant's topics, whatever it asks for, and no node's name."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    globex_api = api_of(broker, tokens["globex"])
    own = ("client=c", "topic=%23", "client=c&topic=x")
    foreign = ("client=$tenant/acme/c", "topic=$SYS/%23", "topic=%2B/%2B/%23", "topic=$share/g/%23")
    for query in ("topic=$tenant/acme/%23", "topic=$tenant/%2B/%23", "topic=$delayed/%23", "topic=a%23"):
        assert globex_api.ask("GET", f"/trace?{query}").status == 422, query
    with client(broker, "acme", "c", 5) as acme, client(broker, "globex", "c", 5) as globex, client(broker, "") as free:
        for each in (acme, globex, free):
            each.subscribe(("x", 1))
        for query in (*own, *foreign):
            with globex_api.events(f"/trace?{query}") as events:
                next(events)
                for name, each in (("acme", acme), ("free", free), ("globex", globex)):
                    publish(each, "x", name.encode())
                    messages(each)
                steps: list[dict[str, object]] = []
                while query in own and not any(step["step"] == "acknowledged" for step in steps):
                    steps += next(events)["steps"]
                for _ in range(2):
                    steps += next(events)["steps"]
            assert bool(steps) == (query in own), query
            assert {step["topic"] for step in steps} <= {"x"}, query
            assert {step["client"] for step in steps} <= {"c", ""}, query
            assert {(step["node"], step["size"]) for step in steps} <= {("", len(b"globex"))}, query


def test_traces_of_one_tenant_leave_room_for_others(start_broker: StartBroker, tmp_path: Path) -> None:
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    globex_api, api = api_of(broker, tokens["globex"]), api_of(broker, tokens[""])
    with ExitStack() as stack:
        for _ in range(4):
            next(stack.enter_context(globex_api.events("/trace?topic=x")))
        assert globex_api.ask("GET", "/trace", topic="x").status == 503
        next(stack.enter_context(api_of(broker, tokens["acme"]).events("/trace?topic=x")))
        next(stack.enter_context(api.events("/trace?topic=x")))
