"""Access rules, in Mosquitto's words, and the `Rights` of a client that follow from them.

    topic   [read|write|readwrite|deny] FILTER     of the user they belong to
    pattern [read|write|readwrite|deny] FILTER     of all clients; %c is the client id, %u the user name

The same words are in ACL files, in users stored in Redis, in tokens and in HTTP responses. A rule that denies wins over
any that allow. A pattern with %u does not apply to a client without a user name. A client can't widen a pattern by the
name `#` or `a/b`: with such a name its patterns allow nothing. If one of them denies, the client may do nothing at all,
since the meaning of the pattern is unclear (CVE-2017-7650).
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from ..._speedups.codec.topics import InvalidTopic, validate_topic_filter
from ..._speedups.session.patterns import CLIENT_ID, TEXT, USERNAME, Patterns
from ..._speedups.session.rights import NOTHING as NOTHING
from ..._speedups.session.rights import PUBLISH, READ, Rights
from ..core.placeholders import first_level

ACCESS = {"read": READ, "write": PUBLISH, "readwrite": READ | PUBLISH, "deny": READ | PUBLISH}
KINDS = ("topic", "pattern")
MAX_LEVELS = 65_536  # of a filter; `limits.max_topic_levels` limits clients
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


class RuleSet:
    """Rules, prepared for many clients: the common part is computed once.

    Args:
        rules: of a user, or of all clients.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        prepared = [_prepared(rule) for rule in rules]
        self._patterns = Patterns(prepared)
        self._same = None if self._patterns.names else _shared(frozenset(prepared))
        self.needs_client_id = bool(self._patterns.names & CLIENT_ID)

    def rights(self, username: str | None, client_id: str) -> Rights:
        """The rights of a client."""
        return self._patterns.rights(client_id, username) if self._same is None else self._same


def rights_of(rules: Iterable[Rule], username: str | None, client_id: str) -> Rights:
    """The rights of a client by these rules."""
    return RuleSet(rules).rights(username, client_id)


def _prepared(rule: Rule) -> tuple[bool, int, bytes, int]:
    """A rule as Patterns takes it."""
    text = rule.topic_filter.encode()
    if not rule.is_pattern:
        return rule.allow, rule.access, text, 0
    return rule.allow, rule.access, text.replace(b"%c", b"\0c").replace(b"%u", b"\0u"), _opens(rule.topic_filter)


def _opens(topic_filter: str) -> int:
    """The begin of the first level of the topic of a pattern; 0: no name is in that level."""
    first = first_level(topic_filter)
    if "%c" not in first and "%u" not in first:
        return 0
    return {"%c": CLIENT_ID, "%u": USERNAME}.get(first[:2], TEXT if first.startswith("$") else 0)


@lru_cache(SHARED)
def _shared(rules: frozenset[tuple[bool, int, bytes, int]]) -> Rights:
    return Patterns(rules).rights("", None)
