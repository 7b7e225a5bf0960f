"""Roles: named rules, which identities of users, tokens and back ends refer to.

Identities have the names of their roles. So a changed role changes the rights of connected clients, and of wills.
"""

from collections.abc import Mapping
from functools import lru_cache

from .. import logs
from .rules import SHARED, Rules

MAX_WARNED = 1000  # names of missing roles

log = logs.get("flockmq.auth")


class Roles:
    """The roles of a node, in memory."""

    def __init__(self) -> None:
        self._roles: Mapping[str, Rules] = {}
        self._missing: set[str] = set()  # names in the log
        self.rules = lru_cache(SHARED)(self._rules)

    def replace(self, roles: Mapping[str, Rules]) -> None:
        """Replace all roles: the rules of each, by its name."""
        self._roles = roles
        self._missing.difference_update(roles)
        self.rules.cache_clear()

    def _rules(self, names: tuple[str, ...]) -> Rules:
        """The rules of several roles, together. A role that does not exist gives nothing."""
        return tuple(rule for name in names for rule in self._of(name))

    def _of(self, name: str) -> Rules:
        found = self._roles.get(name)
        if found is None and name not in self._missing and len(self._missing) < MAX_WARNED:
            self._missing.add(name)
            log.warning("a client has a role that does not exist: it gives no rights", role=name)
        return found or ()
