"""Common to all plots: a figure with its caption, legend, SVG and the same data as a table.

A plot has no fixed width: places along x are percents, heights are pixels, and curves are in an inner SVG that
stretches. So text keeps its size, on a phone too. Screen readers read the table, and the page's script takes the text
of its tooltips from it.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from .markup import Markup, join, tag
from .scales import Format, Scale, time_ticks
from .words import LABEL_MAX, shown

UNIT = 1000  # of the inner SVG's coordinates, both ways
TOP, BOTTOM = 18, 22  # pixels above and below the place of the curves
OTHER = "other"
COLOURS = 6  # of series with a colour of their own


class Cell(NamedTuple):
    """A cell of a table that is sorted by a value other than its text."""

    text: str
    value: float | int | None


class Legend(NamedTuple):
    """The meaning of a colour."""

    name: str
    colour: str  # a class: c0 to c5, cx for the rest


_numbers = count(1)


def colour(index: int, name: str = "") -> str:
    """The class of a series' colour."""
    return "cx" if name == OTHER or index >= COLOURS else f"c{index}"


def figure(
    title: str,
    about: str,
    drawing: Markup,
    table: Markup,
    *,
    legend: Sequence[Legend] = (),
    kind: str = "",
) -> Markup:
    """A plot with all that belongs to it."""
    caption = tag("figcaption", tag("h3", title), tag("p", about, class_="about") if about else None)
    keys = tag(
        "ul",
        *(tag("li", tag("i", class_=key.colour), tag("bdi", shown(key.name, LABEL_MAX))) for key in legend),
        class_="legend",
    )
    details = tag("details", tag("summary", "Table"), tag("div", table, class_="scroll", tabindex="0"))
    return tag("figure", caption, keys if legend else None, drawing, details, class_=f"card {kind}".strip())


def drawing(title: str, description: str, height: int, *children: Markup, kind: str = "") -> Markup:
    """The SVG of a plot. The empty title keeps browsers from showing the first one at the pointer."""
    number = next(_numbers)
    return tag(
        "svg",
        tag("title", title, id=f"t{number}"),
        tag("desc", description, id=f"d{number}"),
        tag("rect", tag("title"), class_="hit", width="100%", height=height),
        *children,
        role="img",
        aria_labelledby=f"t{number} d{number}",
        class_=f"plot {kind}".strip(),
        width="100%",
        height=height,
    )


def curves(height: int, *children: Markup) -> Markup:
    """The inner SVG that stretches with the page."""
    return tag(
        "svg",
        *children,
        class_="curves",
        y=TOP,
        width="100%",
        height=height - TOP - BOTTOM,
        viewBox=f"0 0 {UNIT} {UNIT}",
        preserveAspectRatio="none",
    )


def grid(scale: Scale, height: int, words: Format) -> Markup:
    """Horizontal lines, with their values in the left margin."""
    inner = height - TOP - BOTTOM
    parts = []
    for value in scale.ticks:
        y = f"{TOP + inner * (1 - scale.place(value)):.1f}"
        parts.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="zero" if value == scale.low else None))
        parts.append(tag("text", words(value), x="-8", y=f"{float(y) + 4:.1f}"))
    return tag("g", *parts, class_="grid")


def time_axis(begin: int, end: int, height: int) -> Markup:
    """The times below the plot; on a narrow page every second one may be hidden."""
    marks = [(at, words) for at, words in time_ticks(begin, end) if end > begin]
    parts = []
    for number, (at, words) in enumerate(marks):
        place = (at - begin) / (end - begin)
        anchor = "start" if place < 0.03 else "end" if place > 0.96 else None
        narrow = "second" if number % 2 else None
        x = f"{100 * place:.2f}%"
        parts.append(tag("text", words, x=x, y=height - 6, text_anchor=anchor, class_=narrow))
        parts.append(tag("line", x1=x, x2=x, y1=height - BOTTOM, y2=height - BOTTOM + 4))
    return tag("g", *parts, class_="times")


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, sortable: bool = False) -> Markup:
    """A table; a row's first cell is its head. Numbers are Cells."""
    numeric = [bool(rows) and all(isinstance(row[column], Cell) for row in rows) for column in range(len(head))]
    heads = tag(
        "tr",
        *(
            tag("th", shown(name, LABEL_MAX), scope="col", class_="n" if is_number else None)
            for name, is_number in zip(head, numeric, strict=True)
        ),
    )
    lines = [tag("tr", _cell(row[0], "th"), *(_cell(cell, "td") for cell in row[1:])) for row in rows]
    return tag("table", tag("thead", heads), tag("tbody", join(lines)), class_="sortable" if sortable else None)


def _cell(cell: object, name: str) -> Markup:
    scope = "row" if name == "th" else None
    if isinstance(cell, Cell):
        value = f"{cell.value:.12g}" if isinstance(cell.value, float) else cell.value
        return tag(name, cell.text, scope=scope, class_="n", data_v=value)
    return tag(name, tag("bdi", shown(cell)), scope=scope)
