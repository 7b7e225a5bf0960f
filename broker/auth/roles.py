"""Roles: named rules, which identities of users, tokens and back ends refer to. All are in memory at each node.

A role is JSON: {"rules": ["topic read a/#", ...], "description": "..."}. Identities have the names of their roles. So a
changed role changes the rights of connected clients, and of wills. Two roles are general, if they exist: `everyone` is
a role of each client, `anonymous` of each client without a user name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .. import logs
from .access_store import Documents
from .authenticator import Identity
from .rules import SHARED, Rules, parse_rules, read_json

EVERYONE, ANONYMOUS = "everyone", "anonymous"
GENERAL = (EVERYONE, ANONYMOUS)
USERS = "users"  # name of the authentication method of the store's users
MAX_STORED = 5000  # roles
MAX_WARNED = 1000  # names of missing roles

log = logs.get("flockmq.auth")


@dataclass(frozen=True, slots=True)
class Concerned:
    """The clients that changes concern."""

    everyone: bool = False
    anonymous: bool = False
    users: frozenset[str] = frozenset()  # of the store
    roles: frozenset[str] = frozenset()

    @classmethod
    def by_roles(cls, names: Iterable[str]) -> "Concerned":
        """By a change of roles."""
        found = frozenset(names)
        return cls(everyone=EVERYONE in found, anonymous=ANONYMOUS in found, roles=found)

    def __or__(self, other: "Concerned") -> "Concerned":
        return Concerned(
            self.everyone or other.everyone,
            self.anonymous or other.anonymous,
            self.users | other.users,
            self.roles | other.roles,
        )

    def __contains__(self, identity: Identity) -> bool:
        if self.everyone or (self.anonymous and identity.username is None):
            return True
        if identity.method == USERS and identity.username in self.users:
            return True
        return bool(self.roles) and not self.roles.isdisjoint(identity.roles)


class Role(NamedTuple):
    """A stored role."""

    rules: Rules
    description: str = ""

    @classmethod
    def parse(cls, data: bytes) -> "Role":
        """Raises ValueError: it is no role."""
        document = read_json(data)
        if not isinstance(document, dict) or not isinstance(document.get("rules"), list):
            raise ValueError('expected {"rules": [...], "description": "..."}')
        return cls(parse_rules(document["rules"]) or (), str(document.get("description", "")))


class Roles:
    """The roles of a node, in memory."""

    def __init__(self) -> None:
        self._documents: dict[str, bytes] = {}
        self._roles: dict[str, Role] = {}
        self._general: tuple[str, ...] = ()
        self._missing: set[str] = set()  # names in the log
        self.number = 0  # of changes
        self.rules = lru_cache(SHARED)(self._rules)

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, name: str) -> Role:
        return self._roles[name]

    def __contains__(self, name: str) -> bool:
        return name in self._roles

    def read(self, documents: Mapping[str, bytes]) -> set[str]:
        """Replace all roles by stored ones; returns the names of those that have changed."""
        gone = dict.fromkeys(self._documents.keys() - documents.keys())
        return self.change({**gone, **documents})

    def change(self, documents: Documents) -> set[str]:
        """Replace some roles; returns the names of those that have changed."""
        changed = {name for name, data in documents.items() if self._documents.get(name) != data}
        for name in changed:
            self._put(name, documents[name])
        if changed:
            self._general = tuple(name for name in GENERAL if name in self._roles)
            self._missing -= changed
            self.number += 1
            self.rules.cache_clear()
        return changed

    def _put(self, name: str, data: bytes | None) -> None:
        self._documents.pop(name, None)
        self._roles.pop(name, None)
        if data is None:
            return
        self._documents[name] = data
        try:
            self._roles[name] = Role.parse(data)
        except ValueError as error:
            log.error("a stored role is invalid: its clients may do nothing by it", role=name, error=error)
            self._roles[name] = Role(())

    def of(self, identity: Identity) -> tuple[str, ...]:
        """The names of the roles of a client, the general ones included."""
        if not self._general:
            return identity.roles
        general = self._general if identity.username is None else tuple(n for n in self._general if n == EVERYONE)
        return (*general, *identity.roles)

    def _rules(self, names: tuple[str, ...]) -> Rules:
        """The rules of several roles, together. A role that does not exist gives nothing."""
        return tuple(rule for name in names for rule in self._of(name))

    def _of(self, name: str) -> Rules:
        found = self._roles.get(name)
        if found is not None:
            return found.rules
        if name not in self._missing and len(self._missing) < MAX_WARNED:
            self._missing.add(name)
            log.warning("a client has a role that does not exist: it gives no rights", role=name)
        return ()
