"""Both ends of one stream: the messages of one publisher, topic and QoS.

Owns the numbers sent, acknowledged and seen, and the faults that a number shows. Rules:
- Numbers of a stream begin at 1 and have no gaps. MQTT guarantees their order. A number after a later one is out of
  order; a number that stays missing after a later one is lost.
- A number seen twice is a duplicate, unless it was sent twice, or has DUP at QoS 1.
"""

from __future__ import annotations

from typing import NamedTuple

from .payload_header import MACHINE

LOST = "lost"
DUPLICATE = "duplicate"
OUT_OF_ORDER = "out of order"
NOT_ACKNOWLEDGED = "not acknowledged"
SESSION_LOST = "session lost"
TWICE = "done twice"
MAX_SAMPLES = 16  # of a stream


class Summary(NamedTuple):
    """A finished stream, as every process needs it at the end of a test."""

    stream: int
    topic_name: str
    qos: int
    machine: int  # whose clock the samples have
    samples: list[tuple[int, int]]  # some numbers, the first among them, and their time of sending in microseconds
    last: int  # the number sent last
    unacknowledged: list[int]  # numbers that the broker may or may not have


class Published:
    """The publisher's end."""

    __slots__ = ("_next_sample", "_step", "last", "left", "qos", "samples", "stream", "topic_name", "unacknowledged")

    def __init__(self, stream: int, topic_name: str, qos: int) -> None:
        self.stream = stream
        self.topic_name = topic_name
        self.qos = qos
        self.samples: list[tuple[int, int]] = []
        self._next_sample, self._step = 1, 1  # the next number to sample, and the distance of samples
        self.last = 0
        self.unacknowledged: set[int] = set()
        self.left = False  # the publisher has left and waits for nothing

    def next(self, now: int) -> int:
        """The number of the message that is sent now."""
        self.last += 1
        if self.last == self._next_sample:
            self._add_sample(now)
        if self.qos:
            self.unacknowledged.add(self.last)
        return self.last

    def _add_sample(self, now: int) -> None:
        self.samples.append((self.last, now))
        if len(self.samples) > MAX_SAMPLES:
            self.samples, self._step = self.samples[::2], self._step * 2
        self._next_sample = self.last + self._step

    def summary(self) -> Summary:
        """The stream, when nothing more is published."""
        return Summary(
            self.stream,
            self.topic_name,
            self.qos,
            MACHINE,
            self.samples,
            self.last,
            sorted(self.unacknowledged),
        )


class Seen:
    """A subscriber's end."""

    __slots__ = ("_resent", "first", "lost", "missing", "next", "qos")

    def __init__(self, first: int, qos: int) -> None:
        self.first = first
        self.next = first
        self.qos = qos  # of the deliveries
        self.missing: dict[int, int] = {}  # number -> when a later one has overtaken it, in microseconds
        self.lost: set[int] = set()  # were missing for too long
        self._resent: set[int] = set()

    def observe(self, number: int, now: int, *, resent: bool, dup: bool) -> str:
        """Record a received number; returns the fault that it shows, or ""."""
        if resent:
            self._resent.add(number)
        if number >= self.next:
            for skipped in range(self.next, number):
                self.missing[skipped] = now
            self.next = number + 1
            return ""
        if number < self.first:
            self.missing.update(dict.fromkeys(range(number, self.first), now))
            self.first = number
        if number in self.missing or number in self.lost:
            self.missing.pop(number, None)
            self.lost.discard(number)
            return OUT_OF_ORDER
        excused = number in self._resent or (dup and self.qos == 1)
        return "" if excused else DUPLICATE

    def give_up(self, before: int) -> int:
        """Count as lost the numbers missing since before that time; returns how many."""
        late = [number for number, since in self.missing.items() if since < before]
        for number in late:
            del self.missing[number]
        self.lost.update(late)
        return len(late)

    def outstanding(self, first: int, last: int, unacknowledged: list[int]) -> int:
        """How many of the sent numbers `first` to `last` are still expected; those counted as lost are not."""
        unseen = max(0, self.first - first) + max(0, last + 1 - self.next)
        unseen -= sum(number >= self.next or first <= number < self.first for number in unacknowledged)
        return unseen + len(self.missing.keys() - unacknowledged)
