"""Times as people write them."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from flockmq.cluster.analytics.times import (
    EXPECTED,
    EXPECTED_DURATION,
    SECOND,
    format_time,
    iso,
    parse_duration,
    parse_time,
)

BERLIN_WINTER = timezone(timedelta(hours=1))
NOON = 1_769_860_800  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-01-31T12:00:00.000000Z"),
        ("10 min ago", "2026-01-31T11:50:00.000000Z"),
        ("10min ago", "2026-01-31T11:50:00.000000Z"),
        ("1 minute ago", "2026-01-31T11:59:00.000000Z"),
        ("  90   Seconds AGO ", "2026-01-31T11:58:30.000000Z"),
        ("1 h 30 min ago", "2026-01-31T10:30:00.000000Z"),
        ("1h30m ago", "2026-01-31T10:30:00.000000Z"),
        ("2.5 hours ago", "2026-01-31T09:30:00.000000Z"),
        ("1 day ago", "2026-01-30T12:00:00.000000Z"),
        ("2 weeks ago", "2026-01-17T12:00:00.000000Z"),
        ("250 ms ago", "2026-01-31T11:59:59.750000Z"),
        ("10 min", "2026-01-31T11:50:00.000000Z"),
        ("-15m", "2026-01-31T11:45:00.000000Z"),
        ("today", "2026-01-30T23:00:00.000000Z"),
        ("today 08:00", "2026-01-31T07:00:00.000000Z"),
        ("yesterday 22:15:30.5", "2026-01-30T21:15:30.500000Z"),
        ("8:05", "2026-01-31T07:05:00.000000Z"),
        ("2026-01-31", "2026-01-30T23:00:00.000000Z"),
        ("20260131T080000Z", "2026-01-31T08:00:00.000000Z"),
        ("20260131", "2026-01-30T23:00:00.000000Z"),
        ("2026-01-31 08:00", "2026-01-31T07:00:00.000000Z"),
        ("2026-01-31T08:00:00.123456", "2026-01-31T07:00:00.123456Z"),
        ("2026-01-31T08:00:00Z", "2026-01-31T08:00:00.000000Z"),
        ("2026-01-31 08:00 Z", "2026-01-31T08:00:00.000000Z"),
        ("2026-01-31T08:00:00.000001-05:30", "2026-01-31T13:30:00.000001Z"),
        ("1769860800", "2026-01-31T12:00:00.000000Z"),
        ("1769860800.25", "2026-01-31T12:00:00.250000Z"),
        ("1769860800123", "2026-01-31T12:00:00.123000Z"),
        ("1769860800123456", "2026-01-31T12:00:00.123456Z"),
    ],
)
def test_a_time(text: str, expected: str) -> None:
    assert iso(parse_time(text, now=NOON, zone=BERLIN_WINTER)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "ago",
        "10 ago",
        "10 parsecs ago",
        "today 25:00",
        "2026-02-30",
        "12",
        "1 h ago 3",
        "-",
        "99:99",
        "9999999999999999999",
        "9999999 weeks ago",
        "1e9",
        "٣ min ago",
        "2026-01-31T08:00:00Z; drop",
    ],
)
def test_what_is_no_time_is_told_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="min ago") as caught:
        parse_time(text, now=NOON, zone=UTC)
    assert str(caught.value) == EXPECTED


def test_without_a_zone_it_is_utc_unless_the_caller_says_otherwise() -> None:
    assert format_time(parse_time("2026-01-31 08:00")) == "2026-01-31T08:00:00.000Z"


def test_now_is_the_clocks_time_unless_given() -> None:
    before = datetime.now(UTC).timestamp()
    assert before * SECOND - 1 <= parse_time("now") <= datetime.now(UTC).timestamp() * SECOND + 1


def test_without_a_zone_it_is_the_machines_local_time_summer_and_winter() -> None:
    code = (
        "from flockmq.cluster.analytics.times import LOCAL, iso, parse_time\n"
        "print(*(iso(parse_time(text, zone=LOCAL)) for text in ('2026-01-31 08:00', '2026-07-31 08:00')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TZ": "CET-1CEST,M3.5.0,M10.5.0"},
        capture_output=True,
        check=True,
    )
    assert result.stdout.decode().split() == ["2026-01-31T07:00:00.000000Z", "2026-07-31T06:00:00.000000Z"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90 s", 90), ("10min", 600), ("1 h 30 min", 5400), ("2 days", 172800), ("0.5 s", 0.5)]
)
def test_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds * SECOND


@pytest.mark.parametrize("text", ["", "10", "min", "1 h x", "-3 s", "1,5 h", "999999999 days"])
def test_what_is_no_duration_is_told_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="1 h 30 min") as caught:
        parse_duration(text)
    assert str(caught.value) == EXPECTED_DURATION
