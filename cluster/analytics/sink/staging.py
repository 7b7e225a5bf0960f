"""Transactions at a broker: rows are staged in parts, and published by the commit of the parts, all or none."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .packets import Packet, packet_of
from .publisher import IDS, Publisher

CHUNK_BYTES = 1 << 16  # of rows in one packet
CHUNK_ROWS = 1000
HEAD_BYTES = 1 << 10  # of a packet with a chunk, at most


class Transaction(NamedTuple):
    """A transaction: of each name the broker knows the newest number that was committed, and drops earlier ones."""

    name: str
    number: int

    @property
    def topic(self) -> str:
        """For its commit; the topics of its parts begin so."""
        return f"$transaction/{self.name}/{self.number}"


class Part(NamedTuple):
    """A staged part of a transaction.

    Attributes:
        name: unique.
        chunks, rows: their numbers.
    """

    name: str
    chunks: int
    rows: int


def stage(publisher: Publisher, transaction: Transaction, rows: Iterable[Packet]) -> Part:
    """Stage rows as a part. Raises BrokerError as `Publisher.publish`."""
    name = uuid.uuid4().hex[:16]
    count = chunks = 0
    for chunk, some in chunks_of(rows, min(CHUNK_BYTES, publisher.largest - HEAD_BYTES)):
        publisher.publish([packet_of(f"{transaction.topic}/{name}/{chunks}", chunk)])
        chunks += 1
        count += some
    publisher.finish()
    return Part(name, chunks, count)


def commit_parts(publisher: Publisher, transaction: Transaction, parts: Mapping[str, int]) -> None:
    """Let the broker publish staged parts, all together.

    Args:
        publisher: a connection.
        transaction: of the parts.
        parts: the numbers of their chunks, by name.

    Raises:
        BrokerError: the broker is away, or has lost a part: it has waited for longer than the broker keeps it.
    """
    publisher.publish([packet_of(transaction.topic, json.dumps(parts).encode())])
    publisher.finish()


def chunks_of(rows: Iterable[Packet], size: int) -> Iterator[tuple[bytes, int]]:
    """The rows one behind the other, in chunks of about this size; and their numbers."""
    parts: list[bytes] = []
    count = length = 0
    for qos, head, rest in rows:
        if count and (length + len(head) + len(rest) > size or count >= CHUNK_ROWS):
            yield b"".join(parts), count
            parts, count, length = [], 0, 0
        parts += (head, IDS[1], rest) if qos else (head, rest)
        length += len(head) + len(rest) + 2
        count += 1
    if count:
        yield b"".join(parts), count
