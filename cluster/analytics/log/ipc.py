"""Blocks of the log of messages as an Arrow IPC stream, for the endpoint of a node. `broker` loads this module by name.

The metadata of a record batch has the position behind it, in JSON. Batches without it are followed by more rows of the
same entries of a log.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BlockError
from ..times import parse_time
from .block import SCHEMA, Selection, Topics, longest_texts, record_batch
from .header import parse_header

__all__ = ["END", "POSITION", "Encoder", "parse_time"]

POSITION, END = "flockmq.position", "flockmq.end"
EXPANDED = 4 << 20  # bytes of a batch, about: a block has each topic name once, a batch has it in each row
SMALL = 1 << 16  # bytes of a batch, of blocks that are not looked into before
EMPTY = pa.RecordBatch.from_pylist([], schema=SCHEMA)


class Encoded(NamedTuple):
    """A part of a stream."""

    rows: int
    done: int  # entries whose rows are all in this part, or in parts before it
    data: Any  # bytes, as a buffer


class Encoder:
    """Writes a stream.

    Args:
        topics: that are selected.
        since, until: microseconds since 1970, of the time at which a message was accepted; None: no limit.
        prefix: that names of topics and clients lose; other clients and all nodes have no name then.
    """

    def __init__(self, topics: Topics, since: int | None, until: int | None, prefix: str = "") -> None:
        self._selection = Selection(topics, since, until)
        self._prefix = prefix
        self.schema = SCHEMA.serialize()
        self._skipped = len(self.schema)  # bytes that each part would begin with

    def encode(self, blocks: Sequence[bytes], node: str, position: Callable[[int], str]) -> Iterator[Encoded]:
        """The rows of entries that follow one another, in parts of some megabytes; nothing if none is selected.

        Args:
            blocks: of the entries.
            node: name of their node.
            position: returns the position behind so many of the entries.

        Raises:
            BlockError: a block is damaged. No row of it was returned.
        """
        for group, done in _groups(blocks):
            held = None  # the last batch so far
            for rows in _row_ranges(group):
                batch = record_batch(group, node, replace(self._selection, rows=rows))
                if batch is not None:
                    if held is not None:
                        yield Encoded(held.num_rows, 0, self._part(held))
                    held = _without(self._prefix, batch) if self._prefix else batch
            if held is not None:
                yield Encoded(held.num_rows, done, self._part(held, {POSITION: position(done)}))

    def mark(self, position: str) -> Any:
        """A position, without rows."""
        return self._part(EMPTY, {POSITION: position})

    def end(self, position: str, *, reached: bool) -> Any:
        """The end of the stream: the position behind all, and whether it is the end of the logs."""
        last = self._part(EMPTY, {POSITION: position, END: str(reached).lower()})
        return last.to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"

    def _part(self, batch: Any, metadata: dict[str, str] | None = None) -> Any:
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, SCHEMA).write_batch(batch, custom_metadata=metadata)
        return sink.getvalue()[self._skipped :]


def _expanded(block: bytes) -> tuple[int, int]:
    """The rows of a block, and at most how many bytes they have in a batch."""
    header = parse_header(block)
    most = len(block) * (1 + header.rows)  # no text is longer than the block
    if most > SMALL:
        most = len(block) + header.rows * longest_texts(block, header)
    return header.rows, most


def _groups(blocks: Sequence[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Blocks that make a batch each, or one block that makes several; and the blocks so far."""
    group: list[bytes] = []
    size = 0
    for number, block in enumerate(blocks):
        try:
            _, expanded = _expanded(block)
        except BlockError:  # `record_batch` reports it
            expanded = EXPANDED
        if group and size + expanded > EXPANDED:
            yield group, number
            group, size = [], 0
        group.append(block)
        size += expanded
    if group:
        yield group, len(blocks)


def _row_ranges(group: Sequence[bytes]) -> Iterator[range | None]:
    """The rows of a group that make a batch each; None: all."""
    rows, expanded = _expanded(group[0])
    if len(group) > 1 or expanded <= EXPANDED:
        yield None
        return
    step = max(1, rows * EXPANDED // expanded)
    for at in range(0, rows, step):
        yield range(at, min(at + step, rows))


def _without(prefix: str, batch: Any) -> Any:
    """The rows with the names that the clients of a tenant know."""
    clients, topics = batch.column("client_id"), batch.column("topic")
    own = pc.starts_with(clients, prefix)
    size = len(prefix)
    changed = {
        "node": pa.repeat(pa.scalar(""), len(batch)),
        "client_id": pc.if_else(own, pc.utf8_slice_codeunits(clients, size), ""),
        "topic": pc.utf8_slice_codeunits(topics, size),
    }
    columns = [changed.get(name, batch.column(name)) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
