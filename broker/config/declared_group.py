"""Declared groups: shared subscriptions that exist without subscribers. How one is read, checked and stored.

A declaration is the name of the group and its own settings. The others are from `[shared]`. The settings are stored
as a JSON object, in the store, in Redis and between nodes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..._speedups.codec.topics import split_shared, validate_topic_filter
from .kinds import Boolean, Choice, Duration, Integer, Kind, Size, Text, not_one

LEVEL = 5  # of the protocol, whose rules the topic filter keeps to
MAX_NAME = 65_535  # bytes


class DeadLetterTopic(Text):
    """A topic name, or nothing."""

    expected = "a topic name without wildcards that does not begin with $"

    def read(self, raw: object, *, is_text: bool) -> object:
        found = str(super().read(raw, is_text=is_text))
        if "+" in found or "#" in found or found.startswith("$") or len(found.encode()) > MAX_NAME:
            raise ValueError
        return found


# The settings of a group, with a description of each.
OPTIONS: dict[str, tuple[Kind, str]] = {
    "window": (Integer(1, 65_535), "messages of QoS 1 and 2 that a subscriber has and has not acknowledged"),
    "max_queued_messages": (Integer(1, 2**31 - 1), "messages that wait"),
    "max_queued_bytes": (Size(1024, 1 << 40), "bytes of the messages that wait"),
    "when_full": (Choice(("drop-old", "drop-new")), "the message that a full queue drops"),
    "expiry": (Duration(0, 36_500 * 86_400.0), "seconds that a message may wait; 0 = as long as its publisher allows"),
    "last_value": (Boolean(), "only the newest message of each topic waits"),
    "strategy": (Choice(("rotation", "topic", "publisher")), "rotation, or the order of each topic or publisher"),
    "max_deliveries": (Integer(0, 65_535), "attempts after which a message is a dead letter; 0 = no limit"),
    "dead_letter_topic": (DeadLetterTopic(), "the topic of dead letters; empty: they are dropped"),
    "paused": (Boolean(), "subscribers get no new messages"),
}


@dataclass(frozen=True)
class DeclaredGroup:
    """A group that exists without subscribers: `$share/NAME/FILTER`, and its own settings."""

    name: str
    options: tuple[tuple[str, object], ...] = ()

    @property
    def stored(self) -> bytes:
        """The settings as they are stored."""
        return json.dumps(dict(self.options), separators=(",", ":"), sort_keys=True).encode()


def paused(name: str, stored: bytes, value: bool) -> DeclaredGroup:
    """The declaration of a group that is stored so, paused or not."""
    return DeclaredGroup(name, tuple(sorted({**json.loads(stored), "paused": value}.items())))


def differences(before: bytes, after: bytes) -> str:
    """The settings that two declarations of a group, as they are stored, do not have in common; for a log."""
    old, new = json.loads(before), json.loads(after)
    return ", ".join(
        f"{name}: {_shown(old, name)} -> {_shown(new, name)}"
        for name in OPTIONS
        if _shown(old, name) != _shown(new, name)
    )


def _shown(options: Mapping[str, object], name: str) -> str:
    return json.dumps(options[name]) if name in options else "as in [shared]"


def declared(name: object, options: Mapping[str, object], *, is_text: bool = False) -> DeclaredGroup:
    """A declaration.

    Args:
        name: `$share/NAME/FILTER`.
        options: settings of the group, keys of OPTIONS.
        is_text: whether the values are texts, as of flags.

    Raises:
        ValueError: the name or a setting is invalid; the text completes "expected ...".
    """
    if not isinstance(name, str) or not is_group(name):
        raise ValueError(f"a name of the form $share/NAME/FILTER, not {name!r}")
    found: dict[str, object] = {}
    for option, raw in options.items():
        if option not in OPTIONS:
            raise not_one("settings of a group", option, OPTIONS)
        kind, _ = OPTIONS[option]
        try:
            found[option] = kind.read(raw, is_text=is_text)
        except (ValueError, OverflowError):
            raise ValueError(f"{kind.expected} for {option} of {name}, not {raw!r}") from None
    return DeclaredGroup(name, tuple(sorted(found.items())))


def is_group(name: str) -> bool:
    """Whether the name is `$share/NAME/FILTER`, with a valid filter [5: MQTT-4.8.2-1, 2]."""
    if len(name.encode("utf-8", "replace")) > MAX_NAME or not name.isprintable():
        return False
    try:
        _, topic_filter = split_shared(name)
        validate_topic_filter(topic_filter, LEVEL, MAX_NAME)
    except ValueError:
        return False
    return True


class DeclaredGroups(Kind):
    """Tables `[[shared.groups]]`; as text a JSON array of objects."""

    is_table = True
    expected = 'tables such as {name = "$share/workers/jobs/#", window = 10}'

    def read(self, raw: object, *, is_text: bool) -> object:
        if is_text and isinstance(raw, str):
            raw = json.loads(raw) if raw.strip() else []
        if not isinstance(raw, (list, tuple)):
            raise ValueError
        groups = []
        for table in raw:
            if not isinstance(table, dict) or "name" not in table:
                raise ValueError
            groups.append(declared(table["name"], {key: value for key, value in table.items() if key != "name"}))
        if len({group.name for group in groups}) < len(groups):
            raise ValueError("each group once")
        return tuple(groups)

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return "[" + ", ".join(_inline(group) for group in value) + "]"


def _inline(group: DeclaredGroup) -> str:
    settings = (f"{option} = {OPTIONS[option][0].write(value)}" for option, value in group.options)
    return "{" + ", ".join((f"name = {json.dumps(group.name, ensure_ascii=False)}", *settings)) + "}"
