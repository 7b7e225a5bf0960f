"""Time in at most some hundred bins, so that the page for a year is no larger than that for an hour."""

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..times import SECOND
from .plots import Times
from .results import Aggregation, Sums, with_column

MINUTE, HOUR, DAY = 60, 3600, 86400
STEPS = (  # seconds
    *(1, 2, 5, 10, 15, 30),
    *(number * MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR for number in (1, 2, 3, 6, 12)),
    *(number * DAY for number in (1, 2, 7, 14)),
)


class Bins:
    """The bins of a range.

    Args:
        begin, end: of the range.
        at_most: number of bins, about.
        window: the minimum width; each width is a multiple of it.
    """

    def __init__(self, begin: int, end: int, at_most: int, window: int) -> None:
        self.begin, self.end = begin, max(end, begin + 1)
        self.width = _width(self.begin, self.end, at_most, window)
        self.count = max(1, -(-(self.end - self.begin) // self.width))

    @property
    def times(self) -> Times:
        """The places of the bins on a plot."""
        return Times(self.begin, self.width, self.count)

    def seconds(self, index: int) -> float:
        """The length of a bin; the last one may end early."""
        start = self.begin + index * self.width
        return max(1, min(start + self.width, self.end) - start) / SECOND

    def numbered(self, table: pa.Table, time: str = "window_start") -> pa.Table:
        """A table with the number of each row's bin as `bin`."""
        since = pc.subtract(table[time], self.begin)
        places = pc.divide(pc.max_element_wise(since, 0), self.width)
        return with_column(table, "bin", pc.min_element_wise(places, self.count - 1))

    def sums(self, keys: Sequence[str], aggregations: Sequence[Aggregation]) -> Sums:
        """Sums by bin and other keys."""
        return Sums(["bin", *keys], aggregations)

    def spread(self, rows: Sequence[dict[str, Any]], column: str, **where: object) -> list[float | None]:
        """The value of a column for each bin, from the rows with these values in other columns."""
        values: list[float | None] = [None] * self.count
        for row in rows:
            if all(row[name] == value for name, value in where.items()):
                values[row["bin"]] = row[column]
        return values

    def per_second(self, rows: Sequence[dict[str, Any]], column: str, **where: object) -> list[float | None]:
        """As `spread`, per second; a missing value is 0."""
        values = self.spread(rows, column, **where)
        return [(value or 0.0) / self.seconds(index) for index, value in enumerate(values)]


def _width(begin: int, end: int, at_most: int, unit: int) -> int:
    """The microseconds of a bin, so that about `at_most` bins cover the range; a multiple of `unit`."""
    needed = max(1, end - begin) / at_most
    for step in STEPS:
        if step * SECOND >= needed and step * SECOND % unit == 0:
            return step * SECOND
    return math.ceil(needed / unit) * unit if needed > STEPS[-1] * SECOND or unit > SECOND else math.ceil(needed)
