"""The report's part about lag: the time from a node's acceptance of a message to the job's result."""

from dataclasses import dataclass, field

import pyarrow.compute as pc

from . import plots
from .bins import Bins
from .markup import Markup
from .results import Results, with_column

TITLE = "Time from acceptance to results"
COLUMNS = ["window_start", "messages", "p50", "p99", "max"]


@dataclass
class Lag:
    """The data of this part."""

    typical: float | None = None  # seconds
    figures: list[Markup] = field(default_factory=list)


def read(results: Results, bins: Bins) -> Lag:
    """Read the lag."""
    sums = bins.sums([], [("messages", "sum"), ("p50", "sum"), ("p99", "max"), ("max", "max")])
    for table in results.read("lag", COLUMNS):
        sums.add(bins.numbered(with_column(table, "p50", pc.multiply(table["p50"], table["messages"]))))
    rows = sums.rows()
    if not rows:
        return Lag()
    messages = sum(row["messages"] for row in rows) or 1
    typical = sum(row["p50"] for row in rows) / messages
    for row in rows:
        row["p50"] /= row["messages"] or 1
    labels = {"p50": "median", "p99": "99 %", "max": "largest"}
    series = [plots.Series(label, bins.spread(rows, name)) for name, label in labels.items()]
    about = "From the moment a node accepted a message. Of the windows in a point the highest counts for 99 %."
    style = plots.Style(plots.SECONDS, log=True, ramp=True, wide=True)
    return Lag(typical, [plots.over_time(TITLE, about, bins.times, series, style)])
