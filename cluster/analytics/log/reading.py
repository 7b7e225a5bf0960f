"""Reads a range of a log as Arrow record batches. Runs in the executors."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import BlockError
from .block import Selection, record_batch
from .log import Entry, Gap, Logs
from .planning import Range
from .properties import PropertyColumn

ROWS = 16_384  # of a batch, about: smaller batches cost Spark more, larger ones exceed the CPU caches
BYTES = 2 << 20


class RangeReader:
    """Reads ranges.

    Args:
        logs: of the cluster.
        selection: of rows.
        lost: called for each gap, with the reason if it is damage; may raise.
        decoded: columns made of the properties.
    """

    def __init__(
        self,
        logs: Logs,
        selection: Selection,
        lost: Callable[[Gap, BlockError | None], None],
        decoded: Sequence[PropertyColumn] = (),
    ) -> None:
        self._logs = logs
        self._selection = selection
        self._decoded = decoded
        self._lost = lost

    def batches(self, wanted: Range) -> Iterator[Any]:
        """The rows of a range, in order, some thousand at a time."""

        def missing(gap: Gap) -> None:
            if wanted.trimmed_is_lost or gap.start.total != wanted.start.total:
                self._lost(gap, None)

        group: list[Entry] = []
        size = rows = 0
        for entries in self._logs.log(wanted.node).read(wanted.start, wanted.end, missing):
            for entry in entries:
                group.append(entry)
                size += len(entry.block)
                rows += int.from_bytes(entry.block[4:8], "little")
                if rows >= ROWS or size >= BYTES:
                    yield from self._batch(wanted, group)
                    group, size, rows = [], 0, 0
        if group:
            yield from self._batch(wanted, group)

    def _batch(self, wanted: Range, group: Sequence[Entry]) -> Iterator[Any]:
        try:
            for entry in group:
                entry.header()  # raises if it belongs elsewhere
            batch = record_batch([entry.block for entry in group], wanted.name, self._selection, self._decoded)
        except BlockError as error:
            if len(group) > 1:
                for entry in group:
                    yield from self._batch(wanted, [entry])
                return
            entry = group[0]
            self._lost(Gap(wanted.node, entry.before, entry.position), error)
            return
        if batch is not None:
            yield batch
