"""Reads the log from a node over HTTP, batch by batch: without Redis, and without a way to it.

The log is not held back for this reader: the nodes delete what is beyond their bounds. A gap is an error then.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...broker import logs
from ...broker.client.log_client import LogClient, LogUnreachable, MessagesMissing, Part
from .columns import Columns
from .log.offsets import Offset, Offsets, format_offsets, parse_offsets
from .stream_driver import Batch

log = logs.get("flockmq.follow")


class HttpDriver:
    """A reader's view of the logs; used like `StreamDriver`.

    Args:
        client: of the node.
        columns: of the payload; None: it is one column.
        skips_missing: go on behind messages that are gone from the log, with a warning; else they are an error.
    """

    def __init__(self, client: LogClient, columns: Columns | None, *, skips_missing: bool = False) -> None:
        self._skips_missing = skips_missing
        self._client = client
        self._columns = columns
        self._stops = False
        self._last: Offsets | None = None  # where reading stops; None: nowhere, or the ends are yet to be read

    def initial(self) -> Offsets:
        """The start of a new reader: the oldest message of each log."""
        return {}

    def stop_at_present(self) -> None:
        """Read only up to the ends that the logs have at the next batch."""
        self._stops = True

    def batch(self, start: Offsets, budget: int, end: Offsets | None = None) -> Batch:
        """The next batch: of about so many bytes of the logs at most, or up to `end`.

        Raises:
            LogUnreachable, LogRefused, MessagesMissing: the node does not send it.
        """
        if self._stops and self._last is None:
            self._last = parse_offsets(self._client.ends())
        if end is not None:
            parts = self._parts(start, to=format_offsets(end))
            if not parts[-1].is_end:
                raise LogUnreachable("the node has sent a part of the messages only")
            return Batch(self._rows(parts), end, _size(start, end))
        to = None if self._last is None else _later(start, self._last)
        if to == start:
            return Batch((), start, 0)
        parts = self._parts(start, most=budget, to=None if to is None else format_offsets(to))
        reached = parse_offsets(parts[-1].position)
        return Batch(self._rows(parts), reached, _size(start, reached))

    def _parts(self, start: Offsets, **bounds: Any) -> list[Part]:
        position: Mapping[str, str] | None = format_offsets(start) or None
        while True:
            try:
                return list(self._client.request(position, **bounds))
            except MessagesMissing as error:
                if not self._skips_missing:
                    error.hint += "; or go on without them: --skip-missing"
                    raise
                log.warning("messages are gone from the log; it goes on behind them", reason=error.message)
                position = error.position

    def commit(self, end: Offsets) -> None:
        """A batch is done; the node does not keep that."""

    def waiting_bytes(self, read: Offsets) -> int:
        """Unknown without another request."""
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def _rows(self, parts: Iterable[Part]) -> Iterator[Any]:
        for part in parts:
            for batch in part.rows.to_batches():
                if self._columns is None:
                    yield batch
                else:
                    yield from self._columns.shape(batch)


def _total(offset: Offset) -> int:
    return offset.position.total


def _later(one: Offsets, other: Offsets) -> Offsets:
    """The later place in each log."""
    return {**one, **{node: max(one.get(node, place), place, key=_total) for node, place in other.items()}}


def _size(start: Offsets, end: Offsets) -> int:
    """The bytes of the logs between two places."""
    totals = {node: offset.position.total for node, offset in start.items()}
    return sum(max(0, offset.position.total - totals.get(node, 0)) for node, offset in end.items())
