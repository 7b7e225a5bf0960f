"""Tokens of tenants: the API has what is theirs, under the names that their clients use, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker.admin.api.api import OPERATIONS
from flockmq.broker.admin.api.tenant_scope import OPERATIONS as OPEN
from flockmq.broker.admin.http.tokens import add
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.security.access_files import AccessFiles
from tests.security.test_tenant_isolation import RULES, client, messages, publish
from tests.web.http_client import HttpClient

STAYS: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}


@pytest.fixture
def store() -> str:
    return "memory"


def settings(tmp_path: Path) -> tuple[dict[str, object], dict[str, str]]:
    """Settings of a node with two tenants, and a token of each by its name; `""`: of the operator."""
    files = AccessFiles(tmp_path)
    files.users("acme-device", "globex-device")
    path = tmp_path / "tokens"
    tokens = {tenant: add(path, tenant or "operator", "admin", tenant) for tenant in ("acme", "globex", "")}
    return files.settings(
        tenants=RULES, http__tokens_file=path, http__metrics_token=True, auth__allow_anonymous=True
    ), tokens


def api_of(broker: Broker, token: str) -> HttpClient:
    found = HttpClient(broker)
    found.token = token
    return found


def test_each_token_has_its_own(start_broker: StartBroker, tmp_path: Path) -> None:
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    acme_api, globex_api, api = (api_of(broker, tokens[name]) for name in ("acme", "globex", ""))
    will = {"will_topic": "gone", "will_payload": b"w", "will_properties": {"will_delay_interval": 600}}
    for tenant in ("acme", "globex"):
        client(broker, tenant, "away", 5, **STAYS, **will).socket.close()
    with client(broker, "acme", "c", 5) as acme, client(broker, "globex", "c", 5) as globex, client(broker, "") as free:
        acme.subscribe(("a/#", 0), ("$share/g/jobs", 1))
        globex.subscribe(("b/#", 0), ("$share/g/jobs", 1))
        free.subscribe(("c", 0))
        publish(acme, "a/kept", b"acme-secret", retain=True)
        publish(globex, "b/kept", b"globex-secret", retain=True)
        until(lambda: len(acme_api.get("/wills")["items"]) == 1 == len(globex_api.get("/wills")["items"]))
        for own, topic in ((acme_api, "a"), (globex_api, "b")):
            assert [item["client_id"] for item in own.get("/clients")["items"]] == ["c"]
            assert own.get("/clients", search="tenant")["total"] == own.get("/clients", search="me/")["total"] == 0
            assert [item["client_id"] for item in own.get("/sessions")["items"]] == ["away", "c"]
            assert own.get("/sessions")["total"] == 2
            assert [item["filter"] for item in own.get("/client", client_id="c")["filters"]] == [
                "$share/g/jobs",
                f"{topic}/#",
            ]
            found = {(item["filter"], item["client_id"]) for item in own.get("/subscriptions")["items"]}
            assert found == {("$share/g/jobs", "c"), (f"{topic}/#", "c")}
            assert [item["group"] for item in own.get("/groups")["items"]] == ["$share/g/jobs"]
            assert own.get("/groups")["total"] == 1
            group = own.get("/group", group="$share/g/jobs")
            assert (group["filter"], [subscriber["client_id"] for subscriber in group["sessions"]]) == ("jobs", ["c"])
            assert [(item["client_id"], item["topic"]) for item in own.get("/wills")["items"]] == [("away", "gone")]
            assert [item["topic"] for item in own.get("/retained")["items"]] == [topic]
            assert [item["topic"] for item in own.get("/retained", parent=topic)["items"]] == [f"{topic}/kept"]
            assert [item["topic"] for item in own.get("/retained/messages", filter="#")["items"]] == [f"{topic}/kept"]
        assert globex_api.ask("GET", "/retained/message", topic="a/kept").status == 404
        assert globex_api.ask("GET", "/retained/message", topic="$tenant/acme/a/kept").status in (404, 422)
        assert globex_api.ask("POST", "/messages", {"topic": "$tenant/acme/a/x", "payload": "evil"}).status == 422
        assert globex_api.ask("POST", "/messages", {"topic": "a/x", "payload": "own"}).status == 200
        assert globex_api.ask("POST", "/messages", {"topic": "b/x", "payload": "own"}).status == 200
        assert messages(acme) == [("a/kept", b"acme-secret")]
        assert messages(globex)[-1] == ("b/x", b"own")
        # The operator sees all, or one tenant.
        assert api.get("/clients")["total"] == 3
        assert [item["client_id"] for item in api.get("/clients", tenant="acme")["items"]] == ["$tenant/acme/c"]
        assert (
            len(api.get("/subscriptions", tenant="globex")["items"])
            == api.get("/sessions", tenant="acme")["total"]
            == 2
        )
        assert api.get("/groups", tenant="acme")["total"] == api.get("/wills", tenant="acme")["total"] == 1
        # A token ends and bans only clients of its tenant.
        assert globex_api.ask("DELETE", "/retained", filter="#").json == {"cleared": 1}
        assert len(acme_api.get("/retained/messages", filter="#")["items"]) == 1
        assert globex_api.ask("POST", "/bans", {"kind": "address", "value": "127.0.0.1"}).status == 422
        made = globex_api.ask("POST", "/bans", {"kind": "username", "value": "globex-device"})
        assert (made.status, made.json["value"], made.json["by"]) == (200, "globex-device", "globex")
        until(lambda: globex.receive() is None)
        assert [item["value"] for item in globex_api.get("/bans")["items"]] == ["globex-device"]
        assert acme_api.get("/bans")["items"] == []
        assert [item["by"] for item in api.get("/bans")["items"]] == ["$tenant/globex/globex"]
        assert globex_api.ask("DELETE", "/bans", kind="username", value="acme-device").status == 404
        for method, path in (("DELETE", "/client/connection"), ("DELETE", "/session"), ("DELETE", "/will")):
            assert globex_api.ask(method, path, client_id="$tenant/acme/c").status == 404
        assert acme.ping() == []
        assert acme_api.ask("DELETE", "/client/connection", client_id="c").status == 204
        until(lambda: acme.receive() is None)
        assert free.ping() == []


def test_the_rest_is_refused(start_broker: StartBroker, tmp_path: Path) -> None:
    """All operations that are not for tenants, the figures of the node, and the console."""
    given, tokens = settings(tmp_path)
    broker = start_broker(given)
    acme = api_of(broker, tokens["acme"])
    assert acme.get("/me") == {"name": "acme", "role": "admin", "tenant": "acme"}
    for operation in OPERATIONS:
        if operation.name in OPEN:
            continue
        values = {name: "x" for name in operation.required if not operation.in_path(name)}
        body = {} if operation.body is not None else None
        reply = acme.ask(operation.method, operation.path.replace("{node}", "n"), body, **values)
        assert reply.status == 403, operation.name
    assert acme.ask("GET", "//metrics").status == 403
    socket = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": "mqtt"}
    assert acme.ask("GET", "//mqtt", headers=socket).status == 403
    assert {operation.name for operation in OPERATIONS} >= OPEN
    reader = tmp_path / "tokens"
    acme.token = add(reader, "reader", "viewer", "acme")
    until(lambda: acme.ask("GET", "/clients").status == 200)
    assert acme.ask("POST", "/messages", {"topic": "a"}).status == 403


def test_over_nodes(start_cluster: StartCluster, tmp_path: Path) -> None:
    given, tokens = settings(tmp_path)
    cluster = start_cluster({**given, "tenants": json.dumps([{"name": "*", "user": "*-device"}])}, nodes="ab")
    nodes: list[Any] = [cluster["a"], cluster["b"]]
    with client(nodes[0], "acme", "c", 5, **STAYS) as acme, client(nodes[1], "globex", "c", 5, **STAYS) as globex:
        acme.subscribe(("a", 1), ("$share/g/jobs", 1))
        globex.subscribe(("b", 1), ("$share/g/jobs", 1))
        for node in nodes:
            own = api_of(node, tokens["acme"])
            assert [item["client_id"] for item in own.get("/clients")["items"]] == ["c"]
            until(lambda own=own: [item["group"] for item in own.get("/groups")["items"]] == ["$share/g/jobs"])  # type: ignore[misc]
            until(lambda own=own: [item["client_id"] for item in own.get("/sessions")["items"]] == ["c"])  # type: ignore[misc]
            assert own.ask("DELETE", "/session", client_id="$tenant/globex/c").status == 404
        assert globex.ping() == []
        assert api_of(nodes[1], tokens["acme"]).ask("DELETE", "/client/connection", client_id="c").status == 204
        until(lambda: acme.receive() is None)
