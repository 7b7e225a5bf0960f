"""Rules for topics of clients: rewrite rules, and subscriptions made at CONNECT. How they are read and written."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ..._speedups.codec.topics import InvalidTopic, is_shared, split_shared, validate_topic_filter
from .kinds import Boolean, Choice, Integer, Kind, Text, not_one

LEVEL = 5  # of the protocol, whose rules the topic filters keep to
MAX_LEVELS = 65_536  # of a filter; `limits.max_topic_levels` limits clients
CAPTURED = re.compile(r"\$(\d+)")  # in a target: the part of the topic that this wildcard of the source stands for


@dataclass(frozen=True)
class RewriteRule:
    """Topics that match `source` are replaced by `target`."""

    source: str
    target: str
    action: str = "all"


@dataclass(frozen=True)
class AutoSubscription:
    """A subscription that clients get when they connect."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 1
    listener: str = ""
    user: str = ""


class RuleTables(Kind):
    """Tables of one kind; as text a JSON array of objects."""

    is_table = True
    made: ClassVar[type[Any]]
    kinds: ClassVar[Mapping[str, Kind]]

    def check(self, rule: Any) -> None:
        """Raises ValueError: the values do not fit each other; the text completes "expected ..."."""

    def read(self, raw: object, *, is_text: bool) -> object:
        if is_text and isinstance(raw, str):
            raw = json.loads(raw) if raw.strip() else []
        if not isinstance(raw, (list, tuple)):
            raise ValueError
        return tuple(map(self._rule, raw))

    def _rule(self, table: object) -> Any:
        if not isinstance(table, dict):
            raise ValueError
        for name in table:
            if name not in self.kinds:
                raise not_one("keys of a rule", name, self.kinds)
        values = {name: self._value(name, raw) for name, raw in table.items()}
        try:
            rule = self.made(**values)
        except TypeError:  # one that has no default is missing
            raise ValueError from None
        self.check(rule)
        return rule

    def _value(self, name: str, raw: object) -> object:
        try:
            return self.kinds[name].read(raw, is_text=False)
        except (ValueError, OverflowError):
            raise ValueError(f"{self.kinds[name].expected} for {name}, not {raw!r}") from None

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return "[" + ", ".join(map(self._inline, value)) + "]"

    def _inline(self, rule: Any) -> str:
        given = {
            each.name: getattr(rule, each.name) for each in fields(rule) if getattr(rule, each.name) != each.default
        }
        return "{" + ", ".join(f"{name} = {self.kinds[name].write(value)}" for name, value in given.items()) + "}"


class RewriteRules(RuleTables):
    """Tables `[[mqtt.rewrite]]`."""

    expected = 'tables such as {source = "old/+/#", target = "new/$1/$2"}'
    made = RewriteRule
    kinds: ClassVar[Mapping[str, Kind]] = {
        "source": Text(),
        "target": Text(),
        "action": Choice(("all", "publish", "subscribe")),
    }

    def check(self, rule: RewriteRule) -> None:
        """The source is a topic filter; the target has no wildcards, and uses the source's."""
        _check_filter("source", rule.source)
        if is_shared(rule.source) or is_shared(rule.target):
            raise ValueError("filters without $share/NAME/: a rule holds for those of shared subscriptions too")
        if not rule.target or any(char in rule.target for char in "+#\0"):
            raise ValueError(f"a target without wildcards, not {rule.target!r}: $1 is what the first one stands for")
        wildcards = sum(level in ("+", "#") for level in rule.source.split("/"))
        for number in CAPTURED.findall(rule.target):
            if not 1 <= int(number) <= wildcards:
                raise ValueError(f"$1 to ${wildcards} in the target, not ${number}: {rule.source!r} has {wildcards}")


class AutoSubscriptions(RuleTables):
    """Tables `[[mqtt.auto_subscribe]]`."""

    expected = 'tables such as {topic_filter = "commands/%c/#", qos = 1}'
    made = AutoSubscription
    kinds: ClassVar[Mapping[str, Kind]] = {
        "topic_filter": Text(),
        "qos": Integer(0, 2),
        "no_local": Boolean(),
        "retain_as_published": Boolean(),
        "retain_handling": Integer(0, 2),
        "listener": Text(),
        "user": Text(),
    }

    def check(self, rule: AutoSubscription) -> None:
        """The filter is one; No Local is not for shared subscriptions [5: MQTT-3.8.3-4]."""
        name = rule.topic_filter
        _check_filter("topic_filter", name)
        if is_shared(name):
            try:
                split_shared(name)
            except ValueError:
                raise ValueError(f"$share/NAME/FILTER, not {name!r}") from None
            if rule.no_local:
                raise ValueError("no_local = false for a shared subscription")


def _check_filter(name: str, topic_filter: str) -> None:
    try:
        validate_topic_filter(topic_filter, LEVEL, MAX_LEVELS)
    except InvalidTopic as fault:
        raise ValueError(f"a topic filter for {name}; {topic_filter!r} is none: {fault}") from fault
