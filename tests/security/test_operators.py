"""Operators, their logins and API keys, as an attacker meets them: guesses, forged requests, stolen secrets, scopes."""

import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker.admin.http.operators import MAX_LOGINS
from flockmq.broker.admin.http.tokens import add
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import Broker
from tests.harness.command import flockmq
from tests.web.http_client import HttpClient, Reply

PASSWORD = "correct horse battery"
HTTP = {"http.listen": "127.0.0.1:0"}


@pytest.fixture
def store() -> str:
    return "sqlite"


class Browser(HttpClient):
    """A browser with the page of the node: it has its cookie, and says where requests are from."""

    cookie = ""

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, **query: object
    ) -> Reply:
        own = {"Origin": f"http://{self.host}:{self.port}", "Sec-Fetch-Site": "same-origin"}
        own |= {"Cookie": self.cookie} if self.cookie else {}
        return super().ask(method, path, body, {**own, **(headers or {})}, **query)

    def log_in(self, name: str, password: str = PASSWORD) -> Reply:
        reply = self.ask("POST", "/login", {"name": name, "password": password})
        if reply.status == 204:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return reply


def add_operator(api: HttpClient, name: str, role: str, **more: object) -> None:
    reply = api.ask("POST", "/operators", {"name": name, "role": role, "password": PASSWORD, **more})
    assert reply.status == 200, reply


@pytest.fixture
def node(start_broker: StartBroker) -> Broker:
    """A node with the operators `boss`, `worker` and `guest`."""
    node = start_broker(HTTP)
    add_operator(HttpClient(node), "boss", "admin")
    boss = Browser(node)
    assert boss.log_in("boss").status == 204
    for name, role in (("worker", "operator"), ("guest", "viewer")):
        add_operator(boss, name, role)
    return node


def logged_in(node: Broker, name: str) -> Browser:
    browser = Browser(node)
    assert browser.log_in(name).status == 204
    return browser


def test_the_first_operator_closes_the_door(start_broker: StartBroker) -> None:
    node = start_broker(HTTP)
    api = HttpClient(node)
    assert api.ask("GET", "/nodes").status == 200
    weak = {"name": "guest", "role": "viewer", "password": PASSWORD}
    assert api.ask("POST", "/operators", weak).status == 409  # nobody could manage the broker
    assert api.ask("POST", "/operators", {**weak, "role": "admin", "password": "short"}).status == 400
    add_operator(api, "boss", "admin")
    for path in ("/nodes", "/operators", "/keys", "/audit-log"):
        assert api.ask("GET", path).status == 401
    assert api.ask("POST", "/operators", {"name": "eve", "role": "admin", "password": PASSWORD}).status == 401
    assert api.ask("GET", "//healthz").status == 200
    assert logged_in(node, "boss").get("/me") == {"name": "boss", "role": "admin", "tenant": ""}
    lines = len(node.log)
    node.restart()
    node.wait_for_log("only this machine can connect by MQTT", since=lines)  # the last line of the start
    assert not [line for line in node.log[lines:] if "may do everything over HTTP" in line["event"]]


def test_each_role_has_its_steps(node: Broker) -> None:
    ban = {"kind": "client_id", "value": "x"}
    key = {"name": "k", "role": "admin"}
    steps: list[tuple[str, str, object, dict[str, Any]]] = [
        ("GET", "/clients", None, {}),
        ("POST", "/bans", ban, {}),
        ("PUT", "/log-level", {"level": "info"}, {}),
        ("POST", "/keys", key, {}),
        ("PUT", "/operator", {"role": "admin"}, {"name": "guest"}),
        ("GET", "/audit-log", None, {}),
    ]
    allowed = {"guest": 1, "worker": 2, "boss": 6}
    for name, count in allowed.items():
        browser = logged_in(node, name)
        found = [browser.ask(method, path, body, **query).status for method, path, body, query in steps]
        assert [status < 300 for status in found] == [number < count for number in range(6)], (name, found)
        assert set(found[count:]) <= {403}


def test_a_cookie_is_out_of_reach(node: Broker) -> None:
    browser = Browser(node)
    reply = browser.log_in("boss")
    attributes = {part.strip() for part in reply.headers["set-cookie"].split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= attributes
    assert "Secure" not in attributes  # http:// on loopback
    behind = browser.ask(
        "POST", "/login", {"name": "boss", "password": PASSWORD},
        {"Origin": f"https://{browser.host}:{browser.port}"},
    )  # fmt: skip
    assert "Secure" in behind.headers["set-cookie"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-site", "Origin": ""},
        {"Sec-Fetch-Site": "none"},
        {},
    ],
)
def test_a_page_of_another_site_changes_nothing(node: Broker, headers: dict[str, str]) -> None:
    browser = logged_in(node, "boss")
    plain = HttpClient(node)  # which sends just these headers
    reply = plain.ask("PUT", "/log-level", {"level": "debug"}, {"Cookie": browser.cookie, **headers})
    assert reply.status == 403, reply
    assert set(browser.get("/log-level")["nodes"].values()) == {"info"}


def test_a_form_can_not_log_somebody_in(node: Broker) -> None:
    """Login CSRF: a page of another site logs its visitor in as the attacker."""
    api = HttpClient(node)
    body = json.dumps({"name": "guest", "password": PASSWORD}).encode()
    assert api.ask("POST", "/login", body, {"Origin": "http://evil.example"}).status == 403
    connection = http.client.HTTPConnection(api.host, api.port)
    connection.request("POST", "/api/v1/login", body, {"Content-Type": "text/plain"})
    assert connection.getresponse().status == 415
    connection.close()


def test_guesses_are_slow_and_on_record(node: Broker) -> None:
    boss, eve = logged_in(node, "boss"), Browser(node)
    answers = [eve.log_in("boss", f"guess {number}") for number in range(6)]
    assert [answer.status for answer in answers[:5]] == [403] * 5
    assert {answer.json["detail"] for answer in answers[:5]} == {"wrong name or password"}
    assert answers[5].status == 429 and int(answers[5].headers["retry-after"]) >= 1
    assert eve.log_in("boss").status == 429  # also the right one
    assert boss.ask("GET", "/nodes").status == 200  # a login that is there still works
    found = boss.get("/audit-log", operation="login", result="refused")["items"]
    assert {record["by"] for record in found} == {"boss"}
    assert "guess" not in json.dumps(found)


def test_an_unknown_name_takes_as_long_as_a_wrong_password(start_broker: StartBroker) -> None:
    node = start_broker(HTTP | {"flockmq.broker.admin.http.authorization.FREE_FAILURES": 1000})
    add_operator(HttpClient(node), "boss", "admin")
    seconds: dict[str, list[float]] = {"boss": [], "nobody": []}
    browser = Browser(node)
    for _ in range(15):
        for name, found in seconds.items():
            began = time.perf_counter()
            assert browser.log_in(name, "wrong").status == 403
            found.append(time.perf_counter() - began)
    known, unknown = (sorted(found)[len(found) // 2] for found in seconds.values())
    assert 0.5 < known / unknown < 2


def test_a_login_ends_with_all_that_it_stands_for(node: Broker) -> None:
    boss = logged_in(node, "boss")
    guest = logged_in(node, "guest")
    stolen = Browser(node)
    stolen.cookie = guest.cookie
    assert stolen.ask("GET", "/nodes").status == 200
    assert guest.ask("POST", "/logout").status == 204
    assert stolen.ask("GET", "/nodes").status == 401
    for change in ({"password": "another long password"}, {"disabled": True}):
        other = Browser(node)
        until(
            lambda other=other, change=change: (
                other.log_in("guest", "another long password" if "disabled" in change else PASSWORD).status == 204
            )
        )
        assert boss.ask("PUT", "/operator", change, name="guest").status == 200
        assert other.ask("GET", "/nodes").status == 401
    assert Browser(node).log_in("guest", "another long password").status == 403  # it is disabled
    worker = logged_in(node, "worker")
    assert boss.ask("PUT", "/operator", {"role": "viewer"}, name="worker").status == 200
    assert worker.ask("POST", "/bans", {"kind": "client_id", "value": "x"}).status == 403
    assert boss.ask("DELETE", "/operator", name="worker").status == 204
    assert worker.ask("GET", "/nodes").status == 401


def test_the_last_administrator_stays(node: Broker) -> None:
    boss = logged_in(node, "boss")
    for change in ({"role": "operator"}, {"disabled": True}, {"tenant": "acme"}):
        assert boss.ask("PUT", "/operator", change, name="boss").status == 409
    assert boss.ask("DELETE", "/operator", name="boss").status == 409
    add_operator(boss, "boss2", "admin")
    assert boss.ask("DELETE", "/operator", name="boss").status == 204


def test_everybody_changes_the_own_password(node: Broker) -> None:
    guest = logged_in(node, "guest")
    new = "a new long password"
    assert guest.ask("PUT", "/me/password", {"current": "wrong", "new_password": new}).status == 422
    assert guest.ask("PUT", "/me/password", {"current": PASSWORD, "new_password": new}).status == 204
    assert guest.ask("GET", "/nodes").status == 401
    assert guest.log_in("guest", new).status == 204
    records = logged_in(node, "boss").get("/audit-log")["items"]
    assert new not in json.dumps(records) and PASSWORD not in json.dumps(records)
    changes = [each for each in records if each["operation"] == "change_own_password"]
    assert [(each["by"], each["result"]) for each in changes] == [("guest", "done"), ("guest", "refused")]


def test_a_stolen_cookie_does_not_open_the_way_to_guess_the_password(node: Broker) -> None:
    boss, guest = logged_in(node, "boss"), logged_in(node, "guest")
    guess = {"current": "wrong", "new_password": "a new long password"}
    assert [guest.ask("PUT", "/me/password", guess).status for _ in range(7)][-1] == 429
    right = {"current": PASSWORD, "new_password": "a new long password"}
    assert guest.ask("PUT", "/me/password", right).status == 429
    assert guest.ask("GET", "/nodes").status == 200
    assert 0 < len(boss.get("/audit-log", operation="change_own_password")["items"]) < 7


def test_no_key_has_the_name_of_an_operator(node: Broker) -> None:
    """Its changes would be on record as the operator's."""
    boss = logged_in(node, "boss")
    assert boss.ask("POST", "/keys", {"name": "worker", "role": "admin"}).status == 409
    assert boss.ask("POST", "/keys", {"name": "ci", "role": "viewer"}).status == 200
    assert boss.ask("POST", "/operators", {"name": "ci", "role": "viewer", "password": PASSWORD}).status == 409


def test_a_key_opens_its_scopes_until_its_end(node: Broker) -> None:
    boss = logged_in(node, "boss")
    made = boss.ask(
        "POST", "/keys", {"name": "ci", "role": "operator", "scopes": ["clients", "kick"], "seconds": 2}
    ).json
    api = HttpClient(node, made["key"])
    assert api.ask("GET", "/clients").status == 200
    assert api.ask("DELETE", "/client/connection", client_id="x").status == 404
    assert (
        api.ask("GET", "/nodes").status == api.ask("POST", "/bans", {"kind": "client_id", "value": "x"}).status == 403
    )
    assert "does not open the operation nodes" in api.ask("GET", "/nodes").json["detail"]
    assert made["key"] not in json.dumps(boss.get("/keys")) and "digest" not in json.dumps(boss.get("/keys"))
    assert made["key"] not in json.dumps(boss.get("/audit-log"))
    wrong = HttpClient(node, f"{made['key'][:-1]}{'a' if made['key'][-1] != 'a' else 'b'}")
    assert wrong.ask("GET", "/clients").status == 401
    until(lambda: api.ask("GET", "/clients").status == 401)  # its end
    forever = boss.ask("POST", "/keys", {"name": "ci", "role": "viewer"}).json
    assert HttpClient(node, forever["key"]).ask("GET", "/nodes").status == 200
    assert boss.ask("DELETE", "/key", id=forever["id"]).status == 204
    assert HttpClient(node, forever["key"]).ask("GET", "/nodes").status == 401
    assert boss.ask("DELETE", "/key", id="../operators/x").status == 404


@pytest.mark.parametrize(
    ("scope", "more", "reason"),
    [
        ("clinets", {}, "there is no operation 'clinets'"),
        ("kick", {}, "kick needs the role operator; the role of the key is viewer"),
        ("nodes", {"tenant": "acme"}, "nodes is for the whole broker; the key is for the tenant acme"),
    ],
)
def test_a_key_has_no_scope_that_it_could_never_use(
    node: Broker, scope: str, more: dict[str, str], reason: str
) -> None:
    boss = logged_in(node, "boss")
    refused = boss.ask("POST", "/keys", {"name": "x", "role": "viewer", "scopes": ["clients", scope], **more})
    assert refused.status == 422 and reason in refused.json["detail"]
    assert boss.get("/keys")["items"] == []


def test_a_tenant_admin_has_the_tenant_alone(start_broker: StartBroker) -> None:
    node = start_broker(HTTP | {"tenants": json.dumps([{"name": "acme", "listener": "default"}])})
    add_operator(HttpClient(node), "boss", "admin")
    add_operator(logged_in(node, "boss"), "ann", "admin", tenant="acme")
    ann = logged_in(node, "ann")
    assert ann.get("/me")["tenant"] == "acme"
    assert ann.ask("POST", "/bans", {"kind": "client_id", "value": "x"}).status == 200
    for method, path, body in (
        ("POST", "/operators", {"name": "eve", "role": "admin", "password": PASSWORD}),
        ("POST", "/keys", {"name": "eve", "role": "admin"}),
        ("GET", "/nodes", None),
        ("PUT", "/log-level", {"level": "debug"}),
    ):
        assert ann.ask(method, path, body).status == 403, path


@pytest.mark.parametrize("is_open", [False, True])
def test_this_machine_reads_only_if_the_operator_wants_it(start_broker: StartBroker, is_open: bool) -> None:
    node = start_broker(HTTP | {"http.open_to_local": is_open})
    add_operator(HttpClient(node), "boss", "admin")
    api = HttpClient(node)
    assert api.ask("GET", "/nodes").status == (200 if is_open else 401)
    assert api.ask("PUT", "/log-level", {"level": "debug"}).status == (403 if is_open else 401)
    assert api.ask("GET", "/nodes", headers={"X-Forwarded-For": "192.0.2.1"}).status == 401  # a proxy
    assert api.ask("GET", "/nodes", headers={"Host": "evil.example"}).status == 401  # DNS rebinding


def test_all_survives_kill_9_and_is_at_all_nodes(start_cluster: StartCluster) -> None:
    cluster = start_cluster(HTTP, nodes="ab")
    add_operator(HttpClient(cluster["a"]), "boss", "admin")
    browser = logged_in(cluster["a"], "boss")
    other = Browser(cluster["b"])
    other.cookie = browser.cookie
    assert other.get("/me")["name"] == "boss"
    key = browser.ask("POST", "/keys", {"name": "ci", "role": "viewer"}).json["key"]
    assert HttpClient(cluster["b"], key).ask("GET", "/nodes").status == 200
    assert browser.ask("POST", "/logout").status == 204
    assert other.ask("GET", "/nodes").status == 401
    cluster["b"].kill()
    cluster["b"].start()
    assert logged_in(cluster["b"], "boss").get("/me")["role"] == "admin"
    assert HttpClient(cluster["b"], key).ask("GET", "/nodes").status == 200


def test_tokens_of_the_file_still_open(start_broker: StartBroker, tmp_path: Path) -> None:
    token = add(tmp_path / "tokens", "ops", "admin")
    node = start_broker(HTTP | {"http.tokens_file": str(tmp_path / "tokens")})
    api = HttpClient(node, token)
    add_operator(api, "boss", "admin")
    assert api.ask("GET", "/nodes").status == 200
    assert logged_in(node, "boss").ask("GET", "/nodes").status == 200
    assert HttpClient(node).ask("GET", "/nodes").status == 401


def test_the_audit_log_tells_an_operator_from_a_token_of_the_same_name(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    token = add(tmp_path / "tokens", "ann", "admin")
    node = start_broker(HTTP | {"http.tokens_file": str(tmp_path / "tokens")})
    api = HttpClient(node, token)
    add_operator(api, "ann", "admin")
    key = api.ask("POST", "/keys", {"name": "ci", "role": "operator"}).json["key"]
    ban = {"kind": "client_id", "value": "x"}
    for holder in (logged_in(node, "ann"), HttpClient(node, key)):
        assert holder.ask("POST", "/bans", ban).status == 200
    found = [(record["by"], record["credential"]) for record in api.get("/audit-log")["items"]]
    assert found == [("ci", "key"), ("ann", "login"), ("ann", "login"), ("ann", "token"), ("ann", "token")]


def test_strange_names(node: Broker) -> None:
    boss = logged_in(node, "boss")
    for name in ("", "a b", "a/b", "#", "<img>", "\ud800", "x" * 65, "../x"):
        body = json.dumps({"name": name, "role": "viewer", "password": PASSWORD}).encode()
        assert boss.ask("POST", "/operators", body).status == 400, name
        assert Browser(node).ask("POST", "/login", json.dumps({"name": name, "password": "x"}).encode()).status in (
            400, 403, 429,
        )  # fmt: skip
    assert isinstance(node, BrokerProcess)
    node.check()


def test_the_first_password_of_an_image(start_broker: StartBroker, tmp_path: Path) -> None:
    """It opens while there is no operator; then the operator has a password of its own."""
    file = tmp_path / "first-password"
    file.write_text(f"{PASSWORD}\nanother line\n")
    node = start_broker(HTTP | {"http.first_password_file": str(file)})
    assert HttpClient(node).ask("GET", "/nodes").status == 401
    assert HttpClient(node).get("/login")["password"] is True
    browser = Browser(node)
    for name, password in (("admin", "wrong"), ("root", PASSWORD), ("admin", "")):
        assert browser.log_in(name, password).status == 403
    assert browser.log_in("admin").status == 204
    assert (
        browser.ask("PUT", "/me/password", {"current": PASSWORD, "new_password": "my own long password"}).status == 204
    )
    assert browser.log_in("admin").status == 403
    assert browser.log_in("admin", "my own long password").status == 204
    add_operator(browser, "ann", "admin")
    assert browser.ask("DELETE", "/operator", name="admin").status == 204
    assert browser.log_in("admin").status == 403  # there is another operator
    file.write_text("short")
    options = ("--set", f"http.first_password_file={file}", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0")
    assert "less than 12 characters" in flockmq("serve", *options, status=2)


def test_logins_of_an_operator_are_bounded(node: Broker) -> None:
    """A flood of right logins fills no store: the oldest ends."""
    browsers = [logged_in(node, "guest") for _ in range(MAX_LOGINS + 1)]
    assert [browser.ask("GET", "/nodes").status for browser in browsers] == [401] + [200] * MAX_LOGINS
