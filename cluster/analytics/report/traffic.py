"""The report's part about messages and bytes: over time, by topic prefix and node, sizes, QoS."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import figures, plots, tracks, words
from .bins import Bins
from .figures import COLOURS, OTHER, Cell, Legend
from .markup import Markup
from .results import Results, Sums, numbered, top, with_column

COUNTS = ["messages", "bytes"]
QOS = ["qos_0", "qos_1", "qos_2"]
SIZES = ["size_p50", "size_p90", "size_p99"]
COLUMNS = ["window_start", "prefix", "node", *COUNTS, *QOS, *SIZES, "size_max"]
SUMMED = [(name, "sum") for name in [*COUNTS, *QOS, *SIZES]] + [("size_max", "max")]
ROWS = 8  # of plots that compare prefixes


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
    for column, title, style in (
        ("messages", "Messages per second by topic prefix", plots.Style(plots.RATE, stacked=True, wide=True)),
        ("bytes", "Payload bytes per second by topic prefix", plots.Style(plots.BYTE_RATE, stacked=True)),
    ):
        series = _series(bins, prefix_rows, column, shown)
        traffic.figures.append(plots.over_time(title, each, bins.times, series, style))
    series = _series(bins, node_rows, "messages", nodes)
    traffic.figures.append(
        plots.over_time("Messages per second by node", each, bins.times, series, plots.Style(plots.RATE))
    )
    traffic.distribution.append(_sizes_over_time(bins, rows))


def _series(bins: Bins, rows: list[dict[str, Any]], column: str, names: list[str]) -> list[plots.Series]:
    series = [
        plots.Series(words.shown(name), bins.per_second(rows, column, name=number)) for number, name in enumerate(names)
    ]
    if any(row["name"] == len(names) for row in rows):
        series.append(plots.Series(OTHER, bins.per_second(rows, column, name=len(names))))
    return series


def _sizes_over_time(bins: Bins, rows: list[dict[str, Any]]) -> Markup:
    for row in rows:
        for name in SIZES:
            row[name] /= row["messages"] or 1
    labels = {"size_p50": "median", "size_p90": "90 %", "size_p99": "99 %", "size_max": "largest"}
    series = [plots.Series(label, bins.spread(rows, name)) for name, label in labels.items()]
    return plots.over_time(
        "Payload size over time",
        "Half of the payloads are not larger than the median.",
        bins.times,
        series,
        plots.Style(plots.BYTES, log=True, ramp=True, wide=True),
    )


def _size_ranges(total: dict[str, Any], prefixes: list[dict[str, Any]]) -> Markup:
    names = ["median", "90 %", "99 %", "largest"]

    def marks(row: dict[str, Any]) -> list[float]:
        found = [row[name] / (row["messages"] or 1) for name in SIZES]
        return [*found, max(float(row["size_max"] or 0), *found)]

    place = _places([mark for row in prefixes for mark in marks(row)])
    rows = []
    for row in prefixes:
        places = [place(mark) for mark in marks(row)]
        name = words.shown(row["prefix"], words.LABEL_MAX)
        dots = [
            tracks.Mark(at, at, f"tick k{index}", f"{name}, {names[index]}: {words.size(mark)}")
            for index, (at, mark) in enumerate(zip(places, marks(row), strict=True))
        ]
        bar = tracks.Mark(places[0], places[-2], "c0", "")
        rows.append(tracks.Row(row["prefix"], f"median {words.size(marks(row)[0])}", [bar, *dots]))
    lines = [
        [name, *(Cell(words.size(mark), mark) for mark in marks(row))]
        for name, row in [*((row["prefix"], row) for row in prefixes), ("all", total)]
    ]
    return tracks.figure(
        "Payload sizes",
        f"By topic prefix, the bar from the median to the 99th percentile. All: median {words.size(marks(total)[0])}, "
        f"largest {words.size(marks(total)[-1])}.",
        rows,
        figures.table(["prefix", *names], lines, sortable=True),
        legend=[Legend(name, f"k{index}") for index, name in enumerate(names)],
    )


def _places(values: list[float]) -> Callable[[float], float]:
    """The places of values on a logarithmic track."""
    low = math.log(max(1.0, min(values)))
    width = math.log(max(2.0, *values)) - low or 1.0
    return lambda value: (math.log(max(1.0, value)) - low) / width


def _qos(total: dict[str, Any], prefixes: list[dict[str, Any]]) -> Markup:
    names = ["QoS 0", "QoS 1", "QoS 2"]
    named = [("all", total), *((row["prefix"], row) for row in prefixes)]
    rows = [tracks.Row(name, f"{words.compact(row['messages'])} messages", _shares(name, row)) for name, row in named]
    lines = [
        [
            name,
            Cell(words.whole(row["messages"]), row["messages"]),
            *(Cell(words.share(row[qos] / (row["messages"] or 1)), row[qos] / (row["messages"] or 1)) for qos in QOS),
        ]
        for name, row in named
    ]
    table = figures.table(["prefix", "messages", *names], lines, sortable=True)
    legend = [Legend(name, f"c{index}") for index, name in enumerate(names)]
    return tracks.figure("QoS", "Shares of the messages, by topic prefix.", rows, table, legend=legend)


def _shares(name: str, row: dict[str, Any]) -> list[tracks.Mark]:
    """The parts of a track that the QoS levels have."""
    whole, end, marks = sum(row[qos] for qos in QOS) or 1.0, 0.0, []
    for index, qos in enumerate(QOS):
        if row[qos] > 0:
            begin, end = end, end + row[qos] / whole
            about = f"{words.shown(name, words.LABEL_MAX)}, QoS {index}: {words.share(row[qos] / whole)}"
            marks.append(tracks.Mark(begin, end, f"part c{index}", about))
    return marks
