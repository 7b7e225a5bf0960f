"""Common to all figures: a caption, a legend, a drawing, and the same data as a table.

Screen readers and readers without JavaScript have the table. The page's script draws plots from it, and takes the text
of readouts from it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .markup import Markup, join, tag
from .words import LABEL_MAX, shown

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
    """A drawing with all that belongs to it."""
    caption = tag("figcaption", tag("h3", title), tag("p", about, class_="about") if about else None)
    keys = tag(
        "ul",
        *(tag("li", tag("i", class_=key.colour), tag("bdi", shown(key.name, LABEL_MAX))) for key in legend),
        class_="legend",
    )
    details = tag("details", tag("summary", "Table"), tag("div", table, class_="scroll", tabindex="0"))
    return tag("figure", caption, keys if legend else None, drawing, details, class_=f"card {kind}".strip())


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
