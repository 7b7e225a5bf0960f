"""A block of the message log, in plain Python: the compiled writer and the readers are held against it.

The layout is in deploy/docs/internals/log.md.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

HEADER = struct.Struct("<2sBBIQQQIIQ")


class Row(NamedTuple):
    """A logged message."""

    accepted: int  # microseconds since 1970
    client_id: str
    topic: str
    qos: int
    retain: bool
    dup: bool
    payload: bytes
    properties: bytes | None = None  # a property block without its length; None if it is empty


def _column(code: str, values: Sequence[int]) -> bytes:
    return _padded(struct.pack(f"<{len(values)}{code}", *values))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _ends(texts: Sequence[bytes]) -> list[int]:
    ends = [0]
    for text in texts:
        ends.append(ends[-1] + len(text))
    return ends


def encode(rows: Sequence[Row], *, rows_before: int = 0, bytes_before: int = 0, lacking: int = 0) -> bytes:
    """A block as a node writes it."""
    clients = list(dict.fromkeys(row.client_id for row in rows))
    topics = list(dict.fromkeys(row.topic for row in rows))
    client_texts = [name.encode() for name in clients]
    topic_texts = [name.encode() for name in topics]
    payloads = [row.payload for row in rows]
    properties = [row.properties or b"" for row in rows]
    more = [_column("i", _ends(properties)), _padded(b"".join(properties))] if any(properties) else []
    header = HEADER.pack(
        b"FQ", 1, bool(more), len(rows), rows_before, bytes_before, lacking, len(clients), len(topics), 0
    )
    return b"".join(
        [
            header,
            _column("q", [row.accepted for row in rows]),
            _column("i", [clients.index(row.client_id) for row in rows]),
            _column("i", [topics.index(row.topic) for row in rows]),
            _column("i", _ends(payloads)),
            _column("i", _ends(client_texts)),
            _column("i", _ends(topic_texts)),
            _column("B", [row.qos | row.retain << 2 | row.dup << 3 for row in rows]),
            _padded(b"".join(client_texts)),
            _padded(b"".join(topic_texts)),
            _padded(b"".join(payloads)),
            *more,
        ]
    )


def decode(block: bytes) -> list[Row]:
    """The rows of a block, by the book."""
    magic, layout, bits, rows, _, _, _, clients, topics, _ = HEADER.unpack_from(block)
    assert (magic, layout) == (b"FQ", 1) and bits in (0, 1)
    at = HEADER.size

    def take(size: int) -> bytes:
        nonlocal at
        data = block[at : at + size]
        assert len(data) == size
        at += size + -size % 8
        assert not any(block[at - (-size % 8) : at])
        return data

    def numbers(code: str, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}{code}", take(count * struct.calcsize(code)))

    accepted, client, topic = numbers("q", rows), numbers("i", rows), numbers("i", rows)
    payload_ends, client_ends, topic_ends = numbers("i", rows + 1), numbers("i", clients + 1), numbers("i", topics + 1)
    flags = take(rows)
    client_data, topic_data, payload_data = (take(ends[-1]) for ends in (client_ends, topic_ends, payload_ends))
    property_ends = numbers("i", rows + 1) if bits else (0,) * (rows + 1)
    property_data = take(property_ends[-1]) if bits else b""
    assert at == len(block) and bool(property_data) == bits, "the columns exist only if a row has properties"
    return [
        Row(
            accepted[i],
            client_data[client_ends[client[i]] : client_ends[client[i] + 1]].decode(),
            topic_data[topic_ends[topic[i]] : topic_ends[topic[i] + 1]].decode(),
            flags[i] & 3,
            bool(flags[i] & 4),
            bool(flags[i] & 8),
            payload_data[payload_ends[i] : payload_ends[i + 1]],
            property_data[property_ends[i] : property_ends[i + 1]] or None,
        )
        for i in range(rows)
    ]
