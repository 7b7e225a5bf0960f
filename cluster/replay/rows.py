"""A block of the log of messages, row by row, in plain Python, for code that handles single messages, such as a replay.

Rows that are not selected cost little: the filters run once per topic name and client id of a block, not per message.
"""

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from ..analytics.errors import BlockError
from ..analytics.log.header import DUP, QOS, RETAIN, Column, Columns, find_columns, parse_header

KINDS = [(flags & QOS, bool(flags & RETAIN), bool(flags & DUP)) for flags in range(256)]
Wanted = Callable[[str], bool]


class Row(NamedTuple):
    """A logged message."""

    accepted: int  # microseconds since 1970
    client_id: str
    topic: str
    qos: int
    retain: bool
    dup: bool
    payload: bytes
    properties: bytes | None = None  # as in PUBLISH, with the expiry as received, without length; None: it had none


def read(block: bytes, *, topic: Wanted | None = None, client: Wanted | None = None) -> list[Row]:
    """The rows of a block, in their order; filtered by topic name and client id.

    Raises:
        BlockError: it violates the layout.
    """
    header = parse_header(block)
    columns = find_columns(block, header)
    topics = _texts(block, columns.topic_ends, columns.topic_names)
    clients = _texts(block, columns.client_ends, columns.client_ids)
    by_client = _indices(block, columns.client, header.clients)
    by_topic = _indices(block, columns.topic, header.topics)
    accepted, ends = _numbers(block, columns.accepted, "q"), _ends(block, columns.payload_ends)
    flags, payloads = columns.flags.start, columns.payloads.start
    properties = _properties(block, columns)
    if topic is None and client is None:
        indices: list[int] | range = range(header.rows)
    else:
        good_topics = [topic is None or topic(name) for name in topics]
        good_clients = [client is None or client(name) for name in clients]
        pairs = zip(by_topic, by_client, strict=True)
        indices = [index for index, (name, by) in enumerate(pairs) if good_topics[name] and good_clients[by]]
    return [
        Row(
            accepted[index],
            clients[by_client[index]],
            topics[by_topic[index]],
            *KINDS[block[flags + index]],
            block[payloads + ends[index] : payloads + ends[index + 1]],
            properties[index] if properties else None,
        )
        for index in indices
    ]


def _numbers(block: bytes, column: Column, code: str) -> tuple[int, ...]:
    return struct.unpack_from(f"<{column.size // struct.calcsize(f'<{code}')}{code}", block, column.start)


def _ends(block: bytes, column: Column) -> tuple[int, ...]:
    """Ends that begin with 0 and never fall."""
    ends = _numbers(block, column, "i")
    if ends[0] != 0 or list(ends) != sorted(ends):
        raise BlockError("a block has ends that fall: it is damaged")
    return ends


def _properties(block: bytes, columns: Columns) -> list[bytes | None]:
    """The properties of each row; empty if the block has none."""
    if columns.property_ends is None or columns.properties is None:
        return []
    data = columns.properties.start
    return [block[data + begin : data + end] or None for begin, end in pairwise(_ends(block, columns.property_ends))]


def _texts(block: bytes, ends: Column, texts: Column) -> list[str]:
    try:
        return [block[texts.start + begin : texts.start + end].decode() for begin, end in pairwise(_ends(block, ends))]
    except UnicodeDecodeError as error:
        raise BlockError(f"a block has a name that is no UTF-8: {error}") from error


def _indices(block: bytes, column: Column, below: int) -> tuple[int, ...]:
    numbers = _numbers(block, column, "i")
    if numbers and not (min(numbers) >= 0 and max(numbers) < below):
        raise BlockError(f"a block counts to {max(numbers)}, or below 0, where it has {below} names: it is damaged")
    return numbers
