"""Plots of values over time: lines, stacked areas, dots, and small curves in tiles and rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import frame
from .frame import UNIT, Cell, Legend
from .markup import Markup, tag
from .scales import Format, Scale
from .words import moment, plain, shown

HEIGHT, WIDE_HEIGHT = 230, 290  # pixels
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

    def x(self, index: int) -> int:
        """Its place in the inner SVG."""
        return round(UNIT * index / max(1, self.count - 1))


class Style(NamedTuple):
    """How a figure is drawn."""

    stacked: bool = False  # areas that begin with the first series, in place of lines
    log: bool = False  # the scale is logarithmic if the values differ by orders of magnitude
    ramp: bool = False  # the series are steps of one quantity, and their colours are steps of one colour
    base: int = 10  # of the numbers of the scale
    wide: bool = False


PLAIN = Style()


def over_time(
    title: str, about: str, times: Times, series: Sequence[Series], words: Format, style: Style = PLAIN
) -> Markup:
    """A figure of some series."""
    stacked, log, ramp, base, wide = style
    height = WIDE_HEIGHT if wide else HEIGHT
    series = [one for one in series if any(value is not None for value in one.values)]
    tops = _stack(series) if stacked else [one.values for one in series]
    numbers = [value for values in tops for value in values if value is not None]
    least, most = min((number for number in numbers if number > 0), default=1.0), max(numbers, default=0.0)
    log = log and most > WIDE_RANGE * least
    scale = Scale(least if log else 0.0, most, log=log, base=base)
    kinds = [f"k{index}" if ramp else frame.colour(index, one.name) for index, one in enumerate(series)]
    paths = []
    for index, kind in reversed(list(enumerate(kinds))):
        if stacked:
            below: Values = tops[index - 1] if index else [0.0] * times.count
            paths.append(tag("path", d=_area(times, scale, tops[index], below), class_=f"area {kind}"))
        else:
            paths.append(tag("path", d=_line(times, scale, tops[index]), class_=f"line {kind}"))
    body = (
        frame.grid(scale, height, words),
        frame.curves(height, *paths),
        frame.time_axis(times.begin, times.end, height),
    )
    peak = max((value for one in series for value in one.values if value is not None), default=0.0)
    range_ = f"from {moment(times.begin)} to {moment(times.end)}"
    description = f"{len(series)} series {range_}, at most {words(peak)}. The table below has all values."
    return frame.figure(
        title,
        about,
        frame.drawing(title, description, height, *body, kind="over-time"),
        _table(times, series, words),
        legend=[Legend(one.name, kind) for one, kind in zip(series, kinds, strict=True)],
        kind="wide" if wide else "",
    )


def _stack(series: Sequence[Series]) -> list[Values]:
    tops: list[Values] = []
    below: list[float] = []
    for one in series:
        below = [(below[index] if below else 0.0) + (value or 0.0) for index, value in enumerate(one.values)]
        tops.append(below)
    return tops


def _table(times: Times, series: Sequence[Series], words: Format) -> Markup:
    rows = [
        [moment(times.at(index)), *(Cell(words(one.values[index]), one.values[index]) for one in series)]
        for index in range(times.count)
    ]
    return frame.table(["time", *(one.name for one in series)], rows)


def _y(scale: Scale, value: float) -> int:
    return round(UNIT * (1 - scale.place(value)))


def _line(times: Times, scale: Scale, values: Values) -> str:
    """A path with gaps for missing values; a single value is a dot, because the ends of lines are round."""
    parts = []
    joined = False
    for index, value in enumerate(values):
        if value is None:
            joined = False
            continue
        parts.append(f"{'L' if joined else 'M'}{times.x(index)} {_y(scale, value)}{'' if joined else 'h0'}")
        joined = True
    if times.count == 1 and parts:
        parts.append(f"H{UNIT}")
    return "".join(parts)


def _area(times: Times, scale: Scale, tops: Values, below: Values) -> str:
    """A closed path; a single value is as wide as the plot."""
    there = [(times.x(index), _y(scale, value or 0.0)) for index, value in enumerate(tops)]
    back = [(times.x(index), _y(scale, value or 0.0)) for index, value in enumerate(below)]
    if times.count == 1:
        there, back = [there[0], (UNIT, there[0][1])], [back[0], (UNIT, back[0][1])]
    points = [f"{x} {y}" for x, y in [*there, *reversed(back)]]
    return f"M{'L'.join(points)}Z"


def sparkline(times: Times, values: Values, *, low: Values = (), high: Values = (), from_zero: bool = True) -> Markup:
    """A small curve without axes; with `low` and `high`, there is an area between them."""
    numbers = [value for value in (*values, *low, *high) if value is not None]
    least, most = min(numbers, default=0.0), max(numbers, default=1.0)
    if from_zero:
        least = min(0.0, least)
    if most <= least:
        margin = max(1.0, abs(least) / 1000)  # a margin of 1 is too small for times in nanoseconds
        least, most = least - margin, most + (0 if from_zero else margin)
    scale = Scale.__new__(Scale)
    scale.log, scale.low, scale.high = False, least, most
    parts = []
    if low and high:
        known = [index for index, value in enumerate(low) if value is not None and high[index] is not None]
        upper = [f"{times.x(index)} {_y(scale, high[index] or 0.0)}" for index in known]
        lower = [f"{times.x(index)} {_y(scale, low[index] or 0.0)}" for index in reversed(known)]
        if len(known) > 1:
            parts.append(tag("path", d=f"M{'L'.join([*upper, *lower])}Z", class_="band"))
    parts.append(tag("path", d=_line(times, scale, values), class_="line c0"))
    return tag(
        "svg", *parts, class_="spark", viewBox=f"0 0 {UNIT} {UNIT}", preserveAspectRatio="none", aria_hidden="true"
    )


@dataclass(frozen=True)
class Dot:
    """A point of a plot, and its label."""

    at: int
    value: float
    words: str


def dots(title: str, about: str, begin: int, end: int, points: Sequence[Dot], table: Markup, *, log: bool) -> Markup:
    """A figure with a dot for each point."""
    numbers = [point.value for point in points]
    scale = Scale(min(numbers, default=1.0) if log else 0.0, max(numbers, default=1.0), log=log)
    inner = HEIGHT - frame.TOP - frame.BOTTOM
    marks = [
        tag(
            "circle",
            tag("title", shown(point.words)),
            cx=f"{100 * (point.at - begin) / max(1, end - begin):.2f}%",
            cy=f"{frame.TOP + inner * (1 - scale.place(point.value)):.1f}",
            r="4",
            class_="dot c5",
        )
        for point in points
    ]
    description = f"{len(points)} points from {moment(begin)} to {moment(end)}. The table below has them."
    return frame.figure(
        title,
        about,
        frame.drawing(
            title,
            description,
            HEIGHT,
            frame.grid(scale, HEIGHT, plain),
            frame.time_axis(begin, end, HEIGHT),
            tag("g", *marks),
            kind="dots",
        ),
        table,
        kind="wide",
    )
