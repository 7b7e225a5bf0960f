"""The record of `make soak`: amounts in outputs, and lines in the table."""

from collections import Counter
from datetime import date
from pathlib import Path

from tests.soak import HEAD, PARTS, RECORDS, count, record_of, with_row

OUTPUT = """
#3291 REDUCE cov: 45 ft: 120 corp: 89/9591b
Done 3571 runs in 9 second(s)
.soak: 10 times 100 groups: 72.0, 72.0 MiB
.40 seeds, 0 with findings; 500 s of virtual time in 9.1 s
.3 kills, 200 messages, 5000 events
2 kills, 100 messages, 2000 events
900 messages so far, 40 deliveries; 0 lost, 0 doubled
1000000 malformed packets: 0.1 MiB more, latency x 1.20
2 passed, 1 skipped, 40 deselected in 9.00s
"""


def test_amounts_are_added() -> None:
    amounts: Counter[str] = Counter()
    for line in OUTPUT.splitlines():
        count(line, amounts)
    assert amounts == {
        "runs": 3571,
        "groups": 100,
        "seeds": 40,
        "kills": 5,
        "messages": 300,
        "malformed packets": 1_000_000,
        "passed": 2,
        "skipped": 1,
    }


def test_a_line_takes_the_place_of_an_older_one() -> None:
    first, second = list(PARTS)[:2]
    text = "Why.\n\n" + HEAD
    for part, cell in ((second, "old"), (first, "a"), (second, "b")):
        text = with_row(text, part, [cell])
    assert text == f"Why.\n\n{HEAD}| {first} | a |\n| {second} | b |\n"


def test_a_day_has_one_record(tmp_path: Path) -> None:
    record = record_of(date(2026, 12, 1), tmp_path)
    assert record.name == "soak-2026-12-01.md"
    assert record.read_text().startswith("# The long forms, 2026-12-01\n\nFor ")
    record.write_text(with_row(record.read_text(), next(iter(PARTS)), ["a"]))
    assert record_of(date(2026, 12, 1), tmp_path).read_text().endswith(f"{HEAD}| {next(iter(PARTS))} | a |\n")


def test_records_have_the_table() -> None:
    records = list(RECORDS.glob("soak-*.md"))
    assert records
    assert all(HEAD in record.read_text() for record in records)
