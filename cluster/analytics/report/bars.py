"""Plots that compare names: bars, shares of a whole, ranges, and stretches of time."""

from collections.abc import Sequence
from dataclasses import dataclass

from . import frame
from .frame import Legend
from .markup import Markup, tag
from .scales import Format, Scale
from .words import LABEL_MAX, moment, share, shown

ROW = 34  # pixels: a line of text, and the drawing below it
THICK = 8


@dataclass(frozen=True)
class Bar:
    """A name and its value."""

    name: str
    value: float
    words: str


def _row(number: int, name: str, words: str, *marks: Markup) -> Markup:
    """A name on the left, words on the right, and marks below."""
    y = number * ROW
    label = shown(name, LABEL_MAX)
    full = tag("title", shown(name)) if label != shown(name) else None
    return tag(
        "g",
        tag("text", label, full, x="0", y=y + 15, class_="label"),
        tag("text", words, x="100%", y=y + 15, class_="amount"),
        *marks,
        class_="row",
    )


def _track(number: int) -> Markup:
    return tag("rect", x="0", y=number * ROW + 21, width="100%", height=THICK, rx=THICK / 2, class_="track")


def bars(title: str, about: str, rows: Sequence[Bar], table: Markup, *, colour: str = "c0") -> Markup:
    """A figure with a bar for each row, the longest as wide as the plot."""
    most = max((row.value for row in rows), default=0.0) or 1.0
    lines = [
        _row(
            number,
            row.name,
            row.words,
            _track(number),
            tag(
                "rect",
                tag("title", f"{shown(row.name)}: {row.words}"),
                x="0",
                y=number * ROW + 21,
                width=f"{max(0.4, 100 * row.value / most):.2f}%",
                height=THICK,
                rx=THICK / 2,
                class_=f"bar {colour}",
            ),
        )
        for number, row in enumerate(rows)
    ]
    longest = f"; the longest is {shown(rows[0].name, LABEL_MAX)} with {rows[0].words}" if rows else ""
    description = f"{len(rows)} bars{longest}. The table below has their values."
    return frame.figure(title, about, frame.drawing(title, description, ROW * len(rows), *lines, kind="bars"), table)


@dataclass(frozen=True)
class Shares:
    """A name and the parts of its whole."""

    name: str
    words: str
    parts: Sequence[float]


def shares(title: str, about: str, names: Sequence[str], rows: Sequence[Shares], table: Markup) -> Markup:
    """A figure with a divided bar for each row."""
    lines = []
    for number, row in enumerate(rows):
        whole, at, marks = sum(row.parts) or 1.0, 0.0, []
        for index, part in enumerate(row.parts):
            if part > 0:
                words = f"{shown(row.name, LABEL_MAX)}, {names[index]}: {share(part / whole)}"
                marks.append(
                    tag(
                        "rect",
                        tag("title", words),
                        x=f"{100 * at / whole:.2f}%",
                        y=number * ROW + 21,
                        width=f"{100 * part / whole:.2f}%",
                        height=THICK + 2,
                        class_=f"part c{index}",
                    )
                )
                at += part
        lines.append(_row(number, row.name, row.words, *marks))
    description = f"{len(rows)} bars, divided into {', '.join(names)}. The table below has the shares."
    legend = [Legend(name, f"c{index}") for index, name in enumerate(names)]
    body = frame.drawing(title, description, ROW * len(rows), *lines, kind="shares")
    return frame.figure(title, about, body, table, legend=legend)


@dataclass(frozen=True)
class Range:
    """A name, marks in rising order (the first and the last but one are the ends of a bar), and a text."""

    name: str
    words: str
    marks: Sequence[float]


def ranges(title: str, about: str, names: Sequence[str], rows: Sequence[Range], words: Format, table: Markup) -> Markup:
    """A figure with a bar for each row from its first mark to its last but one, and a tick at each."""
    numbers = [max(1.0, mark) for row in rows for mark in row.marks]
    scale = Scale(min(numbers, default=1.0), max(numbers, default=2.0), log=True, base=2)
    lines = []
    for number, row in enumerate(rows):
        places = [100 * scale.place(max(1.0, mark)) for mark in row.marks]
        y = number * ROW + 21
        marks = [
            tag(
                "rect",
                x=f"{places[0]:.2f}%",
                y=y,
                width=f"{max(0.4, places[-2] - places[0]):.2f}%",
                height=THICK,
                rx=THICK / 2,
                class_="bar c0",
            )
        ]
        marks += [
            tag(
                "circle",
                tag("title", f"{shown(row.name, LABEL_MAX)}, {names[index]}: {words(mark)}"),
                cx=f"{min(99.0, max(1.0, place)):.2f}%",
                cy=y + THICK / 2,
                r="5",
                class_=f"tick k{index}",
            )
            for index, (place, mark) in enumerate(zip(places, row.marks, strict=True))
        ]
        lines.append(_row(number, row.name, row.words, _track(number), *marks))
    description = f"{len(rows)} ranges of {', '.join(names)}. The table below has them."
    legend = [Legend(name, f"k{index}") for index, name in enumerate(names)]
    body = frame.drawing(title, description, ROW * len(rows), *lines, kind="ranges")
    return frame.figure(title, about, body, table, legend=legend)


@dataclass(frozen=True)
class Stretch:
    """A name and a stretch of time; `open` if it has not ended."""

    begin: int
    end: int
    open: bool


@dataclass(frozen=True)
class Stretches:
    """A row of a timeline."""

    name: str
    words: str
    stretches: Sequence[Stretch]


def timeline(title: str, about: str, begin: int, end: int, rows: Sequence[Stretches], table: Markup) -> Markup:
    """A figure with a line for each row, and a bar for each stretch of time."""
    lines = []
    for number, row in enumerate(rows):
        marks = [_track(number)]
        for stretch in row.stretches:
            places = [(at - begin) / max(1, end - begin) for at in (stretch.begin, stretch.end)]
            first, last = (100 * min(1.0, max(0.0, place)) for place in places)
            until = "now" if stretch.open else moment(stretch.end)
            marks.append(
                tag(
                    "rect",
                    tag("title", f"{shown(row.name, LABEL_MAX)}: silent from {moment(stretch.begin)} to {until}"),
                    x=f"{min(first, 99.4):.2f}%",
                    y=number * ROW + 21,
                    width=f"{max(0.6, last - first):.2f}%",
                    height=THICK,
                    rx=2,
                    class_="stretch open" if stretch.open else "stretch",
                )
            )
        lines.append(_row(number, row.name, row.words, *marks))
    height = ROW * len(rows) + frame.BOTTOM + 6
    description = f"{len(rows)} rows from {moment(begin)} to {moment(end)}. The table below has them."
    legend = [Legend("still silent", "open"), Legend("silent, came back", "stretch")]
    axis = frame.time_axis(begin, end, height)
    body = frame.drawing(title, description, height, *lines, axis, kind="timeline")
    return frame.figure(title, about, body, table, legend=legend)
