"""Roles of the members of LDAP's groups: how the tables are read and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .kinds import Kind, Text
from .topic_rules import RuleTables

ALL = "*"  # in place of a group: every user


@dataclass(frozen=True)
class LdapRole:
    """Members of a group have a role."""

    group: str
    role: str


class LdapRoles(RuleTables):
    """Tables `[[auth.ldap_roles]]`."""

    expected = 'tables such as {group = "cn=operators,ou=groups,dc=example,dc=org", role = "operator"}'
    made = LdapRole
    kinds: ClassVar[Mapping[str, Kind]] = {"group": Text(), "role": Text()}

    def check(self, rule: LdapRole) -> None:
        """The group is a distinguished name."""
        if not rule.role:
            raise ValueError("a role")
        if rule.group != ALL and "=" not in rule.group:
            raise ValueError(f'the distinguished name of a group, or "*", not {rule.group!r}')
