"""Lines that strangers cause: the first of a network are written, and the number of the rest."""

import time

import pytest

from flockmq.broker import logs
from flockmq.broker.core.log_limiter import LINES, SECONDS, LogLimiter

Line = tuple[str, dict[str, object]]


@pytest.fixture
def lines() -> list[Line]:
    return []


def cause(made: LogLimiter, lines: list[Line], number: int, address: str, event: str = "refused") -> None:
    for port in range(number):
        made.write(lambda e, **v: lines.append((e, v)), event, address=address and f"{address}:{port}", client_id="a")


def test_few_lines_are_written(lines: list[Line]) -> None:
    made = LogLimiter()
    cause(made, lines, LINES, "192.0.2.1")
    made.close()
    assert len(lines) == LINES
    assert lines[1] == ("refused", {"address": "192.0.2.1:1", "client_id": "a"})


def test_many_are_summed_up_at_the_end_of_the_period(lines: list[Line]) -> None:
    made = LogLimiter()
    cause(made, lines, LINES + 380, "192.0.2.1")
    made.tick(time.monotonic())
    assert len(lines) == LINES
    made.tick(time.monotonic() + SECONDS)
    assert lines[LINES:] == [
        (
            "refused: more lines like it were left out",
            {"network": "192.0.2.1", "lines": 380, "seconds": SECONDS},
        )
    ]
    cause(made, lines, 1, "192.0.2.1")
    assert len(lines) == LINES + 2, "a new period"


@pytest.mark.parametrize(
    ("first", "second", "event", "are_one"),
    [
        ("192.0.2.1", "192.0.2.2", "refused", False),
        ("[2001:db8::1]", "[2001:db8::2]", "refused", True),
        ("192.0.2.1", "192.0.2.1", "ended", False),
        ("", "", "refused", True),
    ],
)
def test_one_flood_hides_no_other(first: str, second: str, event: str, are_one: bool, lines: list[Line]) -> None:
    made = LogLimiter()
    cause(made, lines, LINES, first)
    cause(made, lines, 1, second, event)
    assert len(lines) == LINES + (not are_one)


def test_many_networks_are_one(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flockmq.broker.core.log_limiter.MAX_NETWORKS", 10)
    made = LogLimiter()
    for n in range(10 + LINES + 7):
        cause(made, lines, 1, f"192.0.2.{n}")
    made.close()
    assert len(lines) == 10 + LINES + 1
    assert lines[-1][1] == {"network": "others", "lines": 7, "seconds": SECONDS}


def test_level_debug_has_all(lines: list[Line]) -> None:
    before = logs.level()
    logs.set_level("debug")
    try:
        cause(LogLimiter(), lines, LINES + 5, "192.0.2.1")
    finally:
        logs.set_level(before)
    assert len(lines) == LINES + 5
