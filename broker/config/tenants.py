"""Rules that assign clients to tenants: how they are read and written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from .kinds import Integer, Kind, Size, Text
from .topic_rules import RuleTables

PATTERNS = ("user", "certificate", "server_name", "claim")  # conditions that may hold a `*`
COUNT, BYTES = Integer(0, 2**31 - 1), Size(0, 1 << 40)
LIMITS: Mapping[str, Kind] = {  # of a tenant at a node; 0 = none
    "max_connections": COUNT,
    "max_sessions": COUNT,
    "max_subscriptions": COUNT,
    "max_subscription_bytes": BYTES,
    "messages_per_second": COUNT,
    "bytes_per_second": BYTES,
    "max_retained_messages": COUNT,
    "max_retained_bytes": BYTES,
    "max_delayed_messages": COUNT,
    "max_queued_bytes": BYTES,
}


@dataclass(frozen=True)
class TenantRule:
    """Clients that meet all conditions belong to the tenant `name`; empty: to none. The rest are limits, and `auth_of`:
    the listener whose users and rules are the tenant's."""

    name: str
    listener: str = ""
    user: str = ""
    certificate: str = ""
    server_name: str = ""
    claim: str = ""
    auth_of: str = ""
    max_connections: int = 0
    max_sessions: int = 0
    max_subscriptions: int = 0
    max_subscription_bytes: int = 0
    messages_per_second: int = 0
    bytes_per_second: int = 0
    max_retained_messages: int = 0
    max_retained_bytes: int = 0
    max_delayed_messages: int = 0
    max_queued_bytes: int = 0

    @property
    def limits(self) -> dict[str, int]:
        """The limits of the tenant, or of each tenant that `*` stands for; 0 = none."""
        return {name: getattr(self, name) for name in LIMITS}

    @property
    def claim_name(self) -> str:
        """The claim of a token that is compared; empty: none."""
        return self.claim.partition("=")[0]

    def patterns(self) -> dict[str, str]:
        """The conditions that are patterns, by name; the pattern of `claim` is for its value."""
        given = {name: getattr(self, name) for name in PATTERNS if getattr(self, name)}
        return {name: text.partition("=")[2] if name == "claim" else text for name, text in given.items()}


def is_tenant(name: str) -> bool:
    """Whether a text may be the name of a tenant: one level of a topic."""
    return 0 < len(name) <= 200 and name.isprintable() and not any(char in name for char in "+#/*")


def limits_of(rules: Iterable[TenantRule], name: str) -> dict[str, int]:
    """The limits of a tenant: of the first rule with its name, else of the first rule for `*`."""
    rules = tuple(rules)
    found = next((rule for wanted in (name, "*") for rule in rules if rule.name == wanted), None)
    return {} if found is None else found.limits


class TenantRules(RuleTables):
    """Tables `[[tenants]]`."""

    expected = 'tables such as {name = "acme", user = "acme-*"}'
    made = TenantRule
    kinds: ClassVar[Mapping[str, Kind]] = {
        **{name: Text() for name in ("name", "listener", "user", "certificate", "server_name", "claim", "auth_of")},
        **LIMITS,
    }

    def check(self, rule: TenantRule) -> None:
        """The name is one level; `*` in it needs one condition with one `*`, whose part it takes."""
        if rule.claim and not (rule.claim_name and rule.claim.partition("=")[2]):
            raise ValueError(f'CLAIM=PATTERN for claim, such as "org=acme", not {rule.claim!r}')
        for name, pattern in rule.patterns().items():
            if pattern.count("*") > 1:
                raise ValueError(f"at most one * in {name}, not {pattern!r}")
        if rule.auth_of and (rule.name in ("", "*") or rule.claim):
            raise ValueError("a name, and no claim, with auth_of: the tenant is known before its client authenticates")
        if not rule.name and any(rule.limits.values()):
            raise ValueError('no limits for name = "": they are of a tenant')
        if rule.name == "*":
            if sum("*" in pattern for pattern in rule.patterns().values()) != 1:
                raise ValueError('exactly one condition with a *, whose part is the tenant, for name = "*"')
        elif rule.name and not is_tenant(rule.name):
            raise ValueError(f"a name that is one level of a topic, without wildcards, not {rule.name!r}")
