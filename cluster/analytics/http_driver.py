"""Reads the log from a node over HTTP, batch by batch: without Redis, and without a way to it.

The log is not held back for this reader: the nodes delete what is beyond their bounds. A gap is an error then.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...broker.client.log_client import LogClient, Part
from .columns import Columns
from .log.offsets import Offsets, format_offsets, parse_offsets
from .stream_driver import Batch


class HttpDriver:
    """A reader's view of the logs; used like `StreamDriver`.

    Args:
        client: of the node.
        columns: Arrow types of the payload's columns; empty: the payload is a column.
    """

    def __init__(self, client: LogClient, columns: Mapping[str, Any]) -> None:
        self._client = client
        self._columns = Columns(columns) if columns else None
        self._stops = self._is_done = False

    def initial(self) -> Offsets:
        """The start of a new reader: the oldest message of each log, whatever the logs are."""
        return {}

    def stop_at_present(self) -> None:
        """Read only up to the ends that the logs have at the next request that reaches them."""
        self._stops = True

    def batch(self, start: Offsets, budget: int) -> Batch:
        """The next batch. Raises LogUnreachable, LogRefused, MessagesMissing."""
        if self._is_done:
            return Batch((), start, 0)
        parts = list(self._client.request(format_offsets(start) or None, most=budget))
        self._is_done = self._stops and parts[-1].is_end
        end = parse_offsets(parts[-1].position)
        size = sum(max(0, each.position.total - _total(start, node)) for node, each in end.items())
        return Batch(self._rows(parts), end, size)

    def commit(self, end: Offsets) -> None:
        """A batch is done; the node does not keep that."""

    def close(self) -> None:
        """Nothing is open."""

    def _rows(self, parts: Iterable[Part]) -> Iterator[Any]:
        for part in parts:
            for batch in part.rows.to_batches():
                if self._columns is None:
                    yield batch
                else:
                    yield from self._columns.shape(batch)


def _total(offsets: Offsets, node: str) -> int:
    return offsets[node].position.total if node in offsets else 0
