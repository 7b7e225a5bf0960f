"""Texts with placeholders for values of clients: `${username}`, in queries for a database and filters of LDAP.

A value is never part of the text: a database gets it beside the query, and a filter of LDAP gets it escaped.
"""

import re
from typing import NamedTuple, Self

from .kinds import Kind, not_one

CLIENT = ("username", "client_id", "address", "listener")  # names of values that a client has
ACCESS = "access"  # 1 = read, 2 = publish, 4 = subscribe
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


class Template(NamedTuple):
    """A text with placeholders: between two parts stands the value of a name."""

    parts: tuple[str, ...]
    names: tuple[str, ...]  # one fewer

    @classmethod
    def parse(cls, text: str) -> Self:
        """The parts of a text."""
        found = PLACEHOLDER.split(text)
        return cls(tuple(found[::2]), tuple(found[1::2]))

    def filled(self, *values: str) -> str:
        """The text with these values, one for each name."""
        return "".join(map("".join, zip(self.parts, (*values, ""), strict=True)))


class WithPlaceholders(Kind):
    """A text with placeholders, or nothing."""

    names: tuple[str, ...] = CLIENT
    expected = "a text"

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError
        template = Template.parse(raw)
        for name in template.names:
            if name not in self.names:
                raise not_one("placeholders", name, self.names)
        self.check(template)
        return raw

    def check(self, template: Template) -> None:
        """Raise ValueError: the text is invalid."""


class SqlQuery(WithPlaceholders):
    """A query for a database, or nothing."""

    expected = 'a query such as "SELECT password_hash FROM users WHERE username = ${username}"'

    def check(self, template: Template) -> None:
        """A value stands beside the query, so that no quotes may be around its placeholder."""
        before = ""
        for part, name in zip(template.parts, template.names, strict=False):
            before += part
            if before.count("'") % 2 or before.endswith(('"', "`")):
                raise ValueError(f"${{{name}}} without quotes around it: the database gets its value as a text")


class RulesQuery(SqlQuery):
    """A query for the rules of a user, or nothing."""

    names = (*CLIENT, ACCESS)
    expected = 'a query such as "SELECT access, topic FROM rules WHERE username = ${username}"'


class LdapFilter(WithPlaceholders):
    """A filter of LDAP, or nothing."""

    expected = 'a filter such as "(uid=${username})"'

    def check(self, template: Template) -> None:
        """The filter has its parentheses."""
        text = template.filled(*("x" for _ in template.names))
        if text and not (text.startswith("(") and text.endswith(")") and text.count("(") == text.count(")")):
            raise ValueError


class GroupFilter(LdapFilter):
    """A filter for the groups of a user, or nothing."""

    names = (*CLIENT, "dn")
    expected = 'a filter such as "(member=${dn})"'
