"""Rules for payloads: the schema of the messages to certain topics. How they are read and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..._speedups.codec.topics import InvalidTopic, is_broker_only, is_shared, validate_topic_name
from .kinds import Choice, FilePath, Kind, Text, TopicFilters
from .topic_rules import RuleTables

REFUSE, MARK, ROUTE = "refuse", "mark", "route"


@dataclass(frozen=True)
class SchemaRule:
    """Messages to topics that match a filter have the schema of the file; else `on_mismatch` says what happens.

    Attributes:
        filter: topic filters.
        file: name of a schema, as `open_schema` takes it.
        on_mismatch: REFUSE, MARK or ROUTE.
        route: levels in front of the topic name of a message that is routed.
    """

    filter: tuple[str, ...]
    file: str
    on_mismatch: str = REFUSE
    route: str = ""


class SchemaRules(RuleTables):
    """Tables `[[schemas]]`."""

    expected = 'tables such as {filter = "site/+/temp", file = "reading.json", on_mismatch = "refuse"}'
    made = SchemaRule
    kinds: ClassVar[Mapping[str, Kind]] = {
        "filter": TopicFilters(),
        "file": FilePath(),
        "on_mismatch": Choice((REFUSE, MARK, ROUTE)),
        "route": Text(),
    }

    def check(self, rule: SchemaRule) -> None:
        """There are filters and a file; `route` is a topic name, and belongs to ROUTE."""
        if not rule.filter or any(map(is_shared, rule.filter)):
            raise ValueError("topic filters for filter, without $share/NAME/")
        if not rule.file:
            raise ValueError('the path of a file for file, or "sparkplug"')
        if (rule.on_mismatch == ROUTE) != bool(rule.route):
            raise ValueError('a topic for route, such as "quarantine", with on_mismatch = "route", and only then')
        if rule.route:
            try:
                validate_topic_name(rule.route)
            except InvalidTopic as fault:
                raise ValueError(f"a topic name for route; {rule.route!r} is none: {fault}") from fault
            if is_broker_only(rule.route.encode()) or rule.route.startswith("$"):
                raise ValueError(f"a topic for route that does not begin with $, not {rule.route!r}")
