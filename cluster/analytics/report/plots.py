"""Plots of values over time. The page's script draws them with uPlot, from their tables and `data-` attributes."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import figures, words
from .figures import Cell, Legend
from .markup import Markup, tag
from .words import SECOND, moment

WIDE_RANGE = 30  # maximum divided by minimum
Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """A value for each time; None where there is none."""

    name: str
    values: Values


@dataclass(frozen=True)
class Times:
    """The times of the values, equally far apart."""

    begin: int  # of the first
    width: int
    count: int

    @property
    def end(self) -> int:
        """The last."""
        return self.begin + self.width * max(1, self.count - 1)

    def at(self, index: int) -> int:
        """One of them."""
        return self.begin + self.width * index


class Unit(NamedTuple):
    """The unit of values."""

    name: str  # for the labels of the axis, which the script makes
    words: Callable[[float | None], str]


RATE, BYTE_RATE = Unit("rate", words.rate), Unit("byte-rate", words.byte_rate)
BYTES, SECONDS = Unit("bytes", words.size), Unit("seconds", words.duration)


class Style(NamedTuple):
    """How a figure is drawn."""

    unit: Unit
    stacked: bool = False  # areas that begin with the first series, in place of lines
    log: bool = False  # the scale is logarithmic if the values differ by orders of magnitude
    ramp: bool = False  # the series are steps of one quantity, and their colours are steps of one colour
    wide: bool = False


def over_time(title: str, about: str, times: Times, series: Sequence[Series], style: Style) -> Markup:
    """A figure of some series."""
    series = [one for one in series if any(value is not None for value in one.values)]
    numbers = [value for one in series for value in one.values if value is not None]
    least, most = min((number for number in numbers if number > 0), default=1.0), max(numbers, default=0.0)
    colours = [f"k{index}" if style.ramp else figures.colour(index, one.name) for index, one in enumerate(series)]
    range_ = f"from {moment(times.begin)} to {moment(times.end)}, at most {style.unit.words(most)}"
    plot = tag(
        "div",
        class_="plot tall" if style.wide else "plot",
        role="img",
        aria_label=f"{title}: {len(series)} series {range_}. The table has the values.",
        data_kind="areas" if style.stacked else "lines",
        data_unit=style.unit.name,
        data_log=style.log and most > WIDE_RANGE * least,
        data_begin=times.begin / SECOND,
        data_step=times.width / SECOND,
    )
    legend = [Legend(one.name, colour) for one, colour in zip(series, colours, strict=True)]
    table = _table(times, series, style.unit)
    return figures.figure(title, about, plot, table, legend=legend, kind="wide" if style.wide else "")


def _table(times: Times, series: Sequence[Series], unit: Unit) -> Markup:
    rows = [
        [moment(times.at(index)), *(Cell(unit.words(one.values[index]), one.values[index]) for one in series)]
        for index in range(times.count)
    ]
    return figures.table(["time", *(one.name for one in series)], rows)


def dots(title: str, about: str, begin: int, end: int, table: Markup) -> Markup:
    """A figure with a dot for each row of a table: at its `time`, as high as the amount of its last cell."""
    plot = tag(
        "div",
        class_="plot",
        role="img",
        aria_label=f"{title}: points from {moment(begin)} to {moment(end)}. The table has them.",
        data_kind="dots",
        data_unit="number",
        data_log=True,
        data_begin=begin / SECOND,
        data_end=end / SECOND,
    )
    return figures.figure(title, about, plot, table, kind="wide")


def small(*series: Values, from_zero: bool = False) -> Markup:
    """A small curve without axes; a second and a third series are the lower and upper end of an area around it."""
    values = [[value if value is not None and math.isfinite(value) else None for value in one] for one in series]
    text = json.dumps([[None if value is None else float(f"{value:.6g}") for value in one] for one in values])
    return tag("div", class_="small-plot", aria_hidden="true", data_values=text, data_from_zero=from_zero)
