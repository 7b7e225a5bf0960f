"""The place in the log of messages that SINCE of a stream, `$stream/SINCE/FILTER`, means."""

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

SECOND = 1_000_000  # microseconds
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
POSITION = re.compile(r"([A-Za-z0-9._-]+):(\d{1,15})-(\d{1,19}):(\d{1,10})")
OVERLAP = 2 * SECOND  # by which the other logs begin before a position of one log: none of their messages is missing


class Place(NamedTuple):
    """A place in the log of one node."""

    ms: int  # of the entry before it
    total: int  # bytes of the log up to that entry, which is included
    rows: int = 0  # messages of that entry that are before the place; 0: all


class Start(NamedTuple):
    """Where a stream begins, or goes on."""

    since: int  # microseconds since 1970: earlier messages are not of the stream
    places: dict[str, Place]  # by node id; the logs of others are read from `since` on

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"since": self.since, "places": self.places}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """The reverse of `to_json`."""
        return cls(int(stored["since"]), {node: Place(*place) for node, place in stored["places"].items()})


def parse_since(text: str, now: int) -> Start:
    """Where a stream begins.

    Args:
        text: `earliest`, `now`, a duration such as `90s`, `10m`, `2h`, `7d`, `1w`, a time in ISO 8601 (UTC by default)
            such as `2026-11-22T10:00Z`, or a position, as the user property `flockmq-position` has it: the messages
            after it.
        now: microseconds since 1970.

    Raises:
        ValueError: it is none of them.
    """
    if text == "earliest":
        return Start(0, {})
    if text == "now":
        return Start(now, {})
    if text[:-1].isascii() and text[:-1].isdigit() and text[-1] in UNITS:
        return Start(max(0, now - int(text[:-1]) * UNITS[text[-1]] * SECOND), {})
    if found := POSITION.fullmatch(text):
        node, ms, total, rows = found[1], int(found[2]), int(found[3]), int(found[4])
        return Start(max(0, ms * 1000 - OVERLAP), {node: Place(ms, total, rows)})
    try:
        time = datetime.fromisoformat(text)
        return Start(max(0, int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * SECOND)), {})
    except (ValueError, OverflowError):
        raise ValueError(
            f"SINCE of a stream is earliest, now, a duration such as 10m, a time such as 2026-11-22T10:00Z, or a "
            f"position: not {text[:40]!r}"
        ) from None
