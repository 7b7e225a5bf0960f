"""The tenant of a client that has authenticated, by the rules of the configuration. The first rule that fits counts."""

from collections.abc import Iterable

from ..config.tenants import TenantRule, is_tenant
from .authenticator import Credentials, Identity


class Tenants:
    """Assigns clients to tenants.

    Args:
        rules: as configured; none: all clients are without a tenant.
    """

    def __init__(self, rules: Iterable[TenantRule]) -> None:
        self._rules = tuple(rules)

        self._auth_of = {rule.name: rule.auth_of for rule in self._rules if rule.auth_of}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def auth_of(self, tenant: str) -> str:
        """The listener whose users and rules are a tenant's; empty: those of the listener that its client is at."""
        return self._auth_of.get(tenant, "")

    def auth_for(self, credentials: Credentials) -> str:
        """The listener whose methods authenticate a client, by the names that the client has sent."""
        if self._auth_of:
            presented = Identity(credentials.username)
            for rule in self._rules:
                if _part(rule, credentials, presented) is not None:
                    return rule.auth_of or credentials.listener
        return credentials.listener

    def tenant_of(self, credentials: Credentials, identity: Identity) -> str | None:
        """The name of a client's tenant; empty: it has none; None: it shows an invalid name, and must be refused."""
        for rule in self._rules:
            part = _part(rule, credentials, identity)
            if part is None:
                continue
            name = part if rule.name == "*" else rule.name
            return name if not name or is_tenant(name) else None
        return ""


def _part(rule: TenantRule, credentials: Credentials, identity: Identity) -> str | None:
    """The text for which the `*` of a rule stands, empty without one; None: the rule is not for this client."""
    if rule.listener and rule.listener != credentials.listener:
        return None
    shown = {
        "user": identity.username,
        "certificate": credentials.certificate,
        "server_name": credentials.server_name.lower(),
        "claim": dict(identity.claims).get(rule.claim_name),
    }
    found = ""
    for condition, pattern in rule.patterns().items():
        value = shown[condition]
        head, star, tail = pattern.partition("*")
        if not value or not (value == pattern if not star else _fits(value, head, tail)):
            return None
        if star:
            found = value[len(head) : len(value) - len(tail)]
            if rule.name == "*" and not found:
                return None
    return found


def _fits(value: str, head: str, tail: str) -> bool:
    return len(value) >= len(head) + len(tail) and value.startswith(head) and value.endswith(tail)
