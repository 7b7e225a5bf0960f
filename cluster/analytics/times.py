"""Times as people write them: ISO 8601, or how long ago."""

import re
from datetime import UTC, datetime

UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
UNITS |= {"d": 86_400, "day": 86_400, "w": 604_800, "week": 604_800}
AGO = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+?)s?(?:\s+ago)?")
EXPECTED = 'a time such as 2026-05-01T12:30:00Z (UTC if it does not say where) or "10 min ago"'
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str, now: float) -> int:
    """Microseconds since 1970, UTC.

    Args:
        text: ISO 8601, "now", or a number and a unit from seconds to weeks, with "ago" or without.
        now: seconds since 1970.

    Raises:
        ValueError: the words complete the sentence "expected ...".
    """
    text = text.strip()
    if text.lower() == "now":
        return round(now * 1e6)
    found = AGO.fullmatch(text.lower())
    if found is not None and found[2] in UNITS:
        return round((now - float(found[1]) * UNITS[found[2]]) * 1e6)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(EXPECTED) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since = time - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def format_time(microseconds: int) -> str:
    """A time as ISO 8601, UTC, to the millisecond."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:03}Z"
