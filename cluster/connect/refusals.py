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
    waiting = [rows] if rows.num_rows else []
    while waiting:
        some = waiting.pop()
        try:
            send(some)
        except Refused as reason:
            if some.num_rows > 1:
                middle = some.num_rows // 2
                waiting += [some.slice(middle), some.slice(0, middle)]
            else:
                refuse(some, str(reason))
