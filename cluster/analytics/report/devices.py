"""The report's part about devices: silent ones, and values that are unlike the others of their topic."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..times import SECOND
from . import figures, plots, tracks, words
from .figures import Cell, Legend
from .markup import Markup
from .results import Results

ROWS = 25  # of the timeline
LISTED = 200  # rows of its table
DOTS = 400  # outliers, drawn and listed
EVENTS = 200_000  # the latest ones, which are read


class Stretch(NamedTuple):
    """A time of silence."""

    begin: int
    end: int
    open: bool  # it has not ended


@dataclass
class Silence:
    """The data about silence."""

    now: int | None = None  # devices that are silent at the end; None: no data
    figures: list[Markup] = field(default_factory=list)


def read_silence(results: Results, begin: int, end: int) -> Silence:
    """Read the events, also from before the range: a device may be silent for longer."""
    if not results.has("silence"):
        return Silence()
    columns = ["at", "client_id", "event", "since", "usual_interval", "silent_for"]
    events: list[dict[str, Any]] = []
    for table in results.read("silence", columns, since_ever=True):
        events += table.to_pylist()
        if len(events) > 2 * EVENTS:
            events = heapq.nlargest(EVENTS, events, key=lambda event: event["at"])
    stretches = _stretches(events, begin, end)
    if not stretches:
        return Silence(0)
    ordered = sorted(stretches.items(), key=lambda item: (not item[1][-1][0].open, -_length(item[1]), item[0]))
    rows = [
        tracks.Row(client, _words([one for one, _ in found]), [_mark(client, one, begin, end) for one, _ in found])
        for client, found in ordered[:ROWS]
    ]
    now = sum(found[-1][0].open for _, found in ordered)
    lines = [
        [
            client,
            "silent" if one.open else "back",
            Cell(words.moment(one.begin), one.begin),
            Cell("\u2013" if one.open else words.moment(one.end), None if one.open else one.end),
            Cell(words.duration((one.end - one.begin) / SECOND), one.end - one.begin),
            Cell(words.duration(usual), usual),
        ]
        for client, found in ordered
        for one, usual in reversed(found)
    ]
    head = ["client", "state", "last message", "back at", "silent for", "usual interval"]
    more = f" The timeline has {ROWS}, those that still are silent first." if len(ordered) > ROWS else ""
    count = words.whole(len(ordered))
    about = f"{count} devices were silent for longer than is usual for them, {words.whole(now)} still are.{more}"
    table = figures.table(head, lines[:LISTED], sortable=True)
    legend = [Legend("still silent", "open"), Legend("silent, came back", "stretch")]
    below = tracks.times(begin, end)
    return Silence(now, [tracks.figure("Silent devices", about, rows, table, legend=legend, below=below)])


def _mark(client: str, stretch: Stretch, begin: int, end: int) -> tracks.Mark:
    first, last = (min(1.0, max(0.0, (at - begin) / max(1, end - begin))) for at in (stretch.begin, stretch.end))
    until = "now" if stretch.open else words.moment(stretch.end)
    about = f"{words.shown(client, words.LABEL_MAX)}: silent from {words.moment(stretch.begin)} to {until}"
    return tracks.Mark(first, last, "open" if stretch.open else "stretch", about)


def _stretches(events: list[dict[str, Any]], begin: int, end: int) -> dict[str, list[tuple[Stretch, float | None]]]:
    """By client: its times of silence, and its usual interval."""
    by_client: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for event in sorted(events, key=lambda event: event["at"]):
        by_client[event["client_id"]][event["since"]] = event  # "back" replaces "silent"
    found = {}
    for client, last in by_client.items():
        stretches = []
        for index, event in enumerate(last.values()):
            is_open = event["event"] == "silent" and index == len(last) - 1
            until = end if is_open else event["at"]
            if until > begin and event["since"] < end:
                stretches.append((Stretch(event["since"], until, is_open), event["usual_interval"]))
        if stretches:
            found[client] = stretches
    return found


def _length(found: list[tuple[Stretch, float | None]]) -> int:
    return sum(one.end - one.begin for one, _ in found)


def _words(stretches: list[Stretch]) -> str:
    last = stretches[-1]
    if last.open:
        return f"for {words.duration((last.end - last.begin) / SECOND)}"
    total = words.duration(sum(one.end - one.begin for one in stretches) / SECOND)
    return total if len(stretches) == 1 else f"{len(stretches)} times, {total}"


@dataclass
class Outliers:
    """The data about values."""

    count: int | None = None
    figures: list[Markup] = field(default_factory=list)


def read_outliers(results: Results, begin: int, end: int) -> Outliers:
    """Read the outliers; those that are farthest out are shown."""
    if not results.has("outliers"):
        return Outliers()
    count = 0
    best: list[dict[str, Any]] = []
    columns = ["accepted_at", "topic", "field", "client_id", "value", "median", "score"]
    for table in results.read("outliers", columns):
        count += table.num_rows
        best = heapq.nlargest(DOTS, [*best, *table.to_pylist()], key=lambda row: abs(row["score"] or 0.0))
    if not count:
        return Outliers(0)
    lines = [
        [
            _what(row),
            row["client_id"],
            Cell(words.moment(row["accepted_at"]), row["accepted_at"]),
            Cell(words.plain(row["value"]), row["value"]),
            Cell(words.plain(row["median"]), row["median"]),
            Cell(words.plain(round(row["score"], 1)), row["score"]),
        ]
        for row in best
    ]
    few = f" The {DOTS} that are farthest out are shown." if count > len(best) else ""
    about = (
        f"{words.whole(count)} values were far from the usual values of their topic. Height: how far, in units of the "
        f"usual spread.{few}"
    )
    head = ["topic", "client", "time", "value", "median", "score"]
    table = figures.table(head, lines, sortable=True)
    return Outliers(count, [plots.dots("Values out of the ordinary", about, begin, end, table)])


def _what(row: dict[str, Any]) -> str:
    return f"{row['topic']} {row['field']}".rstrip()
