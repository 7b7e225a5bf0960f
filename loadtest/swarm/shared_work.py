"""The check of shared subscriptions: each piece of work is done at least once, whichever worker of a group has it.

Owns what the workers of one process have done, and the sum over all processes. Rules:
- A group is a shared subscription's topic filter. Its workers may be in different processes.
- A group is expected to do all that is published after its first SUBACK, and all after the first number it has done.
- Work may be done twice at QoS 1: its worker died before the broker had the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..._speedups.codec.topics import matches
from . import payload_header
from .streams import Summary


class Report(NamedTuple):
    """The part of one stream that the workers of a group in one process have done."""

    topic_filter: str
    qos: int
    machine: int  # whose clock `since` has
    since: int  # time of the first SUBACK in microseconds
    stream: int  # 0: no work yet
    deliveries: int  # those done twice included
    numbers: bytes  # one bit for each number, the lowest one first


class Done:
    """The part of one stream that was done."""

    __slots__ = ("deliveries", "numbers")

    def __init__(self) -> None:
        self.deliveries = 0
        self.numbers = bytearray()

    def add(self, number: int) -> None:
        """A message was delivered."""
        at = number >> 3
        if at >= len(self.numbers):
            self.numbers.extend(bytes(at + 64 - len(self.numbers)))
        self.numbers[at] |= 1 << (number & 7)
        self.deliveries += 1


class SharedWork:
    """The groups of one process."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], int] = {}
        self._done: dict[tuple[str, int], dict[int, Done]] = {}

    def subscribed(self, topic_filter: str, qos: int) -> None:
        """A worker of the group has got SUBACK, or its session is there."""
        self._since.setdefault((topic_filter, qos), payload_header.now())

    def add(self, topic_filter: str, qos: int, stream: int, number: int) -> None:
        """A worker has done a piece of work."""
        streams = self._done.setdefault((topic_filter, qos), {})
        if stream not in streams:
            streams[stream] = Done()
        streams[stream].add(number)

    def reports(self) -> list[Report]:
        """All that was done, for the sum over all processes."""
        found = []
        for (topic_filter, qos), since in self._since.items():
            group = topic_filter, qos, payload_header.MACHINE, since
            found.append(Report(*group, 0, 0, b""))
            for stream, done in self._done.get((topic_filter, qos), {}).items():
                found.append(Report(*group, stream, done.deliveries, bytes(done.numbers)))
        return found


class Outcome(NamedTuple):
    """The part of one stream that all workers of a group have done."""

    topic_filter: str
    topic_name: str
    qos: int
    lost: int
    twice: int


def outcomes(reports: Iterable[Report], streams: Iterable[Summary]) -> list[Outcome]:
    """The outcome of each group and finished stream.

    Args:
        reports: of all processes.
        streams: of all processes.
    """
    since: dict[str, dict[int, int]] = {}
    qos: dict[str, int] = {}
    done: dict[tuple[str, int], tuple[int, int]] = {}
    for report in reports:
        first = since.setdefault(report.topic_filter, {})
        first[report.machine] = min(report.since, first.get(report.machine, report.since))
        qos[report.topic_filter] = report.qos
        count, numbers = done.get((report.topic_filter, report.stream), (0, 0))
        done[report.topic_filter, report.stream] = (
            count + report.deliveries,
            numbers | int.from_bytes(report.numbers, "little"),
        )
    found = []
    for stream in streams:
        for topic_filter, first in since.items():
            if stream.qos and matches(topic_filter.split("/", 2)[2], stream.topic_name):
                count, numbers = done.get((topic_filter, stream.stream), (0, 0))
                lost = missing(stream, numbers, first.get(stream.machine, 0))
                twice = count - numbers.bit_count()
                found.append(Outcome(topic_filter, stream.topic_name, min(stream.qos, qos[topic_filter]), lost, twice))
    return found


def missing(stream: Summary, numbers: int, since: int) -> int:
    """The number of acknowledged messages of a stream that no worker has done.

    Args:
        stream: finished.
        numbers: one bit for each number that was done.
        since: time of the group's first SUBACK, by the clock of the stream's machine; 0 = unknown.
    """
    starts = [number for number, sent_at in stream.samples if since and sent_at > since][:1]
    if numbers:
        starts.append((numbers & -numbers).bit_length() - 1)
    if not starts:
        return 0
    first = min(starts)
    expected = (1 << (stream.last + 1)) - (1 << first)
    for number in stream.unacknowledged:
        expected &= ~(1 << number)
    return (expected & ~numbers).bit_count()


def packed(reports: Iterable[Report]) -> list[Any]:
    """Reports for a message between processes."""
    return [tuple(report) for report in reports]
