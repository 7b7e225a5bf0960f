"""Figures that compare names: a row for each, with marks on a track. They need no script."""

from collections.abc import Sequence
from typing import NamedTuple

from . import figures
from .figures import Legend
from .markup import Markup, tag
from .words import LABEL_MAX, moment, shown

LEAST = 0.004  # of the width: less is not seen
TIMES = 5  # below a timeline


class Mark(NamedTuple):
    """A bar on a track from a part of its width to another, or a dot if both are the same."""

    begin: float
    end: float
    kind: str  # its class
    words: str  # shown at the pointer


class Row(NamedTuple):
    """A name, words about it, and marks."""

    name: str
    words: str
    marks: Sequence[Mark]


def figure(
    title: str, about: str, lines: Sequence[Row], table: Markup, *, legend: Sequence[Legend] = (), below: object = None
) -> Markup:
    """A figure with these rows, and something below them."""
    drawn = tag("ul", *map(_row, lines), class_="rows")
    return figures.figure(title, about, tag("div", drawn, below), table, legend=legend)


def times(begin: int, end: int) -> Markup:
    """Times at equal distances, for the space below a timeline."""
    step = (end - begin) // (TIMES - 1)
    labels = [tag("span", moment(begin + index * step, False)) for index in range(TIMES)]
    return tag("p", *labels, class_="times")


def _row(row: Row) -> Markup:
    label, full = shown(row.name, LABEL_MAX), shown(row.name)
    name = tag("bdi", label, title=full if full != label else None)
    track = tag("svg", *map(_mark, row.marks), class_="track", aria_hidden="true")
    return tag("li", name, tag("span", row.words), track)


def _mark(mark: Mark) -> Markup:
    title = tag("title", mark.words) if mark.words else None
    if mark.begin == mark.end:
        return tag("circle", title, cx=_percent(min(0.99, max(0.01, mark.begin))), cy="50%", r="5", class_=mark.kind)
    width = max(LEAST, mark.end - mark.begin)
    begin = min(mark.begin, 1 - LEAST)
    return tag("rect", title, x=_percent(begin), width=_percent(width), height="100%", class_=mark.kind)


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%"
