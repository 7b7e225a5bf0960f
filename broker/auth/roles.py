"""Roles: named rules, which identities of users, tokens and back ends refer to. All are in memory at each node.

A role is JSON: {"rules": ["topic read a/#", ...], "description": "..."}. Identities have the names of their roles. So a
changed role changes the rights of connected clients, and of wills. Two roles are general, if they exist: `everyone` is
a role of each client, `anonymous` of each client without a user name.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from .. import logs
from .access_store import Documents
from .authenticator import Identity
from .rules import SHARED, Rules, parse_rules, read_json

EVERYONE, ANONYMOUS = "everyone", "anonymous"
GENERAL = (EVERYONE, ANONYMOUS)
MAX_STORED = 5000  # roles
MAX_WARNED = 1000  # names of missing roles

log = logs.get("flockmq.auth")


def having(names: set[str]) -> Callable[[Identity], bool]:
    """Whether an identity may have one of these roles."""
    if EVERYONE in names:
        return lambda identity: True
    is_general = ANONYMOUS in names
    return lambda identity: (is_general and identity.username is None) or not names.isdisjoint(identity.roles)


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
