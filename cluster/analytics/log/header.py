"""The header of a block of the message log, and the places of its columns; layout: deploy/docs/internals/log.md.

This module reads no rows: `block` makes Arrow arrays of the columns, `flockmq replay` reads them with `struct`.
"""

import struct
from typing import NamedTuple

from ..errors import BlockError

HEADER = struct.Struct("<2sBBIQQQIIQ")
MAGIC = b"FQ"
LAYOUT = 1
HAS_PROPERTIES = 1
QOS, RETAIN, DUP = 3, 4, 8  # bits of a row's flags
END = struct.Struct("<i")


class Column(NamedTuple):
    """Bytes of a block."""

    start: int
    size: int


class Header(NamedTuple):
    """The header of a block."""

    rows: int
    rows_before: int  # of this log
    bytes_before: int  # of this log
    lacking: int  # messages of QoS 0 that the log lacks so far
    clients: int
    topics: int
    has_properties: bool


class Columns(NamedTuple):
    """The places of the columns; all are within the block; their content is unchecked."""

    accepted: Column  # i64, microseconds since 1970
    client: Column  # i32, number of the client id
    topic: Column  # i32, number of the topic name
    payload_ends: Column  # i32, one more than rows
    client_ends: Column
    topic_ends: Column
    flags: Column  # u8
    client_ids: Column
    topic_names: Column
    payloads: Column
    property_ends: Column | None = None  # i32, one more than rows; only in blocks that have properties
    properties: Column | None = None


def parse_header(block: bytes) -> Header:
    """The header of a block.

    Raises:
        BlockError: it is no block, or its layout is not supported.
    """
    if len(block) < HEADER.size:
        raise BlockError(f"a block of {len(block)} bytes is too short for its header")
    magic, layout, bits, rows, rows_before, bytes_before, lacking, clients, topics, _ = HEADER.unpack_from(block)
    if magic != MAGIC:
        raise BlockError(f"data that begins with {magic!r} is not a block of messages")
    if layout != LAYOUT or bits & ~HAS_PROPERTIES:
        raise BlockError(
            f"a block has layout {layout}, bits {bits}, but only layout {LAYOUT} is supported",
            "a newer node wrote it: use the package of that release",
        )
    return Header(rows, rows_before, bytes_before, lacking, clients, topics, bool(bits & HAS_PROPERTIES))


def find_columns(block: bytes, header: Header) -> Columns:
    """The places of the columns of a block.

    Raises:
        BlockError: a column would end beyond the block, or bytes follow the last one.
    """
    size, at = len(block), HEADER.size
    rows, columns = header.rows, []

    def take(length: int) -> Column:
        nonlocal at
        column = Column(at, length)
        at += length + (-length & 7)
        if length < 0 or at > size:
            raise BlockError(f"a block of {size} bytes and {rows} rows is cut short or damaged")
        columns.append(column)
        return column

    def last(ends: Column) -> int:
        if END.unpack_from(block, ends.start)[0]:
            raise BlockError("a column of a block does not begin at 0")
        return int(END.unpack_from(block, ends.start + ends.size - 4)[0])

    take(8 * rows)
    take(4 * rows)
    take(4 * rows)
    ends = [take(4 * (count + 1)) for count in (rows, header.clients, header.topics)]
    take(rows)
    for column in (ends[1], ends[2], ends[0]):
        take(last(column))
    if header.has_properties:
        take(last(take(4 * (rows + 1))))
    if at != size:
        raise BlockError(f"a block of {size} bytes ends after {at}")
    return Columns(*columns)
