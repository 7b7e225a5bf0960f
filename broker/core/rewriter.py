"""Rewrite rules: the topics that clients name, and the topics that the node uses in their place.

The first rule that matches counts. Wildcards of its source match levels of a topic name, or of the topic filter of a
subscription; the target has their parts as $1, $2, ... The cost is one comparison per level and rule: a client can't
make it grow by the topics that it chooses, as it could with regular expressions.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..._speedups.codec.topics import is_shared, split_shared, validate_topic_filter
from ..._speedups.net.connection import Connection
from ..config.link import LISTENER
from ..config.topic_rules import CAPTURED, RewriteRule
from . import tenants
from .placeholders import filled_plainly

NO_TOPIC = ""  # in place of a topic that a rule has no name for: not valid, so it is refused

Parts = list[str | None]  # of a topic, for each wildcard; None: `#` has matched the level above


class CompiledRule(NamedTuple):
    """A rule, split into its parts."""

    source: tuple[str, ...]  # levels
    target: tuple[str, ...]  # texts; between each two of them is a part of the topic ...
    numbers: tuple[int, ...]  # ... of the wildcard with this number, from 0 on
    has_names: bool  # %c or %u in the target

    def parts(self, topic: Sequence[str]) -> Parts | None:
        """The parts of a topic that the wildcards stand for; None: it does not match."""
        if topic[0][:1] == "$" and self.source[0] in ("+", "#"):  # [MQTT-4.7.2-1]
            return None
        found: Parts = []
        for number, level in enumerate(self.source):
            if level == "#":
                found.append("/".join(topic[number:]) if number < len(topic) else None)
                return found
            if number == len(topic):
                return None
            if level == "+":
                if topic[number] == "#":  # of a filter, and more than one level
                    return None
                found.append(topic[number])
            elif topic[number] != level:
                return None
        return found if len(topic) == len(self.source) else None

    def fill(self, parts: Parts, username: str | None, client_id: str) -> str:
        """The topic; NO_TOPIC if a name that the target needs is missing, or is not one level."""
        made = ""
        for text, number in zip(self.target, (*self.numbers, None), strict=True):
            named = filled_plainly(text, username, client_id) if self.has_names else text
            if named is None:
                return NO_TOPIC
            made += named
            part = "" if number is None else parts[number]
            made = made.removesuffix("/") if part is None else made + part
        return made


def compiled(rule: RewriteRule) -> CompiledRule:
    """A rule, split into its parts."""
    texts = CAPTURED.split(rule.target)
    return CompiledRule(
        tuple(rule.source.split("/")),
        tuple(texts[::2]),
        tuple(int(number) - 1 for number in texts[1::2]),
        "%c" in rule.target or "%u" in rule.target,
    )


class Rewriter:
    """The rules of a node.

    Args:
        rules: as configured.
        max_levels: of a topic filter.
    """

    def __init__(self, rules: Iterable[RewriteRule], max_levels: int) -> None:
        self._max_levels = max_levels
        self._publish = [compiled(rule) for rule in rules if rule.action != "subscribe"]
        self._subscribe = [compiled(rule) for rule in rules if rule.action != "publish"]

    @property
    def renames_messages(self) -> bool:
        """Whether a rule is for topic names."""
        return bool(self._publish)

    def on_publish(self, connection: Connection, topic: bytes) -> bytes:
        """The topic name of a message from a client; it need not be valid."""
        assert connection.session is not None
        _, client_id = tenants.split(connection.session.client_id)
        return self.topic_name(connection, connection.identity.username, client_id, topic.decode()).encode()

    def topic_name(self, connection: Connection, username: str | None, client_id: str, topic: str) -> str:
        """The topic name of a client's message or will; it need not be valid."""
        return _rewritten(self._publish, connection, username, client_id, topic)

    def topic_filter(self, connection: Connection, client_id: str, topic_filter: str) -> str:
        """The topic filter of a client's subscription; it need not be valid, and one that is not stays as it is."""
        try:
            validate_topic_filter(topic_filter, connection.protocol_level, self._max_levels)
            group, read = split_shared(topic_filter) if is_shared(topic_filter) else ("", topic_filter)
        except ValueError:
            return topic_filter
        made = _rewritten(self._subscribe, connection, connection.identity.username, client_id, read)
        return f"$share/{group}/{made}" if group and made != NO_TOPIC else made


def _rewritten(
    rules: list[CompiledRule], connection: Connection, username: str | None, client_id: str, topic: str
) -> str:
    if connection.listener == LISTENER:  # a link has its own prefixes
        return topic
    levels = topic.split("/")
    for rule in rules:
        parts = rule.parts(levels)
        if parts is not None:
            return rule.fill(parts, username, client_id)
    return topic
