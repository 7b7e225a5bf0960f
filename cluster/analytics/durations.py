"""Durations as people write them: `90`, `30 seconds`, `5 min`, `1.5 hours`, `500ms`."""

import re

UNITS = {
    "ms": 1e-3,
    "millisecond": 1e-3,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86_400,
    "day": 86_400,
    "w": 604_800,
    "week": 604_800,
}
DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def microseconds(text: str) -> int:
    """The duration; a number alone is seconds.

    Raises:
        ValueError: the text is no duration.
    """
    found = DURATION.fullmatch(text.lower())
    if found:
        number, unit = found.groups()
        factor = UNITS.get(unit or "s") or UNITS.get(unit.removesuffix("s"))
        if factor:
            return round(float(number) * factor * 1_000_000)
    raise ValueError(f"{text!r} is no duration such as '30 seconds', '5 min' or '1 hour'")
