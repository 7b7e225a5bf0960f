"""The page: tiles, parts with their plots, style and script, all in one file that loads nothing else.

Its Content-Security-Policy allows only this style and these scripts, and no connection. So even a name that
bypassed the escaping could not run code.
"""

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from ..times import SECOND
from . import devices, lag, plots, rankings, sensors, traffic, words
from .bins import Bins
from .markup import Markup, join, tag
from .results import Results

POINTS = 240  # of a curve over time, about
SMALL_POINTS = 60  # of a small curve
UPLOT = files("flockmq.broker").joinpath("uplot")  # the broker's page uses it too
OWN = files(__package__)
SCRIPTS = ("readout.js", "plots.js", "sort.js")


@dataclass(frozen=True)
class Tile:
    """A figure at the top."""

    label: str
    value: str
    more: str = ""
    bad: bool = False
    drawing: Markup | None = None


@dataclass(frozen=True)
class Part:
    """A part of the page."""

    name: str
    title: str
    figures: Sequence[Markup]
    missing: str = ""  # the text without figures


def page(results: Results, title: str, made_at: int | None = None) -> str:
    """The whole page. Raises FlockError."""
    now = time.time_ns() // 1000 if made_at is None else made_at
    bounds = results.bounds()
    if bounds is None:
        nothing = tag("p", "There are no results in this range of time.", class_="none")
        return _document(
            title, [_header(title, "Nothing in this range", []), tag("main", tag("div", nothing, class_="card"))]
        )
    begin, windows_end, end, window = bounds
    bins, small = Bins(begin, windows_end, POINTS, window), Bins(begin, windows_end, SMALL_POINTS, window)
    flow, ranks = traffic.read(results, bins), rankings.read(results)
    silence, odd = devices.read_silence(results, begin, end), devices.read_outliers(results, begin, end)
    values, late = sensors.read(results, small), lag.read(results, bins)
    parts = [
        Part("traffic", "Traffic", flow.figures, _missing(results, "rates")),
        Part("largest", "Topics and clients", ranks.figures, _missing(results, "top_topics")),
        Part("payloads", "Payloads", flow.distribution, _missing(results, "rates")),
        Part("devices", "Devices", silence.figures, _missing(results, "silence")),
        Part("values", "Values", [*values, *odd.figures], _missing(results, "numbers")),
        Part("lag", "Lag", late.figures, _missing(results, "lag")),
    ]
    range_ = f"{words.moment(begin, False)} to {words.moment(end, False)} ({words.duration((end - begin) / SECOND)})"
    about = f"{range_}. Times are {words.zone(end)}. Made {words.moment(now, False)}."
    tiles = _tiles(bins, flow, ranks, silence, odd, late)
    main = tag("main", tag("dl", *map(_tile, tiles), class_="tiles"), *map(_part, parts))
    return _document(title, [_header(title, about, parts), main, _footer()])


NONE = {"silence": "No device fell silent", "numbers": "No payload is a number"}


def _missing(results: Results, name: str) -> str:
    """The text in place of plots: without rows the job writes no file."""
    nothing = NONE.get(name, "There is nothing")
    if results.has(name):
        return f"{nothing} in this range of time."
    return f"{nothing}, or the job does not compute it: `flockmq analytics run --results` chooses."


def _tiles(
    bins: Bins,
    flow: traffic.Traffic,
    ranks: rankings.Rankings,
    silence: devices.Silence,
    odd: devices.Outliers,
    late: lag.Lag,
) -> list[Tile]:
    seconds = max(1, bins.end - bins.begin) / SECOND
    tiles = []
    if flow.messages:
        spark = plots.small(flow.rates, from_zero=True)
        tiles.append(Tile("Messages", words.compact(flow.messages), drawing=spark))
        peak = f"{words.compact(flow.peak)}/s in the busiest {words.duration(bins.width / SECOND)}"
        tiles.append(Tile("Mean rate", f"{words.compact(flow.messages / seconds)}/s", peak))
        mean = f"{words.size(flow.bytes / flow.messages)} each"
        tiles.append(Tile("Payloads", words.size(flow.bytes), mean))
    if ranks.clients is not None:
        tiles.append(Tile("Clients", words.whole(ranks.clients), "that published"))
    if silence.now is not None:
        tiles.append(Tile("Silent now", words.whole(silence.now), "devices, at the end", bad=silence.now > 0))
    if odd.count is not None:
        tiles.append(Tile("Outliers", words.whole(odd.count), "values"))
    if late.typical is not None:
        tiles.append(Tile("Lag", words.duration(late.typical), "median, to the results"))
    return tiles


def _tile(tile: Tile) -> Markup:
    kinds = ["tile", "bad" if tile.bad else "", "drawn" if tile.drawing else ""]
    return tag(
        "div",
        tag("dt", tile.label),
        tag("dd", tile.value, class_="big"),
        tag("dd", tile.more, class_="small") if tile.more else None,
        tag("dd", tile.drawing) if tile.drawing else None,
        class_=" ".join(filter(None, kinds)),
    )


def _part(part: Part) -> Markup:
    inside = part.figures or [tag("div", tag("p", part.missing, class_="none"), class_="card")]
    head = tag("h2", part.title, id=part.name)
    return tag("section", head, tag("div", *inside, class_="grid"), aria_labelledby=part.name)


def _header(title: str, about: str, parts: Sequence[Part]) -> Markup:
    links = [tag("a", part.title, href=f"#{part.name}") for part in parts]
    return tag(
        "header",
        tag("h1", tag("bdi", words.shown(title))),
        tag("p", about),
        tag("nav", *links, aria_label="Parts of this page") if links else None,
    )


def _footer() -> Markup:
    return tag(
        "footer",
        "Made by ",
        tag("code", "flockmq analytics report"),
        ". Point at a plot for its values; “Table” has them all.",
        tag("noscript", Markup(" Plots over time need JavaScript; their tables do not.")),
    )


def _document(title: str, body: Sequence[Markup]) -> str:
    style = _text(UPLOT, "uPlot.min.css") + _text(OWN, "page.css")
    licence = f"/*\n{_text(UPLOT, 'LICENSE')}*/\n"
    scripts = [licence + _text(UPLOT, "uPlot.iife.min.js"), *(_text(OWN, name) for name in SCRIPTS)]
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, scripts))}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        tag("title", words.shown(title)),
        tag("style", Markup(style)),
    ]
    elements = [tag("script", Markup(script)) for script in scripts]
    html = tag("html", tag("head", *head), tag("body", *body, *elements), lang="en")
    return f"<!DOCTYPE html>\n{join([html])}\n"


def _text(folder: Traversable, name: str) -> str:
    return folder.joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
