"""The check of deliveries: the published, expected and received messages of the clients of one process.

Owns the streams of its publishers and the subscriptions of its subscribers; finds losses, duplicates and wrong order.
Processes exchange nothing while the test runs. At its end each one receives the streams of all (`final_count`), so
that a stream whose last messages, or all of them, were lost is found, too. Rules:
- A clean session's subscription starts again with each connection: nothing is expected for the time between.
  A persistent session's subscription continues and misses nothing.
- A stream is expected from the first number that was certainly sent after SUBACK, or that was received.
- QoS 0 guarantees nothing: a gap is reported as lost, but not waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import count

from ..._speedups.codec.packets import Publish
from ..._speedups.codec.topics import matches
from . import payload_header
from .streams import LOST, NOT_ACKNOWLEDGED, SESSION_LOST, Published, Seen, Summary

MAX_LOGGED = 10  # pairs of subscriber and stream whose losses are logged
_log = logging.getLogger(__name__)
Report = Callable[[str, str, int], None]  # name of the event ("deliver qos1"), fault, number of messages


class Subscriber:
    """The expected and received messages of one client with one topic filter."""

    __slots__ = ("_gaps", "_report", "client_id", "persistent", "qos", "seen", "since", "topic_filter")

    def __init__(
        self, client_id: str, topic_filter: str, qos: int, persistent: bool, gaps: set[Seen], report: Report
    ) -> None:
        self.client_id = client_id
        self.topic_filter = topic_filter
        self.qos = qos
        self.persistent = persistent
        self.seen: dict[int, Seen] = {}
        self.since = 0  # time of SUBACK in microseconds; 0: none yet
        self._gaps = gaps
        self._report = report

    def subscribed(self, session_present: bool) -> None:
        """The client is connected and subscribed."""
        if not session_present or not self.since:
            if self.persistent and self.since:
                self._report("connect", SESSION_LOST, 1)
            self._forget()
            self.since = payload_header.now()
        self._forget_qos_0()

    def disconnected(self) -> None:
        """The client has lost its connection."""
        if not self.persistent:
            self._forget()
            self.since = 0

    def observe(self, header: payload_header.PayloadHeader, packet: Publish, now: int) -> None:
        """Record a received message."""
        seen = self.seen.get(header.stream)
        if seen is None:
            seen = self.seen[header.stream] = Seen(header.number, packet.qos)
        fault = seen.observe(header.number, now, resent=header.resent, dup=packet.dup)
        if fault:
            self._report(f"deliver qos{packet.qos}", fault, 1)
        if seen.missing:
            self._gaps.add(seen)

    def first(self, stream: Summary) -> int:
        """A number that was sent after SUBACK; 0 if unknown: clocks of two machines are not comparable."""
        if not self.since or stream.machine != payload_header.MACHINE:
            return 0
        return next((number for number, sent_at in stream.samples if sent_at > self.since), 0)

    def outstanding(self, stream: Summary) -> int:
        """How many messages of a finished stream are still expected."""
        seen, first = self.seen.get(stream.stream), self.first(stream)
        if seen is not None:
            return seen.outstanding(first or seen.first, stream.last, stream.unacknowledged)
        unacknowledged = sum(number >= first for number in stream.unacknowledged)
        return stream.last + 1 - first - unacknowledged if first else 0

    def _forget_qos_0(self) -> None:
        """No session queues QoS 0 for a disconnected client."""
        for stream, seen in list(self.seen.items()):
            if not seen.qos:
                del self.seen[stream]
                self._gaps.discard(seen)

    def _forget(self) -> None:
        self._gaps.difference_update(self.seen.values())
        self.seen = {}


class DeliveryCheck:
    """The streams and subscriptions of one process.

    Args:
        process: its number, unique among the processes of the test.
        lost_after: seconds after which a missing message is lost.
        report: called for each fault.
    """

    def __init__(self, process: int, lost_after: float, report: Report) -> None:
        self.lost_after = int(lost_after * 1e6)
        self._report = report
        self._streams = count(((process & 0xFFF) << 20) + 1)
        self._published: list[Published] = []
        self._subscribers: set[Subscriber] = set()
        self._gaps: set[Seen] = set()  # streams with missing numbers

    def publisher(self, topic_name: str, qos: int) -> Published:
        """A new stream."""
        published = Published(next(self._streams), topic_name, qos)
        self._published.append(published)
        return published

    def subscriber(self, client_id: str, topic_filter: str, qos: int, *, persistent: bool) -> Subscriber:
        """A new subscription."""
        subscriber = Subscriber(client_id, topic_filter, qos, persistent, self._gaps, self._report)
        self._subscribers.add(subscriber)
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        """The client has left for good."""
        subscriber.persistent = False
        subscriber.disconnected()
        self._subscribers.discard(subscriber)

    @property
    def unacknowledged(self) -> int:
        """Number of publications that await their acknowledgement."""
        return sum(len(published.unacknowledged) for published in self._published if not published.left)

    def check_gaps(self) -> None:
        """Report the messages that have been missing for too long."""
        before = payload_header.now() - self.lost_after
        for seen in list(self._gaps):
            lost = seen.give_up(before)
            if lost:
                self._report(f"deliver qos{seen.qos}", LOST, lost)
            if not seen.missing:
                self._gaps.discard(seen)

    # ---- the end of a test ----

    def summaries(self) -> list[Summary]:
        """The streams of this process, when nothing more is published."""
        return [published.summary() for published in self._published if published.last]

    def report_unacknowledged(self) -> None:
        """Report the publications without an acknowledgement."""
        for published in self._published:
            if published.unacknowledged and not published.left:
                self._report(f"publish qos{published.qos}", NOT_ACKNOWLEDGED, len(published.unacknowledged))

    def expected(self, streams: Iterable[Summary]) -> list[tuple[Subscriber, Summary]]:
        """The subscribers of this process, each with the finished streams of all processes that it should receive."""
        exact: dict[str, list[Subscriber]] = {}
        wild: dict[str, list[Subscriber]] = {}
        for subscriber in self._subscribers:
            if subscriber.qos:
                with_wildcard = "#" in subscriber.topic_filter or "+" in subscriber.topic_filter
                (wild if with_wildcard else exact).setdefault(subscriber.topic_filter, []).append(subscriber)
        pairs: list[tuple[Subscriber, Summary]] = []
        for stream in streams:
            if stream.qos:
                pairs += [(subscriber, stream) for subscriber in exact.get(stream.topic_name, ())]
                for topic_filter, subscribers in wild.items():
                    if matches(topic_filter, stream.topic_name):
                        pairs += [(subscriber, stream) for subscriber in subscribers]
        return pairs

    def report_lost(self, pairs: list[tuple[Subscriber, Summary]]) -> None:
        """Report all messages that are still missing."""
        for number, (subscriber, stream) in enumerate(pairs):
            lost = subscriber.outstanding(stream)
            if lost:
                self._report(f"deliver qos{min(stream.qos, subscriber.qos)}", LOST, lost)
                if number < MAX_LOGGED:
                    _log.warning("lost: %d of %d messages of %s", lost, stream.last, describe(subscriber, stream))
        self._gaps.clear()


def describe(subscriber: Subscriber, stream: Summary) -> str:
    """The stream, its subscriber, and the numbers that were received."""
    seen = subscriber.seen.get(stream.stream)
    received = f"received: {seen.first} to {seen.next - 1}" if seen else "received: none"
    return f"{stream.topic_name} at QoS {stream.qos} to {subscriber.client_id}; {received}"
