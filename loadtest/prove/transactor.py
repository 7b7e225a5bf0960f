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
        number: among the transactions of its client.
        is_repetition: the number is committed already: no message may arrive.
        rows: payloads of the messages that the commit publishes.
        parts: chunks of the parts that the commit lists.
        is_refused: the broker has refused a chunk or the commit.
    """

    number: int
    is_repetition: bool
    rows: list[bytes] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)
    is_committing: bool = False
    is_refused: bool = False


class Transacting(RecordedClient):
    """The half of a client of level 5 that publishes in transactions; without any if the broker does not offer them."""

    def prepare(self, rng: random.Random, first: int = 0) -> None:
        """To be called first.

        Args:
            rng: chooses sizes, and attempts that fail.
            first: number of the first message.
        """
        self.asked = [(PROPERTY, "1")]
        self.offered = False
        self._rng_of_transactions = rng
        self._under_way: Transaction | None = None
        self._committed = self._parts = 0
        self._was_committed = False  # the last transaction, so that it can be repeated
        self._rows = first

    @property
    def is_done(self) -> bool:
        """Whether no transaction is under way."""
        return self._under_way is None

    def transact(self) -> None:
        """Begin a transaction, unless one is under way. Its commit follows when all chunks are acknowledged."""
        if self.socket is None or self.outgoing or not self.offered or not self.is_done:
            return
        rng = self._rng_of_transactions
        is_repetition = self._was_committed and rng.random() < 0.3
        self._was_committed = False
        self._under_way = found = Transaction(self._committed - is_repetition, is_repetition)
        for number in range(rng.choice((1, 1, 2, 3))):
            has_failed = number > 0 and rng.random() < 0.3
            self._parts += 1
            part, chunks = f"part-{self._parts}", rng.randint(1, CHUNKS)
            for chunk in range(chunks):
                rows = [self._row() for _ in range(rng.randint(1, ROWS))]
                if has_failed or is_repetition:
                    self.history.add(Abandoned(self.client_id, tuple(rows)))
                else:
                    found.rows += rows
                    for payload in rows:
                        self.history.add(Published(self.client_id, f"t/{part}", payload, 2))
                packets = (encode(Publish(f"t/{part}", payload, qos=2, packet_id=1), 5) for payload in rows)
                self._command(f"{found.number}/{part}/{chunk}", b"".join(packets))
            if not has_failed:
                found.parts[part] = chunks

    def refused(self, command: Publish, answer: Puback) -> None:
        """The broker has refused a chunk, or a commit."""
        text = f"{command.topic_name} is refused with {answer.reason_code:#x}: {answer.properties}"
        self.history.add(Unexpected(self.client_id, text))

    def _row(self) -> bytes:
        self._rows += 1
        return b"%s/%d" % (self.client_id.encode(), self._rows)

    def _command(self, place: str, payload: bytes) -> None:
        """Send a chunk or a commit, again on every connection until it is acknowledged."""
        self.publish(f"$transaction/{self.client_id.replace(' ', '-')}/{place}", payload, 1)

    def _note_publish(self, packet: Publish) -> None:
        """Chunks and commits are no messages."""

    def _handle(self, packet: Packet, will: bytes | None) -> None:
        if isinstance(packet, Connack):
            self.offered = (PROPERTY, "1") in packet.properties.get("user_property", ())
        elif isinstance(packet, Puback) and packet.packet_id in self.outgoing and self._under_way is not None:
            command = self.outgoing.pop(packet.packet_id).packet
            if packet.reason_code >= FAILED:
                self._under_way.is_refused = True
                self.refused(command, packet)
            if not self.outgoing:
                self._go_on(self._under_way)
            return
        super()._handle(packet, will)

    def _go_on(self, found: Transaction) -> None:
        """All that was sent is answered."""
        if not found.is_refused and not found.is_committing:
            found.is_committing = True
            self._command(f"{found.number}", json.dumps(found.parts).encode())
            return
        self._under_way = None
        if not found.is_refused:
            for payload in found.rows:
                self.history.add(Acknowledged(self.client_id, payload, "PUBCOMP"))
            self._was_committed = not found.is_repetition
            self._committed += not found.is_repetition


class Transactor(Transacting):
    """A client that publishes in transactions.

    Args:
        history: of the run.
        client_id: its id, and the name of its transactions.
        rng: chooses sizes, and attempts that fail.
        options: as of `RecordedClient`.
    """

    def __init__(self, history: History, client_id: str, rng: random.Random, **options: Any) -> None:
        super().__init__(history, client_id, level=5, **options)
        self.prepare(rng)
