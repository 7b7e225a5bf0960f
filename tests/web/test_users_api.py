"""Users and roles by the API and the commands: at a node alone and in a cluster, durable, and closed to others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flockmq.broker.admin.http.tokens import add
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, environment, until
from tests.harness.cluster_process import Broker, ClusterProcess
from tests.harness.command import flockmq
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, quick_hash, refused
from tests.web.http_client import HttpClient

SETTINGS = {"auth.users": True, "auth.failure_delay": 0, "http.listen": "127.0.0.1:0"}
HASH = quick_hash("x")
one_node = pytest.mark.parametrize("store", ["sqlite"])
both = pytest.mark.parametrize("store", ["sqlite", "cluster"])


def node_of(broker: Broker) -> BrokerProcess:
    """The node, or a node of the cluster: clients without a user can't settle a cluster."""
    return broker.nodes[0] if isinstance(broker, ClusterProcess) else broker


def api_of(broker: Broker) -> HttpClient:
    """The API of this node."""
    return HttpClient(node_of(broker))


def put(api: HttpClient, name: str, **more: object) -> None:
    reply = api.ask("POST", "/users", {"name": name, "hash": HASH, **more})
    assert reply.status == 200, reply


def client(broker: Broker, user: str, line: str = "") -> Wire:
    return Wire(node_of(broker).port, name=f"c-{user}").connect(f"user={user} pass=x {line}")


@both
def test_add_change_list_and_remove(start_broker: StartBroker) -> None:
    api = api_of(start_broker(SETTINGS))
    for name in ("b/c", "#", "+", "\u00e4", "a:b", "a b", "<script>", "a" * 1000):
        put(api, name)
    assert api.ask("POST", "/users", {"name": "#", "hash": HASH, "disabled": True}).status == 409  # it replaces nothing
    names: list[str] = []
    after = ""
    while after is not None:
        page = api.get("/users", limit=3, after=after)
        names += [item["name"] for item in page["items"]]
        after = page["next"]
    assert names == sorted(["b/c", "#", "+", "\u00e4", "a:b", "a b", "<script>", "a" * 1000])
    assert [item["name"][:3] for item in api.get("/users", search="a")["items"]] == ["a b", "a:b", "aaa"]
    assert api.get("/users", search="a", after="a b", limit=1)["items"][0]["name"] == "a:b"
    first = api.get("/user", name="#")
    assert first == {
        "name": "#", "rules": None, "roles": [], "disabled": False, "credentials": "sha512",
        "version": first["version"],
    }  # fmt: skip
    second = api.ask("PATCH", "/user", {"rules": ["topic read a"]}, name="#", version=first["version"]).json
    assert second["rules"] == ["topic read a"] and second["version"] != first["version"]
    for method, body in (("PATCH", {"rules": None}), ("DELETE", None)):  # somebody has changed it
        assert api.ask(method, "/user", body, name="#", version=first["version"]).status == 409
    assert api.get("/user", name="#") == second
    assert api.ask("PATCH", "/user", {"rules": None}, name="#").json["rules"] is None
    assert api.ask("DELETE", "/user", name="#").status == 204
    assert api.ask("DELETE", "/user", name="#").status == 404
    assert api.ask("PATCH", "/user", {}, name="#").status == 404


@one_node
def test_what_is_no_user_is_refused(start_broker: StartBroker) -> None:
    broker = start_broker(SETTINGS)
    api = api_of(broker)
    for name in ("", " a", "a ", "a\x00b", "a\nb", "\x85", "a" * 1001, "a" * 65_536):
        assert api.ask("POST", "/users", {"name": name, "hash": HASH}).status in (400, 422), name[:9]
    for raw in (rb'"\ud800"', rb'"a\udfff"'):
        body = b'{"name": %s, "hash": "%s"}' % (raw, HASH.encode())
        assert api.ask("POST", "/users", body).status == 400
    for more in (
        {}, {"hash": "secret"}, {"hash": HASH, "password": "x"}, {"password": ""},
        {"hash": HASH, "rules": ["topic x a b"]},
        {"hash": HASH, "rules": "topic a"}, {"hash": HASH, "roles": [1]}, {"hash": HASH, "admin": True},
        {"hash": HASH, "rules": ["topic a"] * 1001}, {"hash": HASH, "roles": ["a"] * 101},
        {"hash": HASH, "roles": ["a", "b,c"]},
    ):  # fmt: skip
        assert api.ask("POST", "/users", {"name": "ada", **more}).status in (400, 422), more
    assert api.get("/users")["items"] == []
    for name in ("bad name#", "a/b", "+", "a,b", " a", ""):
        role = {"name": name, "rules": []}
        assert api.ask("POST", "/roles", role).status in (400, 422), name
        assert api.ask("POST", "/roles/import", {"roles": [role]}).status in (400, 422), name
    for name in ("all pumps", "Pumpe süd", "पंप", "site:1@x", "a" * 1000):
        assert api.ask("POST", "/roles", {"name": name, "rules": []}).status == 200, name
    assert HASH not in broker.log_text() and '"secret"' not in broker.log_text()


@both
def test_a_change_is_durable_when_the_api_replies(start_broker: StartBroker) -> None:
    broker = start_broker({**SETTINGS, "auth.allow_anonymous": True})
    api = api_of(broker)
    for number in range(20):
        put(api, f"user-{number}", roles=["pump"])
    assert api.ask("POST", "/roles", {"name": "pump", "rules": ["topic read a"]}).status == 200
    assert api.ask("DELETE", "/user", name="user-0").status == 204
    broker.kill()
    broker.start()
    api = api_of(broker)
    assert len(api.get("/users")["items"]) == 19
    with client(broker, "user-7") as one:
        one.send("subscribe 1 a:0 b:0")
        one.expect("suback 1 0 0x80")


@both
def test_a_changed_role_acts_on_connected_clients(start_broker: StartBroker) -> None:
    broker = start_broker({**SETTINGS, "auth.allow_anonymous": True})
    api = api_of(broker)
    assert api.ask("POST", "/roles", {"name": "reader", "rules": ["topic read a"]}).status == 200
    put(api, "ada", roles=["reader"])
    put(api, "bob")
    with client(broker, "ada") as ada, client(broker, "bob") as bob, Wire(broker.port, name="guest").connect() as guest:
        ada.send("subscribe 1 a:1 b:1")
        ada.expect("suback 1 1 0x80")
        bob.send("publish a 1 q1 id=1")
        bob.expect("puback 1")
        ada.expect("publish a 1 q1 id=1")
        ada.send("puback 1")
        assert api.ask("PATCH", "/role", {"rules": ["topic read b"]}, name="reader").status == 200
        bob.send("publish a 2 q1 id=2")
        bob.expect("puback 2")
        ada.send("subscribe 2 b:0")
        ada.expect("suback 2 0")  # and nothing of `a`
        assert api.ask("POST", "/roles", {"name": "anonymous", "rules": []}).status == 200
        guest.send("subscribe 1 c:0")
        guest.expect("suback 1 0x80")
        bob.send("subscribe 1 c:0")
        bob.expect("suback 1 0")
        assert api.ask("POST", "/roles", {"name": "everyone", "rules": ["topic read d"]}).status == 200
        bob.send("subscribe 2 c:0 d:0")
        bob.expect("suback 2 0x80 0")
        assert api.ask("DELETE", "/role", name="reader").status == 204
        ada.send("subscribe 3 b:0 d:0")
        ada.expect("suback 3 0x80 0")
        for name in ("everyone", "anonymous"):
            assert api.ask("DELETE", "/role", name=name).status == 204
        guest.send("subscribe 2 c:0")
        guest.expect("suback 2 0")


def test_the_check_knows_connected_clients_of_all_nodes(start_cluster: StartCluster, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("pattern write devices/%c/#\nuser bob\ntopic read news\n")
    cluster = start_cluster({**SETTINGS, "auth.acl_file": str(tmp_path / "acl")}, nodes="ab")
    a, b = (HttpClient(cluster[name]) for name in "ab")
    assert a.ask("POST", "/roles", {"name": "reader", "rules": ["topic read a/#", "topic deny a/b"]}).status == 200
    put(a, "ada", roles=["reader", "lost"], rules=["topic write own"])
    put(b, "eve", disabled=True)

    def ask(**query: str) -> tuple[bool, str, tuple[str, str, int] | None]:
        found = b.get("/rules/check", **query)
        source = found["source"]
        return found["allowed"], found["rule"], None if source is None else tuple(source.values())

    of_ada = {"username": "ada"}
    assert ask(**of_ada, action="read", topic="a/1") == (True, "topic read a/#", ("role", "reader", 0))
    assert ask(**of_ada, action="read", topic="a/b") == (False, "topic deny a/b", ("role", "reader", 0))
    assert ask(**of_ada, action="publish", topic="own") == (True, "topic write own", ("user", "ada", 0))
    assert ask(**of_ada, action="subscribe", topic="$share/g/a/#")[0]
    assert ask(**of_ada, action="publish", topic="x") == (False, "", None)
    assert ask(username="eve", action="publish", topic="x") == (False, "", None)
    place = ("file", str(tmp_path / "acl"), 3)
    assert ask(username="bob", action="read", topic="news") == (True, "topic read news", place)
    assert ask(action="publish", topic="x") == (False, "", None)  # anonymous clients are refused
    with client(cluster["a"], "ada"):
        found = ask(client_id="c-ada", action="publish", topic="devices/c-ada/1")
        assert found == (True, "pattern write devices/%c/#", ("file", str(tmp_path / "acl"), 1))
        assert "yes: a rule allows it\n  topic write own\n  user ada" in b.command(
            "users", "may", "c-ada", "publish", "own", "--client"
        )
    assert b.ask("GET", "/rules/check", client_id="c-ada", action="read", topic="x").status == 404
    for action, topic in (
        ("publish", "a/#"),
        ("read", "+"),
        ("subscribe", "a/#/b"),
        ("publish", "a\x00"),
        ("frob", "a"),
    ):
        assert b.ask("GET", "/rules/check", **of_ada, action=action, topic=topic).status in (400, 422), topic
    assert "no: no rule allows it" in b.command("users", "may", "ada", "subscribe", "secret/#")


@one_node
def test_only_administrators_of_the_whole_broker_change_users(start_broker: StartBroker, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    by_role = {
        role: add(tokens, role, role.partition("-")[0], "red" if "-" in role else "")
        for role in ("admin", "viewer", "admin-red", "viewer-red")
    }
    broker = start_broker({**SETTINGS, "http.tokens_file": str(tokens)})
    admin, reader, *of_tenant = (HttpClient(broker, token) for token in by_role.values())
    put(admin, "ada")
    changes = (
        ("POST", "/users", {"name": "eve", "hash": HASH}, {}),
        ("PATCH", "/user", {"disabled": True}, {"name": "ada"}),
        ("DELETE", "/user", None, {"name": "ada"}),
        ("POST", "/users/import", {"users": [{"name": "eve", "hash": HASH}]}, {}),
        ("POST", "/roles", {"name": "r", "rules": []}, {}),
        ("PATCH", "/role", {"rules": []}, {"name": "r"}),
        ("DELETE", "/role", None, {"name": "r"}),
        ("POST", "/roles/import", {"roles": []}, {}),
    )
    reads = (
        ("/users", {}),
        ("/user", {"name": "ada"}),
        ("/roles", {}),
        ("/rules/check", {"username": "ada", "action": "read", "topic": "t"}),
    )
    for method, path, body, query in changes:
        for api in (reader, *of_tenant):
            assert api.ask(method, path, body, **query).status == 403, (method, path)
        assert HttpClient(broker).ask(method, path, body, **query).status == 401
    for path, query in reads:
        assert reader.ask("GET", path, **query).status == 200
        for api in of_tenant:
            assert api.ask("GET", path, **query).status == 403, path
    assert [(item["name"], item["disabled"]) for item in admin.get("/users")["items"]] == [("ada", False)]


@both
def test_imports_in_batches(start_broker: StartBroker) -> None:
    api = api_of(start_broker(SETTINGS))
    put(api, "u1", rules=["topic read own"])
    users = [{"name": f"u{number}", "hash": HASH, "roles": ["r"]} for number in range(100)]
    found = api.ask("POST", "/users/import", {"users": users}).json
    assert found == {"created": 99, "changed": 0, "equal": 0, "existing": ["u1"]}
    found = api.ask("POST", "/users/import", {"users": users, "replace": True}).json
    assert found == {"created": 0, "changed": 1, "equal": 99, "existing": []}
    one = api.get("/user", name="u1")
    assert (one["rules"], one["roles"]) == (["topic read own"], ["r"])  # what is not given stays
    assert api.ask("POST", "/users/import", {"users": [*users, users[0]]}).status == 400
    assert api.ask("POST", "/users/import", {"users": [users[0], users[0]]}).status == 422
    many = [{"name": "big", "hash": HASH, "rules": ["topic a"] * 1000}] * 3
    assert api.ask("POST", "/users/import", {"users": many}).status == 422
    roles = [{"name": f"r{number}", "rules": ["topic read a"]} for number in range(100)]
    assert api.ask("POST", "/roles/import", {"roles": roles}).json["created"] == 100
    assert len(api.get("/roles", limit=1000)["items"]) == 100


@both
def test_many_change_one_user_at_the_same_time(start_broker: StartBroker) -> None:
    """Each changes another property; none is lost."""
    broker = start_broker({**SETTINGS, "auth.allow_anonymous": True})
    api = api_of(broker)
    put(api, "ada")
    code = (
        "import sys\nfrom tests.web.http_client import HttpClient\n"
        "import http.client, json\n"
        "body = json.loads(sys.argv[2])\n"
        "for _ in range(20):\n"
        "    connection = http.client.HTTPConnection(sys.argv[1])\n"
        "    kind = {'Content-Type': 'application/json'}\n"
        "    connection.request('PATCH', '/api/v1/user?name=ada', json.dumps(body), kind)\n"
        "    reply = connection.getresponse()\n    assert reply.status == 200, reply.read()\n"
    )
    bodies = [{"rules": ["topic read a"]}, {"roles": ["r"]}, {"disabled": True}]
    place = f"{api.host}:{api.port}"
    children = [
        subprocess.Popen([sys.executable, "-c", code, place, json.dumps(body)], env=environment()) for body in bodies
    ]
    assert [child.wait(DEADLINE) for child in children] == [0, 0, 0]
    found = api.get("/user", name="ada")
    assert (found["rules"], found["roles"], found["disabled"]) == (["topic read a"], ["r"], True)
    refused(node_of(broker), "user=ada pass=x", NOT_AUTHORIZED)


@one_node
def test_rights_change_while_clients_connect(start_broker: StartBroker) -> None:
    """No client keeps a right that was withdrawn while it connected."""
    broker = start_broker(SETTINGS)
    api = api_of(broker)
    for number in range(30):
        put(api, f"u{number}", roles=["r"])
    clients = []
    for number in range(30):
        one = Wire(broker.port, name=f"c{number}")
        one.send(f"connect user=u{number} pass=x")
        clients.append(one)
        rules = ["topic readwrite a"] if number < 29 else ["topic read b"]
        path = (
            ("POST", "/roles", {"name": "r", "rules": rules}, {})
            if not number
            else ("PATCH", "/role", {"rules": rules}, {"name": "r"})
        )
        assert api.ask(*path[:3], **path[3]).status == 200
    for one in clients:
        one.expect("connack")
    for one in clients:
        one.send("subscribe 1 a:0 b:0")
        one.expect("suback 1 0x80 0")
        one.close()


@one_node
def test_the_commands(start_broker: StartBroker) -> None:
    broker = start_broker(SETTINGS)
    api = api_of(broker)
    run = api.command
    assert run("users") == "there are no users\n"
    added = flockmq("users", "add", "ada", "topic read a", "--role", "r", "--url", api.url, entered="engine\n")
    assert added == "ada: role r; topic read a\n"
    again = flockmq("users", "add", "ada", "--url", api.url, entered="engine\n", status=1)
    assert "there is a user 'ada' already" in again
    assert run("users", "disable", "ada") == "ada: disabled; role r; topic read a\n"
    assert run("users", "set-roles", "ada") == "ada: disabled; topic read a\n"
    assert run("users", "unrestrict", "ada") == "ada: disabled; everything that general rules allow\n"
    assert run("users", "set-rules", "ada") == "ada: disabled; nothing\n"
    assert json.loads(run("users", "--json"))[0]["disabled"] is True
    assert run("roles", "add", "r", "topic write b", "--description", "Writers") == "r: topic write b\n"
    assert run("roles") == "r  topic write b  Writers\n"
    assert run("roles", "set-rules", "r") == "r: nothing\n"
    assert run("roles", "remove", "r") == "r is removed\n"
    assert run("users", "remove", "ada") == "ada is removed\n"
    assert "there is no user 'ada'" in run("users", "remove", "ada", status=1)
    for arguments, words in (
        (("add",), "takes a name"),
        (("list", "ada"), "takes no name"),
        (("add", "a\nb"), "can't be a user's name"),
        (("set-rules", "ada", "topic reads x"), "the rule 'topic reads x'"),
        (("remove", "ada", "x"), "takes no rules"),
        (("set-roles", "ada", "pump"), "--role ROLE names each role"),
        (("set-password", "ada", "--rounds", "5000"), "add --scram"),
        (("remove", "ada", "--role", "x"), "--role is not of"),
        (("enable", "ada", "--replace"), "--replace is not of `enable`"),
        (("enable", "ada", "--scram"), "it is for `add` and `set-password`"),
        (("show", "ada", "--search", "a"), "--search is not of"),
        (("set-roles", "ada", "--role", "bad name#"), "can't be a role's name"),
        (("may", "ada", "drink", "tea"), "publish, subscribe and read"),
    ):
        assert words in run("users", *arguments, status=2), arguments
    assert "takes --description" in run("roles", "describe", "r", status=2)
    assert "--description is not of `set-rules`" in run("roles", "set-rules", "r", "--description", "x", status=2)
    assert "none of them a comma" in run("roles", "add", "bad name#", status=2)


@one_node
def test_files_are_imported(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(SETTINGS)
    api = HttpClient(broker)
    passwords, rules, dynsec = (tmp_path / name for name in ("passwd", "acl", "dynamic-security.json"))
    passwords.write_text("".join(f"u{number:03}:{HASH}\n" for number in range(230)))
    rules.write_text("pattern read %c\nuser u007\ntopic write seven\nuser nobody\ntopic read a\n")
    dynsec.write_text(
        json.dumps(
            {
                "clients": [
                    {"username": name, "encoded_password": HASH, "roles": [{"rolename": "r"}]}
                    for name in ("u001", "new")
                ],
                "roles": [{"rolename": "r", "acls": [{"acltype": "publishClientSend", "topic": "r/#", "allow": True}]}],
            }
        )
    )
    assert "users: 230 created, 0 changed, 0 as they were" in api.command("users", "import", str(passwords))
    shown = api.command("users", "import", str(passwords))
    assert "u000, u001" in shown and "u009 and 220 more" in shown
    assert "230 as they were" in api.command("users", "import", str(passwords), "--replace")
    assert "roles: 1 created, 0 changed" in api.command("users", "import", str(rules))
    assert api.get("/user", name="u007")["rules"] == ["topic write seven"]
    assert api.get("/role", name="everyone")["rules"] == ["pattern read %c"]
    assert "exist, and stay as they are (--replace changes them): u001" in api.command("users", "import", str(dynsec))
    assert api.get("/user", name="u001")["roles"] == []
    assert "users: 0 created, 1 changed, 1 as" in api.command("users", "import", str(dynsec), "--replace")
    assert api.get("/user", name="u001")["roles"] == ["r"]
    with client(broker, "new") as new:
        new.send("publish r/1 x q1 id=1", "subscribe 1 c-new:0 r/1:0")
        new.expect("puback 1", "suback 1 0 0x80")
    assert "can't be read" in api.command("users", "import", str(tmp_path / "none"), status=2)
    assert HASH not in broker.log_text()  # the log has requests without secrets, also without those in lists


def test_redis_away(start_cluster: StartCluster) -> None:
    cluster = start_cluster(SETTINGS, nodes="ab", proxies=True)
    a, b = (HttpClient(cluster[name]) for name in "ab")
    assert a.ask("POST", "/roles", {"name": "r", "rules": ["topic read a"]}).status == 200
    put(a, "ada", roles=["r"])
    with client(cluster["a"], "ada") as ada:
        cluster["a"].proxy.refuse()
        cluster["a"].proxy.cut()
        cluster["a"].wait_for_log("Redis is away")
        for reply in (
            a.ask("GET", "/users"),
            a.ask("POST", "/users", {"name": "eve", "hash": HASH}),
            a.ask("PATCH", "/role", {"rules": []}, name="r"),
        ):
            assert reply.status == 503 and "Redis" in reply.json["detail"], reply
        assert b.ask("PATCH", "/role", {"rules": ["topic read b"]}, name="r").status == 200
        cluster["a"].proxy.resume()
        cluster["a"].wait_for_log("Redis is back")

        def has_new_rules() -> bool:
            ada.send("subscribe 1 a:0 b:0")
            return bool(ada.packet().reason_codes == [0x80, 0])

        until(has_new_rules, "the change of that time acts")
