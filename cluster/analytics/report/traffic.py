"""The report's part about messages and bytes: over time, by topic prefix and node, sizes, QoS."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import bars, curves, frame, words
from .bins import Bins
from .frame import COLOURS, OTHER, Cell
from .markup import Markup
from .results import Results, Sums, numbered, top, with_column

COUNTS = ["messages", "bytes"]
QOS = ["qos_0", "qos_1", "qos_2"]
SIZES = ["size_p50", "size_p90", "size_p99"]
COLUMNS = ["window_start", "prefix", "node", *COUNTS, *QOS, *SIZES, "size_max"]
SUMMED = [(name, "sum") for name in [*COUNTS, *QOS, *SIZES]] + [("size_max", "max")]
ROWS = 8  # of plots that compare prefixes
PER_SECOND = "/s"


@dataclass
class Traffic:
    """The data of this part."""

    messages: int = 0
    bytes: int = 0
    peak: float = 0.0  # messages a second in the busiest bin
    rates: list[float | None] = field(default_factory=list)
    figures: list[Markup] = field(default_factory=list)
    distribution: list[Markup] = field(default_factory=list)  # sizes and QoS


def read(results: Results, bins: Bins) -> Traffic:
    """Read the rates twice: for the totals, then for the bins of the shown prefixes and nodes."""
    totals, by_prefix, by_node = Sums([], SUMMED), Sums(["prefix"], SUMMED), Sums(["node"], SUMMED)
    for table in results.read("rates", COLUMNS):
        weighted = _weighted(table)
        for sums in (totals, by_prefix, by_node):
            sums.add(weighted)
    found = totals.rows()
    if not found:
        return Traffic()
    total = found[0]
    prefixes, nodes = top(by_prefix.table(), "messages", ROWS), top(by_node.table(), "messages", COLOURS)
    traffic = Traffic(total["messages"], total["bytes"])
    _add_curves(traffic, results, bins, [row["prefix"] for row in prefixes], sorted(row["node"] for row in nodes))
    traffic.distribution += [_size_ranges(total, prefixes), _qos(total, prefixes)]
    return traffic


def _weighted(table: pa.Table) -> pa.Table:
    """Shares and percentiles times messages, so that their sums give means."""
    for name in [*QOS, *SIZES]:
        table = with_column(table, name, pc.multiply(pc.fill_null(table[name], 0.0), table["messages"]))
    return table


def _add_curves(traffic: Traffic, results: Results, bins: Bins, prefixes: list[str], nodes: list[str]) -> None:
    shown = prefixes[:COLOURS]
    by_prefix, by_node, all_sums = bins.sums(["name"], SUMMED), bins.sums(["name"], SUMMED), bins.sums([], SUMMED)
    for table in results.read("rates", COLUMNS):
        weighted = bins.numbered(_weighted(table))
        by_prefix.add(with_column(weighted, "name", numbered(weighted, "prefix", shown)))
        by_node.add(with_column(weighted, "name", numbered(weighted, "node", nodes)))
        all_sums.add(weighted)
    prefix_rows, node_rows, rows = by_prefix.rows(), by_node.rows(), all_sums.rows()
    traffic.rates = bins.per_second(rows, "messages")
    traffic.peak = max((rate or 0.0 for rate in traffic.rates), default=0.0)
    each = f"Each point is {words.duration(bins.width / 1e6)}."
    for column, title, unit, base in (
        ("messages", "Messages per second by topic prefix", _rate, 10),
        ("bytes", "Payload bytes per second by topic prefix", _byte_rate, 2),
    ):
        series = _series(bins, prefix_rows, column, shown)
        wide = column == "messages"
        style = curves.Style(stacked=True, base=base, wide=wide)
        plot = curves.over_time(title, each, bins.times, series, unit, style)
        traffic.figures.append(plot)
    series = _series(bins, node_rows, "messages", nodes)
    traffic.figures.append(curves.over_time("Messages per second by node", each, bins.times, series, _rate))
    traffic.distribution.append(_sizes_over_time(bins, rows))


def _series(bins: Bins, rows: list[dict[str, Any]], column: str, names: list[str]) -> list[curves.Series]:
    series = [
        curves.Series(words.shown(name), bins.per_second(rows, column, name=number))
        for number, name in enumerate(names)
    ]
    if any(row["name"] == len(names) for row in rows):
        series.append(curves.Series(OTHER, bins.per_second(rows, column, name=len(names))))
    return series


def _sizes_over_time(bins: Bins, rows: list[dict[str, Any]]) -> Markup:
    for row in rows:
        for name in SIZES:
            row[name] /= row["messages"] or 1
    labels = {"size_p50": "median", "size_p90": "90 %", "size_p99": "99 %", "size_max": "largest"}
    series = [curves.Series(label, bins.spread(rows, name)) for name, label in labels.items()]
    return curves.over_time(
        "Payload size over time",
        "Half of the payloads are not larger than the median.",
        bins.times,
        series,
        words.size,
        curves.Style(log=True, ramp=True, base=2, wide=True),
    )


def _size_ranges(total: dict[str, Any], prefixes: list[dict[str, Any]]) -> Markup:
    names = ["median", "90 %", "99 %", "largest"]

    def marks(row: dict[str, Any]) -> list[float]:
        found = [row[name] / (row["messages"] or 1) for name in SIZES]
        return [*found, max(float(row["size_max"] or 0), *found)]

    rows = [bars.Range(row["prefix"], f"median {words.size(marks(row)[0])}", marks(row)) for row in prefixes]
    lines = [
        [name, *(Cell(words.size(mark), mark) for mark in marks(row))]
        for name, row in [*((row["prefix"], row) for row in prefixes), ("all", total)]
    ]
    return bars.ranges(
        "Payload sizes",
        f"By topic prefix, the bar from the median to the 99th percentile. All: median {words.size(marks(total)[0])}, "
        f"largest {words.size(marks(total)[-1])}.",
        names,
        rows,
        words.size,
        frame.table(["prefix", *names], lines, sortable=True),
    )


def _qos(total: dict[str, Any], prefixes: list[dict[str, Any]]) -> Markup:
    named = [("all", total), *((row["prefix"], row) for row in prefixes)]
    rows = [
        bars.Shares(name, f"{words.compact(row['messages'])} messages", [row[qos] for qos in QOS])
        for name, row in named
    ]
    lines = [
        [
            name,
            Cell(words.whole(row["messages"]), row["messages"]),
            *(Cell(words.share(row[qos] / (row["messages"] or 1)), row[qos] / (row["messages"] or 1)) for qos in QOS),
        ]
        for name, row in named
    ]
    table = frame.table(["prefix", "messages", "QoS 0", "QoS 1", "QoS 2"], lines, sortable=True)
    return bars.shares("QoS", "Shares of the messages, by topic prefix.", ["QoS 0", "QoS 1", "QoS 2"], rows, table)


def _rate(value: float | None) -> str:
    return words.compact(value) if not value else f"{words.compact(value)}{PER_SECOND}"


def _byte_rate(value: float | None) -> str:
    return words.compact(value) if not value else f"{words.size(value)}{PER_SECOND}"
