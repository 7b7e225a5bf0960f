"""The report's part about the largest clients and topics."""

from dataclasses import dataclass
from typing import Any

from ..times import SECOND
from . import figures, tracks, words
from .figures import Cell
from .markup import Markup
from .results import Results, Sums, top

SHOWN = 12  # bars
LISTED = 100  # rows of a table


@dataclass
class Rankings:
    """The data of this part."""

    clients: int | None = None  # number of clients that published; None: no data
    figures: list[Markup] = ()  # type: ignore[assignment]


def read(results: Results) -> Rankings:
    """Read clients and topics."""
    figures = []
    count = None
    if results.has("clients"):
        by_client = Sums(
            ["client_id"],
            [("messages", "sum"), ("bytes", "sum"), ("first", "min"), ("last", "max"), ("longest_gap", "max")],
        )
        for table in results.read(
            "clients", ["client_id", "messages", "bytes", "first", "last", "longest_gap", "window_start"]
        ):
            by_client.add(table)
        found = by_client.table()
        count = 0 if found is None else found.num_rows
        if found is not None:
            figures.append(_clients(top(found, "messages", LISTED), count))
    elif results.has("top_clients"):
        figures += _from_top(results, "top_clients", "client_id", "client", "Clients that publish most", "c1")
    figures += _from_top(results, "top_topics", "topic", "topic", "Topics with most messages", "c0")
    return Rankings(count, figures)


def _clients(rows: list[dict[str, Any]], count: int) -> Markup:
    lines = []
    for row in rows:
        seconds = (row["last"] - row["first"]) / SECOND
        rate = row["messages"] / seconds if seconds > 0 else None
        lines.append(
            [
                row["client_id"],
                Cell(words.whole(row["messages"]), row["messages"]),
                Cell(words.size(row["bytes"]), row["bytes"]),
                Cell("\u2013" if rate is None else f"{words.compact(rate)}/s", rate),
                Cell(words.moment(row["last"]), row["last"]),
                Cell(words.duration(row["longest_gap"]), row["longest_gap"]),
            ]
        )
    table = figures.table(
        ["client", "messages", "payloads", "rate", "last message", "longest gap"], lines, sortable=True
    )
    about = f"Messages and payload bytes. {words.whole(count)} clients published; the table has the first {len(rows)}."
    return tracks.figure("Clients that publish most", about, _bars(rows, "client_id", "c1"), table)


def _from_top(results: Results, name: str, column: str, label: str, title: str, colour: str) -> list[Markup]:
    sums = Sums([column], [("messages", "sum"), ("bytes", "sum")])
    for table in results.read(name, [column, "messages", "bytes", "window_start"]):
        sums.add(table)
    rows = top(sums.table(), "messages", LISTED)
    if not rows:
        return []
    lines = [
        [
            row[column],
            Cell(words.whole(row["messages"]), row["messages"]),
            Cell(words.size(row["bytes"]), row["bytes"]),
            Cell(words.size(row["bytes"] / (row["messages"] or 1)), row["bytes"] / (row["messages"] or 1)),
        ]
        for row in rows
    ]
    table = figures.table([label, "messages", "payloads", "mean size"], lines, sortable=True)
    about = "Messages and payload bytes, as far as they were among the largest of a window."
    return [tracks.figure(title, about, _bars(rows, column, colour), table)]


def _bars(rows: list[dict[str, Any]], column: str, colour: str) -> list[tracks.Row]:
    """The first rows, the longest bar as long as its track."""
    most = rows[0]["messages"] or 1
    bars = []
    for row in rows[:SHOWN]:
        about = f"{words.compact(row['messages'])}, {words.size(row['bytes'])}"
        mark = tracks.Mark(0.0, row["messages"] / most, colour, f"{words.shown(row[column])}: {about}")
        bars.append(tracks.Row(row[column], about, [mark]))
    return bars
