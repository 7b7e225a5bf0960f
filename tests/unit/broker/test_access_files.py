"""Files with users and rules of others: what they allow is the same here, or less, with a warning; never more."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.session.rights import READ, Rights, covers
from flockmq.broker.auth.passwords import parse_hash
from flockmq.broker.auth.rules import parse_rule, rights_of
from flockmq.broker.commands.access_files import Imported, read
from flockmq.broker.errors import FlockError
from tests.security.access_files import quick_hash

PASSWORD = {
    "password": "A" * 86 + "==",
    "salt": "c2FsdHNhbHQ=",
    "iterations": 101,
}


DEFAULTS = {"publishClientSend": False, "publishClientReceive": True, "subscribe": False}


def load(path: Path, document: object) -> tuple[Imported, list[str]]:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    warnings: list[str] = []
    return read(str(path), lambda where, fault: warnings.append(f"{where}: {fault}")), warnings


def acl(kind: str, topic: str, *, allow: bool = True, priority: int = 0) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "allow": allow, "priority": priority}


def test_a_file_as_mosquitto_ctrl_makes_it(tmp_path: Path) -> None:
    """With the admin of `mosquitto_ctrl dynsec init`, the role of an issue, groups, and a user without password."""
    admin = [
        acl("publishClientSend", "$CONTROL/dynamic-security/#"),
        acl("publishClientReceive", "$CONTROL/dynamic-security/#"),
        acl("publishClientReceive", "$SYS/#"),
        acl("publishClientReceive", "#"),
        acl("subscribePattern", "$SYS/#"),
        acl("subscribePattern", "#"),
        acl("unsubscribePattern", "#"),
    ]
    sensor = [
        acl(kind, "sensor")
        for kind in ("publishClientSend", "publishClientReceive", "subscribePattern", "subscribeLiteral")
    ]
    own = [acl("publishClientSend", "client/%c/#"), acl("subscribePattern", "client/%c/#")]
    found, warnings = load(
        tmp_path / "dynamic-security.json",
        {
            "defaultACLAccess": {**DEFAULTS, "unsubscribe": True},
            "clients": [
                {"username": "admin", "textName": "Dynsec admin user", **PASSWORD, "roles": [{"rolename": "admin"}]},
                {
                    "username": "s1",
                    **PASSWORD,
                    "groups": [{"groupname": "all", "priority": 1}],
                    "roles": [{"rolename": "own"}],
                },
                {"username": "s2", "encoded_password": quick_hash("x"), "disabled": True, "clientid": "only-this"},
                {"username": "s3"},
            ],
            "groups": [{"groupname": "all", "roles": [{"rolename": "sensor"}], "clients": [{"username": "s2"}]}],
            "roles": [
                {"rolename": "admin", "acls": admin, "textdescription": "All"},
                {"rolename": "sensor", "acls": sensor},
                {"rolename": "own", "acls": own},
            ],
            "anonymousGroup": "all",
        },
    )
    users = {user["name"]: user for user in found.users}
    assert {name: (user["roles"], user["disabled"], user["rules"]) for name, user in users.items()} == {
        "admin": (["admin"], False, []),
        "s1": (["own", "sensor"], False, []),
        "s2": (["sensor"], True, []),
    }
    assert parse_hash(users["s1"]["hash"]).scheme == "pbkdf2"
    assert {role["name"]: role["rules"] for role in found.roles} == {
        "admin": ["topic read $SYS/#", "topic read #"],
        "sensor": ["topic write sensor", "topic read sensor"],
        "own": ["pattern write client/%c/#", "pattern read client/%c/#"],
        "anonymous": ["topic write sensor", "topic read sensor"],
    }
    assert [warning.partition(": ")[2] for warning in warnings] == [
        "groups become roles of their members: all",
        "user 's2': may log in with any client id now, not only with 'only-this'",
        "user 's3': is not imported: it has no password; `flockmq users add` makes it",
    ]


def test_a_denial_of_a_higher_priority_and_one_of_a_lower(tmp_path: Path) -> None:
    acls = [
        acl("subscribePattern", "#", allow=False, priority=-1),
        acl("subscribePattern", "a/#", priority=1),
        acl("publishClientSend", "a/#"),
        acl("publishClientSend", "a/secret", allow=False, priority=5),
        acl("subscribeLiteral", "#", allow=False, priority=9),
    ]
    document = {
        "clients": [{"username": "ada", **PASSWORD, "roles": [{"rolename": "r"}]}],
        "roles": [{"rolename": "r", "acls": acls}],
    }
    found, warnings = load(tmp_path / "x.json", document)
    assert found.roles[0]["rules"] == ["topic write a/#", "topic read a/#", "topic deny a/secret"]
    assert [warning.rpartition("'r': ")[2] for warning in warnings] == [
        "a/secret is denied for reading and publishing, not only for publishClientSend",
        "the filter # may be subscribed to; only readable messages are delivered",
    ]


class Model:
    """Mosquitto's decisions by such a file, for one client; roles of equal priority in the order of their names."""

    def __init__(self, document: dict[str, Any], roles: list[str]) -> None:
        self.defaults = document["defaultACLAccess"]
        known = {role["rolename"]: role["acls"] for role in document["roles"]}
        self.acls = [each for role in sorted(roles) for each in sorted(known[role], key=lambda each: -each["priority"])]

    def decide(self, action: str, name: str) -> bool:
        for each in self.acls:
            kind, topic = each["acltype"], each["topic"]
            if kind == action and Rights([(True, READ, topic.encode())]).may_read(name.encode()):
                return bool(each["allow"])
            if action == "subscribe" and kind == "subscribeLiteral" and topic == name:
                return bool(each["allow"])
            if action == "subscribe" and kind == "subscribePattern" and covers(topic.encode(), name.encode()):
                return bool(each["allow"])
        return bool(self.defaults[action])

    def may_read(self, topic: str) -> bool:
        """Whether the client can subscribe to something so that it gets messages of a topic."""
        filters = {topic, *(each["topic"] for each in self.acls), "#"}
        matching = [each for each in filters if covers(each.encode(), topic.encode())]
        return self.decide("publishClientReceive", topic) and any(self.decide("subscribe", each) for each in matching)


def test_nothing_is_allowed_that_mosquitto_denies(tmp_path: Path) -> None:
    rng = random.Random(20261124)
    kinds = ("publishClientSend", "publishClientReceive", "subscribePattern", "subscribeLiteral")
    filters = ("a", "a/b", "a/+", "a/#", "+/b", "#", "b")
    allowed = 0
    for _ in range(1500):
        document: dict[str, Any] = {
            "defaultACLAccess": {
                name: rng.random() < 0.3 for name in ("publishClientSend", "publishClientReceive", "subscribe")
            },
            "roles": [
                {
                    "rolename": role,
                    "acls": [
                        acl(
                            rng.choice(kinds),
                            rng.choice(filters),
                            allow=rng.random() < 0.7,
                            priority=rng.randint(-1, 2),
                        )
                        for _ in range(rng.randint(0, 4))
                    ],
                }
                for role in "rs"
            ],
        }
        roles = rng.sample("rs", rng.randint(0, 2))
        document["clients"] = [{"username": "ada", **PASSWORD, "roles": [{"rolename": role} for role in roles]}]
        found, _ = load(tmp_path / "x.json", document)
        rules = {role["name"]: role["rules"] for role in found.roles}
        lines = [line for role in (*found.users[0]["roles"], "everyone") for line in rules.get(role, [])]
        rights, model = rights_of(map(parse_rule, lines), "ada", "c"), Model(document, roles)
        for topic in ("a", "a/b", "a/c", "b", "c/b", "x"):
            if rights.may_publish(topic.encode()):
                assert model.decide("publishClientSend", topic), (document, topic, lines)
                allowed += 1
            if rights.may_read(topic.encode()):
                assert model.may_read(topic), (document, topic, lines)
                allowed += 1
    assert allowed > 1000, allowed


def test_password_files_and_acl_files(tmp_path: Path) -> None:
    stored = quick_hash("x")
    found, warnings = load(tmp_path / "passwd", f"# users\nada:{stored}\nbob:{stored}\nbad:secret\n")
    assert found == Imported([{"name": name, "hash": stored} for name in ("ada", "bob")], [], {})
    assert len(warnings) == 1 and "secret" not in warnings[0]
    lines = (
        "topic read public",
        "user ada",
        "topic deny a/secret",
        "topic a/#",
        "pattern write devices/%c",
        "user bob",
    )
    text = "\n".join((*lines, "topic write b c"))
    found, warnings = load(tmp_path / "acl", text)
    assert (found.users, warnings) == ([], [])
    assert {role["name"]: role["rules"] for role in found.roles} == {
        "everyone": ["pattern write devices/%c"],
        "anonymous": ["topic read public"],
    }
    assert found.rules == {"ada": ["topic deny a/secret", "topic readwrite a/#"], "bob": ["topic write b c"]}


def test_a_role_with_a_name_that_it_can_not_have_here(tmp_path: Path) -> None:
    """Without it, users would have less rules that deny."""
    path = tmp_path / "dynamic-security.json"
    for name in ("bad name#", "a,b", " ", "a\nb"):
        with pytest.raises(FlockError, match="rename the role") as refusal:
            load(path, {"clients": [], "roles": [{"rolename": name, "acls": []}]})
        assert repr(name) in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"clients": 5}',
        '{"clients": [5]}',
        '{"roles": [{"acls": []}]}',
        '{"roles": [{"rolename": "r", "acls": [{}]}]}',
        '{"clients": [{"username": "a", "roles": [{}]}]}',
        "[" * 100_000,
        '{"roles": [{"rolename": "r", "acls": [{"acltype": "publishClientSend", "topic": "a/#/b", "allow": false}]}]}',
    ],
)
def test_what_is_no_such_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(FlockError, match=r"is no dynamic-security\.json|expected"):
        load(tmp_path / "x", text)
