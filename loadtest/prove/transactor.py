"""A client that publishes in transactions, as the sink of Spark does, over any number of connections.

It stages the parts of a transaction, and commits it when all chunks are acknowledged. Some parts are of attempts that
have failed: the commit does not list them. Some transactions are sent once more after their commit, with other messages
under the same number: as by a query that has lost its own record of the commit.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Packet, Puback, Publish
from .client import FAILED, RecordedClient
from .history import Abandoned, Acknowledged, History, Published, Unexpected

PROPERTY = "flockmq-transactions"  # user property: asks for transactions, and offers them
CHUNKS, ROWS = 3, 20  # at most, of a part and of a chunk


@dataclass
class Transaction:
    """A transaction under way.

    Attributes:
        rows: topic names and payloads of the messages that the commit publishes.
        parts: chunks of the parts that the commit lists.
        is_repetition: the number is committed already: no message may arrive.
    """

    number: int
    is_repetition: bool
    rows: list[tuple[str, bytes]] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)
    is_committing: bool = False


class Transactor(RecordedClient):
    """A client of level 5 that publishes in transactions; without any if the broker does not offer them.

    Args:
        history: of the run.
        client_id: its id, and the name of its transactions.
        rng: chooses sizes, and attempts that fail.
    """

    def __init__(self, history: History, client_id: str, rng: random.Random, **options: Any) -> None:
        super().__init__(history, client_id, level=5, **options)
        self.asked = [(PROPERTY, "1")]
        self.offered = False
        self.committed = 0  # transactions
        self._rng = rng
        self._under_way: Transaction | None = None
        self._rows = self._parts = 0

    def advance(self) -> None:
        """Go on with the transaction if the broker has acknowledged all so far; begin another one after it."""
        if self.socket is None or self.outgoing or not self.offered:
            return
        found = self._under_way
        if found is not None and not found.is_committing:
            found.is_committing = True
            self._command(f"{found.number}", json.dumps(found.parts).encode())
        else:
            self._begin(is_repetition=found is not None and not found.is_repetition and self._rng.random() < 0.3)

    def finish(self) -> bool:
        """Go on with the transaction under way, if there is one; whether there is none."""
        if self._under_way is not None and not (self._under_way.is_committing and not self.outgoing):
            self.advance()
            return False
        return True

    def _begin(self, *, is_repetition: bool) -> None:
        number = self.committed - is_repetition
        self._under_way = found = Transaction(number, is_repetition)
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            has_failed = self._rng.random() < 0.2
            self._parts += 1
            part, chunks = f"part-{self._parts}", self._rng.randint(1, CHUNKS)
            for chunk in range(chunks):
                rows = [self._row(part) for _ in range(self._rng.randint(1, ROWS))]
                if has_failed or is_repetition:
                    self.history.add(Abandoned(self.client_id, tuple(payload for _, payload in rows)))
                else:
                    found.rows += rows
                    for topic, payload in rows:
                        self.history.add(Published(self.client_id, topic, payload, 2))
                packets = (encode(Publish(topic, payload, qos=2, packet_id=1), 5) for topic, payload in rows)
                self._command(f"{number}/{part}/{chunk}", b"".join(packets))
            if not has_failed:
                found.parts[part] = chunks

    def _row(self, part: str) -> tuple[str, bytes]:
        """Topic name and payload of a message. Messages keep their order in a part, so its topic is its own."""
        self._rows += 1
        return f"t/{part}", b"%s/%d" % (self.client_id.encode(), self._rows)

    def _command(self, place: str, payload: bytes) -> None:
        """Send a chunk or a commit, again on every connection until it is acknowledged."""
        self.publish(f"$transaction/{self.client_id.replace(' ', '-')}/{place}", payload, 1)

    def _note_publish(self, packet: Publish) -> None:
        """Chunks and commits are no messages."""

    def _handle(self, packet: Packet, will: bytes | None) -> None:
        if isinstance(packet, Connack):
            self.offered = (PROPERTY, "1") in packet.properties.get("user_property", ())
        elif isinstance(packet, Puback) and packet.packet_id in self.outgoing:
            out = self.outgoing.pop(packet.packet_id).packet
            if packet.reason_code >= FAILED:
                text = f"{out.topic_name} is refused with {packet.reason_code:#x}: {packet.properties}"
                self.history.add(Unexpected(self.client_id, text))
            elif self._under_way is not None and self._under_way.is_committing:
                self._end(self._under_way)
            return
        super()._handle(packet, will)

    def _end(self, found: Transaction) -> None:
        """The commit is acknowledged."""
        for _, payload in found.rows:
            self.history.add(Acknowledged(self.client_id, payload, "PUBCOMP"))
        self.committed += not found.is_repetition
