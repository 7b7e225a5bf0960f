"""Blocks of the log of messages as Arrow record batches: each column is used in place.

A block is untrusted input. Ends must never fall and must stay within their bytes, names must be UTF-8, numbers must be
in range. So no block makes Spark read outside of a buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BlockError
from .header import DUP, QOS, RETAIN, Column, Header, find_columns, parse_header
from .properties import PropertyColumn, PropertyReader

TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(  # Spark's Arrow schema for `schema.MESSAGES`
    [
        ("node", pa.string()),
        ("accepted_at", TIMESTAMP),
        ("client_id", pa.string()),
        ("topic", pa.string()),
        ("qos", pa.int32()),
        ("retain", pa.bool_()),
        ("dup", pa.bool_()),
        ("payload", pa.binary()),
        ("properties", pa.binary()),
    ]
)
Arrays = list[Any]  # accepted, client id, topic, flags, payload, properties


class Topics(Protocol):
    """Selects topic names."""

    def matches(self, topic_name: str) -> bool:
        """Whether messages of this topic are selected."""


@dataclass(frozen=True)
class Selection:
    """Selects rows."""

    topics: Topics | None = None
    since: int | None = None  # accepted then or later, us
    until: int | None = None  # accepted before, us
    rows: range | None = None  # of each block, by their numbers from 0

    @property
    def everything(self) -> bool:
        """Whether it selects all rows."""
        return self.topics is None and self.since is None and self.until is None


EVERYTHING = Selection()


def record_batch(
    blocks: Sequence[bytes],
    node: str,
    selection: Selection = EVERYTHING,
    decoded: Sequence[PropertyColumn] = (),
) -> Any:
    """The rows of some blocks of a node's log; None if none is selected.

    Args:
        blocks: in their order.
        node: its name.
        selection: of rows.
        decoded: columns made of the properties, after the columns of SCHEMA.

    Raises:
        BlockError: one of the blocks is damaged, or of another layout.
    """
    parts = [arrays for block in blocks if (arrays := _arrays(block, selection)) is not None]
    if not parts:
        return None
    columns = [pa.concat_arrays(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)]
    accepted, client_ids, topics, flags, payloads, properties = columns
    qos = pc.bit_wise_and(flags, pa.scalar(QOS, pa.uint8()))
    _check_qos(qos)
    nodes = pa.repeat(pa.scalar(node), len(flags))
    more = [_bit(flags, RETAIN), _bit(flags, DUP)]
    fixed = [nodes, accepted, client_ids, topics, qos.cast(pa.int32()), *more, payloads, properties]
    if not decoded:
        return pa.RecordBatch.from_arrays(fixed, schema=SCHEMA)
    schema = pa.schema([*SCHEMA, *(pa.field(column.name, pa.string()) for column in decoded)])
    return pa.RecordBatch.from_arrays([*fixed, *decoded_columns(properties, decoded)], schema=schema)


def _check_qos(qos: Any) -> None:
    if pc.max(qos).as_py() == QOS:
        raise BlockError("a block has a message of QoS 3")


def longest_texts(block: bytes, header: Header) -> int:
    """The bytes of the longest client id and the longest topic name of a block. Raises BlockError."""
    columns = find_columns(block, header)
    buffer = pa.py_buffer(block)
    found = 0
    for count, ends in ((header.clients, columns.client_ends), (header.topics, columns.topic_ends)):
        if count:
            part = buffer.slice(ends.start, ends.size)
            array = pa.Array.from_buffers(pa.int32(), count + 1, [None, part])
            found += max(0, pc.max(pc.subtract(array[1:], array[:-1])).as_py())
    return found


def _arrays(block: bytes, selection: Selection) -> Arrays | None:
    header = parse_header(block)
    try:
        return _wanted(block, header, selection) if header.rows else None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise BlockError(f"a block of {len(block)} bytes and {header.rows} rows is damaged: {error}") from None


def _wanted(block: bytes, header: Header, selection: Selection) -> Arrays | None:
    columns = find_columns(block, header)
    buffer, rows = pa.py_buffer(block), header.rows

    def part(column: Column) -> Any:
        return buffer.slice(column.start, column.size)

    def numbers(kind: Any, column: Column) -> Any:
        return pa.Array.from_buffers(kind, rows, [None, part(column)])

    def texts(kind: Any, count: int, ends: Column, data: Column) -> Any:
        array = pa.Array.from_buffers(kind, count, [None, part(ends), part(data)])
        array.validate(full=True)
        return array

    accepted, flags = numbers(TIMESTAMP, columns.accepted), numbers(pa.uint8(), columns.flags)
    client, topic = numbers(pa.int32(), columns.client), numbers(pa.int32(), columns.topic)
    client_ids = texts(pa.string(), header.clients, columns.client_ends, columns.client_ids)
    topic_names = texts(pa.string(), header.topics, columns.topic_ends, columns.topic_names)
    payloads = texts(pa.binary(), rows, columns.payload_ends, columns.payloads)
    properties = pa.nulls(rows, pa.binary())
    if columns.property_ends is not None and columns.properties is not None:
        raw = texts(pa.binary(), rows, columns.property_ends, columns.properties)
        properties = pc.if_else(pc.equal(pc.binary_length(raw), 0), None, raw)
    arrays = [accepted, client, topic, flags, payloads, properties]
    if selection.rows is not None:  # the whole block is checked even so
        _check_qos(pc.bit_wise_and(flags, pa.scalar(QOS, pa.uint8())))
        client_ids.take(client.unique())
        topic_names.take(topic.unique())
        arrays = [array.slice(selection.rows.start, len(selection.rows)) for array in arrays]
    mask = None if selection.everything else _mask(selection, arrays[0], arrays[2], topic_names)
    if mask is not None and not pc.all(mask).as_py():
        if not pc.any(mask).as_py():
            return None
        arrays = [array.filter(mask) for array in arrays]
    arrays[1:3] = client_ids.take(arrays[1]), topic_names.take(arrays[2])  # checks that the numbers are in range
    return arrays


def _mask(selection: Selection, accepted: Any, topic: Any, topic_names: Any) -> Any:
    """The selected rows; None if all are."""
    masks = []
    if selection.topics is not None:
        named = [selection.topics.matches(name) for name in topic_names.to_pylist()]
        if not all(named):
            masks.append(pa.array(named, pa.bool_()).take(topic))
    if selection.since is not None:
        masks.append(pc.greater_equal(accepted, pa.scalar(selection.since, TIMESTAMP)))
    if selection.until is not None:
        masks.append(pc.less(accepted, pa.scalar(selection.until, TIMESTAMP)))
    mask = masks[0] if masks else None
    for more in masks[1:]:
        mask = pc.and_(mask, more)
    return mask


def decoded_columns(properties: Any, columns: Sequence[PropertyColumn]) -> list[Any]:
    """A string array for each column; null where a message lacks the property, or its value is not UTF-8.

    Each distinct block is decoded once: the messages of a device usually have equal ones.
    """
    coded = properties.dictionary_encode()
    read = PropertyReader(columns).read
    found = [read(block) for block in coded.dictionary.to_pylist()]
    texts = [pa.array([values[place] for values in found], pa.string()) for place in range(len(columns))]
    return [text.take(coded.indices) for text in texts]


def _bit(flags: Any, bit: int) -> Any:
    return pc.not_equal(pc.bit_wise_and(flags, pa.scalar(bit, pa.uint8())), pa.scalar(0, pa.uint8()))
