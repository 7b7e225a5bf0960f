"""Rows that are refused: found by halves, so that all others go their way."""

from collections.abc import Callable

import pyarrow as pa


class Refused(Exception):
    """Rows are refused for what they are: they would be refused again."""


def by_halves(rows: pa.Table, send: Callable[[pa.Table], None], refuse: Callable[[pa.Table, str], None]) -> None:
    """Send rows, in their order. If some are refused their halves are sent, down to single rows.

    Args:
        rows: to send; there may be none.
        send: called with rows, at least one; raises Refused.
        refuse: called with a single row and the reason.
    """

    def send_range(start: int, end: int) -> None:
        send(rows.slice(start, end - start))

    halve(0, rows.num_rows, send_range, lambda place, reason: refuse(rows.slice(place, 1), reason))


def halve(start: int, end: int, send: Callable[[int, int], None], refuse: Callable[[int, str], None]) -> None:
    """The same for rows from a place on, up to another: `send` gets places, `refuse` the place of a row."""
    waiting = [(start, end)] if end > start else []
    while waiting:
        start, end = waiting.pop()
        try:
            send(start, end)
        except Refused as reason:
            if end - start > 1:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
            else:
                refuse(start, str(reason))
