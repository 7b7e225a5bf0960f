"""Times as people write them: "10 min ago", "today 08:00", ISO 8601 with or without a zone, seconds since 1970.

Pure Python, because Spark's executors use it too. Times without a zone are UTC by default, so that a job's options mean
the same on every machine; `LOCAL` is for commands at a terminal. All times are whole microseconds since 1970, UTC, as
in the log of messages.
"""

import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo

SECOND = 1_000_000  # microseconds
LOCAL = None  # the zone of the machine that reads a time
EXPECTED = (
    'a time such as "10 min ago", "today 08:00", "2026-01-31 08:00", "2026-01-31T08:00:00Z" or seconds since 1970'
)
EXPECTED_DURATION = 'a duration such as "90 s", "10 min", "1 h 30 min" or "2 days"'
UNITS = {
    "us": 1,
    "microsecond": 1,
    "ms": 1000,
    "millisecond": 1000,
    "s": SECOND,
    "sec": SECOND,
    "second": SECOND,
    "m": 60 * SECOND,
    "min": 60 * SECOND,
    "minute": 60 * SECOND,
    "h": 3600 * SECOND,
    "hr": 3600 * SECOND,
    "hour": 3600 * SECOND,
    "d": 86400 * SECOND,
    "day": 86400 * SECOND,
    "w": 7 * 86400 * SECOND,
    "week": 7 * 86400 * SECOND,
}
NUMBER = re.compile(r"(\d+)(?:\.(\d*))?", re.ASCII)
PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
CLOCK = re.compile(r"(\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
DAYS = {"today": 0, "yesterday": 1}
LONGEST = 200 * 366 * 86400 * SECOND  # a duration; within the limits of Python's dates


def parse_time(text: str, now: float | None = None, zone: tzinfo | None = UTC) -> int:
    """Microseconds since 1970 of a time as people write it.

    Args:
        text: the time; a duration alone, such as "10 min", means that long ago.
        now: seconds since 1970, the reference for "ago" and "today"; by default the clock's time.
        zone: of a time without a zone: UTC, LOCAL or another.

    Raises:
        ValueError: it is none; the words complete the sentence "expected ...".
    """
    words = " ".join(text.split())
    lower = words.lower()
    moment = time.time_ns() // 1000 if now is None else round(now * SECOND)
    try:
        if lower == "now":
            return moment
        if lower.endswith(" ago"):
            return _within(moment - parse_duration(lower.removesuffix(" ago")))
        if lower.startswith("-"):
            return _within(moment - parse_duration(lower[1:]))
        number = NUMBER.fullmatch(words)
        if number and len(number[1]) >= 9:
            return _epoch(number[1], number[2] or "")
        with suppress(ValueError):
            return _within(moment - parse_duration(lower))
        return _within(_calendar(words, lower, moment, zone))
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(EXPECTED) from error


def parse_duration(text: str) -> int:
    """Microseconds of "10 min", "1 h 30 min", "2.5d".

    Raises:
        ValueError: it is none; the words complete the sentence "expected ...".
    """
    lower = text.strip().lower()
    at, total = 0, 0
    while part := PART.match(lower, at):
        unit = UNITS.get(part[2]) or UNITS.get(part[2].removesuffix("s"))
        if unit is None:
            break
        total += round(float(part[1]) * unit)
        at = part.end()
    if not lower or at < len(lower) or total > LONGEST:
        raise ValueError(EXPECTED_DURATION)
    return total


def format_time(moment: int) -> str:
    """A time as ISO 8601, UTC, to the millisecond, for people."""
    return f"{iso(moment)[:-4]}Z"


def iso(moment: int) -> str:
    """A time as ISO 8601 in UTC, with microseconds, for machines."""
    return f"{_EPOCH + timedelta(microseconds=moment):%Y-%m-%dT%H:%M:%S.%f}Z"


_EPOCH = datetime(1970, 1, 1)


def _epoch(whole: str, fraction: str) -> int:
    """Seconds since 1970; 13 digits are milliseconds, 16 microseconds, as other programs write them."""
    if len(whole) in (13, 16) and not fraction:
        return _within(int(whole.ljust(16, "0")))
    if len(whole) > 11:
        raise ValueError
    return _within(int(whole) * SECOND + int(fraction[:6].ljust(6, "0")))


def _calendar(words: str, lower: str, moment: int, zone: tzinfo | None) -> int:
    """A day, a time of the day, or both."""
    day, _, clock = lower.partition(" ")
    if day not in DAYS:
        day, clock = "today", lower
        if not CLOCK.fullmatch(lower):
            return _microseconds(datetime.fromisoformat(words.replace(" Z", "Z").replace(" +", "+")), zone)
    here = datetime.fromtimestamp(moment // SECOND, zone)
    midnight = here.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None) - timedelta(days=DAYS[day])
    if clock:
        found = CLOCK.fullmatch(clock)
        if not found:
            raise ValueError
        midnight = midnight.replace(
            hour=int(found[1]),
            minute=int(found[2]),
            second=int(found[3] or 0),
            microsecond=int((found[4] or "").ljust(6, "0")),
        )
    return _microseconds(midnight, zone)


def _microseconds(moment: datetime, zone: tzinfo | None) -> int:
    """The time; in `zone` if it has none."""
    if moment.tzinfo is None and zone is not None:
        moment = moment.replace(tzinfo=zone)
    fraction = moment.microsecond
    return round(moment.replace(microsecond=0).timestamp()) * SECOND + fraction


def _within(moment: int) -> int:
    """A time within the range of Python's dates."""
    if not 0 <= moment < 253_402_300_800 * SECOND:  # the year 10000
        raise ValueError
    return moment
