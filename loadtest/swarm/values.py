"""The kinds of values in scenario files: functions that return the value or raise ValueError with the expected form.

Owns the notation of durations, shares, topics and limits; `scenario` has the keys and their kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..._speedups.codec.topics import InvalidTopic, validate_topic_filter, validate_topic_name
from . import payload_header

PLACES = {"root": "load/0", "site": 0, "client": "sensor-0", "index": 0}  # placeholders of topics, with an example
LATENCY = re.compile(r"(.+?) p(\d+(?:\.\d+)?)")
DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\s*")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def seconds(raw: object) -> float:
    match = DURATION.fullmatch(raw) if isinstance(raw, str) else None
    if match:
        return float(match[1]) * SECONDS[match[2]]
    if isinstance(raw, bool) or not isinstance(raw, int | float) or raw < 0:
        raise ValueError('a duration such as 10, "1.5 s", "250 ms" or "2 min"')
    return float(raw)


def rate(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or raw <= 0:
        raise ValueError("a number above 0")
    return float(raw)


def whole(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise ValueError("a whole number, at least 0")
    return raw


def share(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 <= raw <= 1:
        raise ValueError("a number from 0 to 1")
    return float(raw)


def boolean(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError("true or false")
    return raw


def text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("text")
    return raw


def one_qos(raw: object) -> int:
    if isinstance(raw, bool) or raw not in (0, 1, 2):
        raise ValueError("0, 1 or 2")
    return int(str(raw))


def work_qos(raw: object) -> int:
    if isinstance(raw, bool) or raw not in (1, 2):
        raise ValueError("1 or 2")
    return int(str(raw))


def mix(raw: object, what: str, valid: Callable[[int], bool]) -> dict[int, float]:
    """One number, or a table of numbers with their shares."""
    table: Mapping[Any, Any] = raw if isinstance(raw, dict) else {raw: 1.0}
    try:
        shares = {int(str(number)): share(part) for number, part in table.items()}
    except (ValueError, TypeError):
        shares = {}
    if not shares or not all(map(valid, shares)) or abs(sum(shares.values()) - 1) > 0.001:
        raise ValueError(f"{what}, or a table of these with shares that add up to 1")
    return shares


def qos_mix(raw: object) -> dict[int, float]:
    return mix(raw, "0, 1 or 2", lambda number: number in (0, 1, 2))


def size_mix(raw: object) -> dict[int, float]:
    return mix(raw, f"bytes, at least {payload_header.SIZE}", lambda number: number >= payload_header.SIZE)


def template(raw: object, check: Callable[[str], None]) -> str:
    try:
        check(text(raw).format(**PLACES))
    except (KeyError, IndexError, InvalidTopic, ValueError):
        places = ", ".join(f"{{{name}}}" for name in PLACES)
        raise ValueError(f"a topic such as {{root}}/site-{{site}}/{{client}}/state, of {places}") from None
    return text(raw)


def topic_name(raw: object) -> str:
    return template(raw, validate_topic_name) if raw else ""


def topic_filter(raw: object) -> str:
    return template(raw, validate_topic_filter)


def shared_filter(raw: object) -> str:
    if not re.match(r"\$share/[^/+#]+/.", text(raw)):
        raise ValueError("a shared subscription such as $share/workers/{root}/work/#")
    return topic_filter(raw)


def limit(raw: object) -> int | None:
    return None if raw == "any" else whole_or(raw, 'a whole number, or "any"')


def whole_or(raw: object, expected: str) -> int:
    try:
        return whole(raw)
    except ValueError:
        raise ValueError(expected) from None


def latencies(raw: object) -> dict[str, float]:
    """{"deliver qos1 p99" = "500 ms"} as {"deliver qos1 p99": 500.0}, in milliseconds."""
    if not isinstance(raw, dict) or not all(LATENCY.fullmatch(name) for name in raw):
        raise ValueError('a table such as {"deliver qos1 p99" = "500 ms"}')
    return {name: seconds(value) * 1000 for name, value in raw.items()}


def a_list(raw: object) -> list[object]:
    if not isinstance(raw, list) or not raw:
        raise ValueError("a list, not empty")
    return raw
