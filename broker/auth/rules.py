"""Access rules, in Mosquitto's words, and the `Rights` of a client that follow from them.

    topic   [read|write|readwrite|deny] FILTER     of the user they belong to
    pattern [read|write|readwrite|deny] FILTER     of all clients; %c is the client id, %u the user name

The same words are in ACL files, in users stored in Redis, in tokens and in HTTP responses. A rule that denies wins over
any that allow. A pattern with %u does not apply to a client without a user name. A client can't widen a pattern by the
name `#` or `a/b`: with such a name its patterns allow nothing. If one of them denies, the client may do nothing at all,
since the meaning of the pattern is unclear (CVE-2017-7650).
"""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from ..._speedups.codec.topics import InvalidTopic, validate_topic_filter
from ..._speedups.session.rights import PUBLISH, READ, Rights
from ..core.placeholders import is_plain, opens_system_topics

ACCESS = {"read": READ, "write": PUBLISH, "readwrite": READ | PUBLISH, "deny": READ | PUBLISH}
KINDS = ("topic", "pattern")
MAX_LEVELS = 65_536  # of a filter; `limits.max_topic_levels` limits clients
MAX_FILTER = 65_535  # bytes: longer than any topic
MARKS = re.compile("(%[cu])")
NOTHING = Rights(())
SHARED = 4096  # different Rights that clients with equal rules share


class Rule(NamedTuple):
    """One rule."""

    allow: bool
    access: int  # READ, PUBLISH or both
    topic_filter: str
    is_pattern: bool = False


Rules = tuple[Rule, ...]


def parse_rule(line: str) -> Rule:
    """The rule on a line.

    Raises:
        ValueError: it is none; the text completes "expected ...".
    """
    kind, _, rest = line.strip().partition(" ")
    first, _, more = rest.strip().partition(" ")
    if kind not in KINDS or not first:
        raise ValueError('"topic" or "pattern", then read, write, readwrite or deny, then a topic filter')
    access, name = (first, more.strip()) if more.strip() else ("readwrite", first)
    if access not in ACCESS:
        raise ValueError(f"read, write, readwrite or deny, not {access!r} (a filter with spaces needs one of them)")
    try:
        validate_topic_filter(name, max_levels=MAX_LEVELS)
    except InvalidTopic as fault:
        raise ValueError(f"a topic filter; {name!r} is none: {fault}") from fault
    return Rule(access != "deny", ACCESS[access], name, kind == "pattern")


def parse_rules(document: Any) -> Rules | None:
    """Rules in JSON: lines, or {"publish": [filters], "subscribe": [filters]}; None stays None.

    Raises:
        ValueError: it is neither.
    """
    if document is None:
        return None
    if isinstance(document, dict):
        words = {"publish": "write", "subscribe": "read"}
        if not document.keys() <= words.keys():
            raise ValueError('{"publish": [...], "subscribe": [...]} with nothing else')
        document = [f"pattern {words[key]} {name}" for key, names in document.items() for name in _texts(names)]
    return tuple(parse_rule(line) for line in _texts(document))


def read_json(data: bytes) -> Any:
    """Parse JSON from another program.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def is_text(value: str) -> bool:
    """Whether a string is text, which UTF-8 can write: JSON may have half a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(document: Any) -> list[str]:
    if not isinstance(document, list) or not all(isinstance(text, str) for text in document):
        raise ValueError("a list of texts")
    return document


class _Pattern(NamedTuple):
    """A rule with %c or %u, cut at these marks."""

    allow: bool
    access: int
    parts: list[str]  # texts and marks in turn: the first, third, ... are texts
    marks: frozenset[str]
    opens: bool  # whether a name is in the first level of the topic

    @classmethod
    def of(cls, rule: Rule) -> "_Pattern":
        name = rule.topic_filter
        parts = MARKS.split(name)
        opens = opens_system_topics(name, "$", "$")
        return cls(rule.allow, rule.access, parts, frozenset(parts[1::2]), opens)


class RuleSet:
    """Rules, prepared for many clients: the common part is computed once.

    Args:
        rules: of a user, or of all clients.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._patterns: list[_Pattern] = []
        self._fixed: set[tuple[bool, int, bytes]] = set()
        for rule in rules:
            if rule.is_pattern and MARKS.search(rule.topic_filter):
                self._patterns.append(_Pattern.of(rule))
            elif len(encoded := rule.topic_filter.encode()) <= MAX_FILTER:
                self._fixed.add((rule.allow, rule.access, encoded))
        self._same = None if self._patterns else _shared(tuple(sorted(self._fixed)))
        self._marks = frozenset(mark for pattern in self._patterns for mark in pattern.marks)
        self.needs_client_id = "%c" in self._marks

    def rights(self, username: str | None, client_id: str) -> Rights:
        """The rights of a client."""
        if self._same is not None:
            return self._same
        names = {"%c": client_id, "%u": username or ""}
        unfit = {mark for mark in self._marks if not is_plain(names[mark])}
        made = self._fixed.copy()
        for allow, access, parts, marks, opens in self._patterns:
            if unfit and not unfit.isdisjoint(marks):
                if allow or not all(names[mark] for mark in marks):
                    continue
                return NOTHING
            if opens and opens_system_topics("".join(parts), username, client_id):
                if allow:
                    continue
                return NOTHING
            encoded = "".join([names.get(part, part) for part in parts]).encode()
            if len(encoded) <= MAX_FILTER:
                made.add((allow, access, encoded))
        return Rights(made)


def rights_of(rules: Iterable[Rule], username: str | None, client_id: str) -> Rights:
    """The rights of a client by these rules."""
    return RuleSet(rules).rights(username, client_id)


@lru_cache(SHARED)
def _shared(rules: tuple[tuple[bool, int, bytes], ...]) -> Rights:
    return Rights(rules)
