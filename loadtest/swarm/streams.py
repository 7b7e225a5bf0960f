"""What is known of one stream (the messages of one publisher, topic and QoS) at either end of it.

Owns the numbers: those sent, those acknowledged, those seen, and what a number that comes says of the broker. Rules:
- Numbers of a stream begin at 1 and have no gaps. MQTT promises their order, so one that comes after a later one is out
  of order, and one that does not come after a later one has come is lost when it has been given time.
- A number seen twice is a duplicate, unless it was sent twice, or comes with DUP at QoS 1.
"""

from __future__ import annotations

from typing import NamedTuple

from loadtest.swarm.payload_header import MACHINE

LOST = "lost"
DUPLICATE = "duplicate"
OUT_OF_ORDER = "out of order"
NOT_ACKNOWLEDGED = "not acknowledged"
SESSION_LOST = "session lost"
MARKS = 16  # of a stream, at most


class Summary(NamedTuple):
    """What every process must know of a stream at the end of a test."""

    stream: int
    topic_name: str
    qos: int
    machine: int  # whose clock it is
    marks: list[tuple[int, int]]  # some numbers, the first among them, and when they were sent, as in stamps
    last: int  # the number sent last
    unacknowledged: list[int]  # numbers of which it isn't known whether the broker has them


class Published:
    """The publisher's end."""

    __slots__ = ("_due", "_step", "last", "left", "marks", "qos", "stream", "topic_name", "unacknowledged")

    def __init__(self, stream: int, topic_name: str, qos: int) -> None:
        self.stream = stream
        self.topic_name = topic_name
        self.qos = qos
        self.marks: list[tuple[int, int]] = []
        self._due, self._step = 1, 1  # the number that is marked next, and how far apart they are
        self.last = 0
        self.unacknowledged: set[int] = set()
        self.left = False  # the publisher is gone for good, and waits for nothing

    def next(self, now: int) -> int:
        """The number of the message that is sent now."""
        self.last += 1
        if self.last == self._due:
            self._mark(now)
        if self.qos:
            self.unacknowledged.add(self.last)
        return self.last

    def _mark(self, now: int) -> None:
        self.marks.append((self.last, now))
        if len(self.marks) > MARKS:
            self.marks, self._step = self.marks[::2], self._step * 2
        self._due = self.last + self._step

    def summary(self) -> Summary:
        """What others must know."""
        return Summary(
            self.stream,
            self.topic_name,
            self.qos,
            MACHINE,
            self.marks,
            self.last,
            sorted(self.unacknowledged),
        )


class Seen:
    """A subscriber's end."""

    __slots__ = ("_resent", "first", "lost", "missing", "next", "qos")

    def __init__(self, first: int, qos: int) -> None:
        self.first = first
        self.next = first
        self.qos = qos  # with which it comes
        self.missing: dict[int, int] = {}  # a number that a later one has overtaken -> when
        self.lost: set[int] = set()  # that were missing for too long
        self._resent: set[int] = set()

    def observe(self, number: int, now: int, *, resent: bool, dup: bool) -> str:
        """A number has come; returns the fault that this shows, or ""."""
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
        """Count as lost what has been missing since before then; returns how many those are."""
        late = [number for number, since in self.missing.items() if since < before]
        for number in late:
            del self.missing[number]
        self.lost.update(late)
        return len(late)

    def outstanding(self, first: int, last: int, unacknowledged: list[int]) -> int:
        """How many of these numbers, all sent by now, have yet to come (those counted as lost don't)."""
        unseen = max(0, self.first - first) + max(0, last + 1 - self.next)
        unseen -= sum(number >= self.next or first <= number < self.first for number in unacknowledged)
        return unseen + len(self.missing.keys() - unacknowledged)
