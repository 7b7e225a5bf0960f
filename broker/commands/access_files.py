"""Files with users and rules of other brokers, and of this one, as `flockmq users import` reads them.

A password file has users. An ACL file has rules of users that exist; its patterns become the role `everyone`, its rules
for anonymous clients the role `anonymous`. `dynamic-security.json` of Mosquitto has users, groups and roles.

Mosquitto asks the ACLs of a client by priority, and the first that matches counts. Here a rule that denies always wins.
An ACL without a counterpart in rules becomes stricter, never looser, and a warning names it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..._speedups.session.rights import covers, overlap
from ..auth.acl_file import AclFile
from ..auth.credentials import ROLE_NAMES, USER_NAMES
from ..auth.password_file import read_users
from ..auth.passwords import parse_hash
from ..auth.right_check import text_of
from ..auth.roles import ANONYMOUS, EVERYONE, GENERAL
from ..auth.rules import parse_rule
from ..errors import UsageError

SEND, RECEIVE, SUBSCRIBE = "publishClientSend", "publishClientReceive", "subscribe"
DEFAULTS = {SEND: False, RECEIVE: True, SUBSCRIBE: False}  # as Mosquitto has them
CONTROL = "$CONTROL/"
Warn = Callable[[str, str], object]  # place, fault


class Imported(NamedTuple):
    """The content of a file."""

    users: list[dict[str, Any]]  # to be added
    roles: list[dict[str, Any]]
    rules: dict[str, list[str]]  # of users that exist, by name


def read(path: str, warn: Warn) -> Imported:
    """Read a file of any of these kinds.

    Args:
        path: of the file.
        warn: called with a place and a sentence about a part that is not imported as it is.

    Raises:
        UsageError: it can't be read, or is none of these files.
        ConfigError: a line of it is wrong.
    """
    try:
        text = Path(path).read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if first.startswith("{"):
        return DynamicSecurity(path, text, warn).read()
    if first.partition(" ")[0] in ("user", "topic", "pattern") and ":$" not in first:
        return _of_acl_file(path)
    users = [{"name": name, "hash": stored.text} for name, stored in read_users(path, warn).items()]
    return Imported(users, [], {})


def _of_acl_file(path: str) -> Imported:
    file = AclFile(path)
    patterns = [text_of(rule) for rule in file.rules("")]
    sections = {name: [text_of(rule) for rule in file.rules(name)[len(patterns) :]] for name in file.sections}
    roles = [{"name": EVERYONE, "rules": patterns, "description": f"patterns of {Path(path).name}"}]
    if None in sections:
        description = f"rules for anonymous clients of {Path(path).name}"
        roles.append({"name": ANONYMOUS, "rules": sections.pop(None), "description": description})
    return Imported([], roles, {str(name): rules for name, rules in sections.items()})


class Acl(NamedTuple):
    """An ACL of a role of Mosquitto."""

    action: str  # SEND, RECEIVE or SUBSCRIBE
    topic: str
    allow: bool
    priority: int
    is_literal: bool  # of one filter, as it is written: others with the same messages may be subscribed to

    def meets(self, deny: "Acl") -> bool:
        """Whether a denying ACL is about the same action, and some of the messages."""
        if self.action != deny.action:
            return False
        if deny.is_literal:
            return self.is_literal and self.topic == deny.topic
        return overlap(self.topic.encode(), deny.topic.encode())


class DynamicSecurity:
    """The file `dynamic-security.json`.

    Args:
        path: of the file.
        text: of the file.
        warn: as for `read`.

    Raises:
        UsageError: it is no such file.
    """

    def __init__(self, path: str, text: str, warn: Warn) -> None:
        self._path = path
        self._warn = warn
        try:
            self._document = json.loads(text)
            assert isinstance(self._document.get("clients", []), list)
        except (ValueError, AttributeError, AssertionError, RecursionError) as error:
            raise UsageError(f"{path} is no dynamic-security.json: {error}") from error
        given = self._document.get("defaultACLAccess") or {}
        self._defaults = {action: bool(given.get(action, value)) for action, value in DEFAULTS.items()}

    def read(self) -> Imported:
        """Its users and roles."""
        try:
            return self._read()
        except (TypeError, AttributeError, KeyError) as error:
            raise UsageError(f"{self._path} is no dynamic-security.json: {error!r}") from error

    def _read(self) -> Imported:
        acls = {role["rolename"]: self._acls(role) for role in self._document.get("roles", [])}
        of_groups, members = self._groups()
        given: dict[str, list[str]] = {}
        users = []
        for client in self._document.get("clients", []):
            name = str(client.get("username"))
            groups = [group["groupname"] for group in client.get("groups", [])] + members[name]
            own = [role["rolename"] for role in client.get("roles", [])]
            roles = list(dict.fromkeys([*own, *(role for group in groups for role in of_groups.get(group, []))]))
            given[name] = roles
            if (user := self._user(name, client, roles)) is not None:
                users.append(user)
        roles = [
            {
                "name": self._name(role["rolename"]),
                "rules": self._rules(role["rolename"], acls, given.values()),
                "description": str(role.get("textdescription") or role.get("textname") or ""),
            }
            for role in self._document.get("roles", [])
        ]
        rules = {role["name"]: role["rules"] for role in roles}
        if anonymous := self._document.get("anonymousGroup"):
            found = [rule for role in of_groups.get(anonymous, []) for rule in rules[self._name(role)]]
            roles.append({"name": ANONYMOUS, "rules": list(dict.fromkeys(found)), "description": f"group {anonymous}"})
        if default := self._general():
            roles.append({"name": EVERYONE, "rules": default, "description": "defaultACLAccess"})
        return Imported(users, roles, {})

    def _groups(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The roles of each group; the groups of each user."""
        roles: dict[str, list[str]] = {}
        members: dict[str, list[str]] = defaultdict(list)
        for group in self._document.get("groups", []):
            roles[group["groupname"]] = [role["rolename"] for role in group.get("roles", [])]
            for client in group.get("clients", []):
                members[client["username"]].append(group["groupname"])
        if roles:
            self._warn(self._path, f"groups become roles of their members: {', '.join(sorted(roles))}")
        return roles, members

    def _user(self, name: str, client: dict[str, Any], roles: list[str]) -> dict[str, Any] | None:
        where = f"{self._path}: user {name!r}"
        if not USER_NAMES.has(name):
            self._warn(where, f"is not imported: expected {USER_NAMES.expected}")
            return None
        stored = client.get("encoded_password")
        if not stored and client.get("password"):
            stored = f"$7${client.get('iterations', 101)}${client.get('salt')}${client['password']}"
        try:
            found = parse_hash(str(stored or "")).text
        except ValueError as fault:
            reason = fault if stored else "it has no password"
            self._warn(where, f"is not imported: {reason}; `flockmq users add` makes it")
            return None
        if client.get("clientid"):
            self._warn(where, f"may log in with any client id now, not only with {client['clientid']!r}")
        return {
            "name": name,
            "hash": found,
            "rules": [],
            "roles": list(map(self._name, roles)),
            "disabled": bool(client.get("disabled", False)),
        }

    def _name(self, role: str) -> str:
        """The name of a role here: general roles have a meaning. Raises UsageError."""
        if not ROLE_NAMES.has(role):
            expected = f"expected {ROLE_NAMES.expected}"
            raise UsageError(f"{self._path}: the role {role!r}: {expected}", "rename the role in this file")
        return f"dynsec {role}" if role in GENERAL else role

    def _general(self) -> list[str]:
        """Rules for all, by the defaults."""
        rules = ["topic write #"] if self._defaults[SEND] else []
        return [*rules, *(["topic read #"] if self._defaults[RECEIVE] and self._defaults[SUBSCRIBE] else [])]

    def _acls(self, role: dict[str, Any]) -> list[Acl]:
        """The ACLs of a role that have a counterpart."""
        where = f"{self._path}: role {role['rolename']!r}"
        found = []
        for acl in role.get("acls", []):
            kind, topic, allow = acl["acltype"], acl["topic"], bool(acl.get("allow", False))
            if topic.startswith(CONTROL) or (kind.startswith("unsubscribe") and allow):
                continue  # nothing here listens to such topics; every client may unsubscribe
            action = SUBSCRIBE if kind.startswith(SUBSCRIBE) else kind
            if action not in DEFAULTS:
                self._warn(where, f"{kind} {topic}: left out, nothing is like it here")
                continue
            try:
                parse_rule(f"topic read {topic}")
            except ValueError as fault:
                raise UsageError(f"{where}: {kind} {topic!r}: expected {fault}") from None
            is_literal = kind == "subscribeLiteral" and ("#" in topic or "+" in topic)
            found.append(Acl(action, topic, allow, int(acl.get("priority", 0)), is_literal))
        return found

    def _rules(self, name: str, acls: dict[str, list[Acl]], given: Iterable[list[str]]) -> list[str]:
        """The rules of a role."""
        where = f"{self._path}: role {name!r}"
        own = acls[name]
        others = [
            acl
            for role in {role for roles in given if name in roles for role in roles} - {name}
            for acl in acls.get(role, [])
        ]
        allows = [acl for acl in own if acl.allow]
        rules = [_rule("write", acl.topic) for acl in allows if acl.action == SEND]
        rules += [_rule("read", topic) for topic in self._readable(where, allows)]
        for deny in (acl for acl in own if not acl.allow):
            higher = [acl for acl in allows if acl.meets(deny) and acl.priority > deny.priority]
            lower = [acl for acl in (*allows, *others) if acl.allow and acl.meets(deny) and acl not in higher]
            if deny.is_literal and not lower:
                self._warn(where, f"the filter {deny.topic} may be subscribed to; only readable messages are delivered")
                continue
            if not (lower or self._defaults[deny.action]):
                continue  # without an allowing rule it is denied
            rules.append(_rule("deny", deny.topic))
            if higher:
                names = ", ".join(acl.topic for acl in higher)
                self._warn(where, f"{deny.topic} is denied, also where {names} of a higher priority is allowed")
            if not any(acl.topic == deny.topic and (acl.action == SEND) != (deny.action == SEND) for acl in own):
                self._warn(where, f"{deny.topic} is denied for reading and publishing, not only for {deny.action}")
        return list(dict.fromkeys(rules))

    def _readable(self, where: str, allows: list[Acl]) -> list[str]:
        """The topic filters that may be subscribed to, and whose messages are delivered."""
        subscribed = [acl.topic for acl in allows if acl.action == SUBSCRIBE]
        received = [acl.topic for acl in allows if acl.action == RECEIVE]
        if self._defaults[SUBSCRIBE]:
            return [] if self._defaults[RECEIVE] else received
        if self._defaults[RECEIVE]:
            return subscribed
        found = []
        for one in subscribed:
            for other in received:
                a, b = one.encode(), other.encode()
                if covers(b, a):
                    found.append(one)
                elif covers(a, b):
                    found.append(other)
                elif overlap(a, b):
                    self._warn(
                        where, f"the part that {one} and {other} have in common can't be read: write a rule for it"
                    )
        return found


def _rule(access: str, topic: str) -> str:
    kind = "pattern" if "%c" in topic or "%u" in topic else "topic"
    return f"{kind} {access} {topic}"
