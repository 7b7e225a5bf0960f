"""The report's part about numeric payloads: for each topic a row with a small curve and its drift."""

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import figures, plots, words
from .bins import Bins
from .figures import Cell
from .markup import Markup, tag
from .results import Results, Sums, numbered, top, with_column

SHOWN = 12
LISTED = 200
SEPARATOR = "\0"  # no topic name contains it
COLUMNS = ["window_start", "topic", "field", "count", "mean", "min", "max", "stddev"]
SUMMED = [("count", "sum"), ("mean", "sum"), ("stddev", "sum"), ("min", "min"), ("max", "max")]


def read(results: Results, bins: Bins) -> list[Markup]:
    """Read the values twice: for the totals, then for the curves of the shown topics."""
    sums = Sums(["key"], SUMMED)
    for table in results.read("numbers", COLUMNS):
        sums.add(_weighted(table))
    totals = sums.table()
    if totals is None:
        return []
    rows = [_finished(row) for row in top(totals, "count", LISTED)]
    shown = [row["key"] for row in rows[:SHOWN]]
    by_bin = bins.sums(["name"], SUMMED)
    for table in results.read("numbers", COLUMNS):
        weighted = _weighted(table)
        by_bin.add(bins.numbered(with_column(weighted, "name", numbered(weighted, "key", shown))))
    binned = by_bin.rows()
    for row in binned:
        row["mean"] /= row["count"] or 1
    by_name = [[one for one in binned if one["name"] == number] for number in range(len(shown))]
    cards = [_card(row, bins, own) for row, own in zip(rows, by_name, strict=False)]
    head = ["topic", "values", "mean", "least", "most", "standard deviation"]
    lines = [
        [
            _name(row),
            Cell(words.whole(row["count"]), row["count"]),
            *(Cell(words.plain(row[name]), row[name]) for name in ("mean", "min", "max", "stddev")),
        ]
        for row in rows
    ]
    about = (
        f"{words.whole(totals.num_rows)} topics have numbers; those with most are shown. The line is the mean, the "
        "band reaches from the least to the most. Moved: the mean of the last quarter of the time against that of the "
        "first, in standard deviations."
    )
    grid = tag("div", *cards, class_="sensors")
    return [figures.figure("Numbers by topic", about, grid, figures.table(head, lines, sortable=True), kind="wide")]


def _weighted(table: pa.Table) -> pa.Table:
    """Replace means by sums: of the values, and of their squares."""
    count, mean = table["count"], table["mean"]
    deviation = pc.fill_null(table["stddev"], 0.0)
    squares = pc.add(pc.multiply(deviation, deviation), pc.multiply(mean, mean))
    keys = pc.binary_join_element_wise(table["topic"], pc.fill_null(table["field"], ""), SEPARATOR)
    table = with_column(table, "stddev", pc.multiply(squares, count))
    table = with_column(table, "mean", pc.multiply(mean, count))
    return with_column(table, "key", keys)


def _finished(row: dict[str, Any]) -> dict[str, Any]:
    """Replace sums by means again."""
    count = row["count"] or 1
    mean = row["mean"] / count
    return row | {"mean": mean, "stddev": math.sqrt(max(0.0, row["stddev"] / count - mean * mean))}


def _card(row: dict[str, Any], bins: Bins, rows: list[dict[str, Any]]) -> Markup:
    means = bins.spread(rows, "mean")
    drawing = plots.small(means, bins.spread(rows, "min"), bins.spread(rows, "max"))
    moved = _moved(means, row["stddev"])
    far = moved is not None and abs(moved) >= 2
    return tag(
        "div",
        tag("h4", tag("bdi", words.shown(_name(row), words.LABEL_MAX)), title=words.shown(_name(row))),
        drawing,
        tag(
            "p",
            tag("b", words.short(row["mean"])),
            f" mean, {words.short(row['min'])} to {words.short(row['max'])}",
            tag("span", f"moved {moved:+.1f}", class_="moved far" if far else "moved") if moved is not None else None,
        ),
        class_="sensor",
    )


def _moved(means: list[float | None], deviation: float) -> float | None:
    known = [mean for mean in means if mean is not None]
    quarter = len(known) // 4
    if quarter < 2 or deviation <= 0:
        return None
    return (sum(known[-quarter:]) - sum(known[:quarter])) / quarter / deviation


def _name(row: dict[str, Any]) -> str:
    topic, _, field = row["key"].partition(SEPARATOR)
    return f"{topic} {field}".rstrip()
