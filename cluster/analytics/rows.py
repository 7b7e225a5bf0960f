"""A block of the log of messages, row by row, in plain Python: for what handles messages one by one, such as a replay.

The layout is in deploy/docs/CLUSTER.md, "The log of messages". Rows that are not wanted cost little: which topic names
and client ids are is decided once for each of a block's, not once for each message.
"""

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

HEADER = struct.Struct("<2sBBIQQQIIQ")
MAGIC, LAYOUT, HAS_PROPERTIES = b"FQ", 1, 1
KINDS = [(flags & 3, bool(flags & 4), bool(flags & 8)) for flags in range(256)]  # QoS, RETAIN, DUP


class InvalidBlock(ValueError):
    """A block is not as the layout says: damaged, or of a later version."""


class Row(NamedTuple):
    """A logged message."""

    accepted: int  # microseconds since 1970
    client_id: str
    topic: str
    qos: int
    retain: bool
    dup: bool
    payload: bytes


class Header(NamedTuple):
    """What a block says of itself."""

    rows: int
    rows_before: int  # of this log, before this block
    bytes_before: int
    lacking: int  # messages of QoS 0 that the log lacks so far
    clients: int
    topics: int
    has_properties: bool


Wanted = Callable[[str], bool]


def header(block: bytes) -> Header:
    """The header of a block.

    Raises:
        InvalidBlock: it has none.
    """
    if len(block) < HEADER.size:
        raise InvalidBlock(f"a block of {len(block)} bytes has no header")
    magic, layout, bits, rows, rows_before, bytes_before, lacking, clients, topics, _ = HEADER.unpack_from(block)
    if magic != MAGIC:
        raise InvalidBlock(f"a block begins with {magic!r}")
    if layout != LAYOUT or bits & ~HAS_PROPERTIES:
        raise InvalidBlock(f"a block has layout {layout}.{bits}, which a later version may know")
    return Header(rows, rows_before, bytes_before, lacking, clients, topics, bool(bits & HAS_PROPERTIES))


def read(block: bytes, *, topic: Wanted | None = None, client: Wanted | None = None) -> list[Row]:
    """The rows of a block, in their order; of the topic names and client ids that are wanted.

    Raises:
        InvalidBlock: it is not as the layout says.
    """
    about = header(block)
    columns = _Columns(block, about)
    try:
        topics, clients = columns.texts(columns.topic_ends), columns.texts(columns.client_ends)
    except UnicodeDecodeError as error:
        raise InvalidBlock(f"a block has a name that is no UTF-8: {error}") from error
    start = columns.place(columns.payload_ends[-1])
    if about.has_properties:
        columns.place(_checked(columns.numbers("i", about.rows + 1))[-1])
    if columns.at != len(block):
        raise InvalidBlock(f"a block has {len(block)} bytes where {columns.at} are told")
    indices = range(about.rows) if topic is None and client is None else columns.chosen(topics, clients, topic, client)
    accepted, flags, ends = columns.accepted, columns.flags, columns.payload_ends
    client_numbers, topic_numbers = columns.client, columns.topic
    return [
        Row(
            accepted[index],
            clients[client_numbers[index]],
            topics[topic_numbers[index]],
            *KINDS[flags[index]],
            block[start + ends[index] : start + ends[index + 1]],
        )
        for index in indices
    ]


class _Columns:
    """Reads the columns from the first to the last."""

    def __init__(self, block: bytes, about: Header) -> None:
        self.block = block
        self.at = HEADER.size
        rows = about.rows
        self.accepted = self.numbers("q", rows)
        self.client = self._indices(rows, about.clients)
        self.topic = self._indices(rows, about.topics)
        self.payload_ends = _checked(self.numbers("i", rows + 1))
        self.client_ends = _checked(self.numbers("i", about.clients + 1))
        self.topic_ends = _checked(self.numbers("i", about.topics + 1))
        flags = self.place(rows)
        self.flags = block[flags : flags + rows]
        # Both columns of texts come after the flags, client ids first.
        self._texts = {id(self.client_ends): self.place(self.client_ends[-1])}
        self._texts[id(self.topic_ends)] = self.place(self.topic_ends[-1])

    def place(self, size: int) -> int:
        """Where the next column begins; goes past it and its padding."""
        begin = self.at
        self.at += size + -size % 8
        if self.at > len(self.block):
            raise InvalidBlock(f"a block ends after {len(self.block)} bytes, within a column")
        return begin

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        """A column of numbers."""
        return struct.unpack_from(f"<{count}{code}", self.block, self.place(count * struct.calcsize(f"<{code}")))

    def _indices(self, count: int, below: int) -> tuple[int, ...]:
        numbers = self.numbers("i", count)
        if numbers and not (min(numbers) >= 0 and max(numbers) < below):
            raise InvalidBlock(f"a block names number {max(numbers)} (or one below 0) of {below}")
        return numbers

    def texts(self, ends: tuple[int, ...]) -> list[str]:
        """A column of texts."""
        start = self._texts[id(ends)]
        return [self.block[start + begin : start + end].decode() for begin, end in pairwise(ends)]

    def chosen(self, topics: list[str], clients: list[str], topic: Wanted | None, client: Wanted | None) -> list[int]:
        """The numbers of the rows that are wanted."""
        good_topics = [topic is None or topic(name) for name in topics]
        good_clients = [client is None or client(name) for name in clients]
        if not any(good_topics) or not any(good_clients):
            return []
        pairs = zip(self.topic, self.client, strict=True)
        return [index for index, (name, by) in enumerate(pairs) if good_topics[name] and good_clients[by]]


def _checked(ends: tuple[int, ...]) -> tuple[int, ...]:
    """Ends that begin with 0 and never fall."""
    if ends[0] != 0 or list(ends) != sorted(ends):
        raise InvalidBlock("a block has ends that fall")
    return ends
