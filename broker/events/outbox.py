"""Publishes events at a bounded rate. Events above it are counted, and their numbers are an event, too.

Operators have a bucket, and each tenant has one: it holds the events of a second, so a storm in a tenant takes no event
from others.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..._speedups.base.tick import TICKS_PER_SECOND
from ..core.data_plane import DataPlane
from .topics import ROOT

AT_ONCE = 20  # events in a quarter of a second; in a storm one write to each reader then carries many
QOS = 1  # of events, so subscribers with QoS 1 get each once at least
BROKER = b""  # in place of the client id of a publisher: the message log leaves out messages that have none

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Outbox:
    """The events of a node, on their way to the router. Readers are named by the prefix of their tenant, or ''.

    Args:
        data_plane: of the node.
        node_id: names the node.
    """

    def __init__(self, data_plane: DataPlane, node_id: Callable[[], str]) -> None:
        self._node_id = node_id
        self._data_plane = data_plane
        self._router = data_plane.router
        self._spent: dict[str, float] = {}  # by readers: events that are missing in their buckets
        self._suppressed: dict[tuple[str, str], int] = {}  # by readers and kind: numbers since the last report
        self._report_at = 0  # tick of the turn
        self._at_once = AT_ONCE  # events that are published at once until the next tick ...
        self._waiting: list[tuple[bytes, bytes]] = []  # ... and the topic names and payloads of those after them
        self._now = Clock()
        self.published = 0
        self.suppressed = 0
        self.rate = 0  # events a second, to operators and to each tenant, at most

    def suppresses(self, readers: str, kind: str) -> bool:
        """Whether the bucket is empty, and events of this kind were suppressed since the last report: one more is."""
        key = readers, kind
        if key not in self._suppressed or self._has_allowance(readers):
            return False
        self.suppressed += 1
        self._suppressed[key] += 1
        return True

    def _has_allowance(self, readers: str) -> bool:
        return self._spent.get(readers, 0) <= self.rate - 1

    def has_room(self, readers: str, kind: str) -> bool:
        """Whether an event may be published; if not, it is counted as suppressed."""
        if self._has_allowance(readers):
            return True
        self.suppressed += 1
        key = readers, kind
        self._suppressed[key] = self._suppressed.get(key, 0) + 1
        return False

    def publish(self, readers: str, topic: bytes, kind: str, values: Mapping[str, Any]) -> None:
        """Publish an event.

        Args:
            readers: it is for.
            topic: its name.
            kind: of the event.
            values: of its payload, beside time and kind.
        """
        self._spent[readers] = self._spent.get(readers, 0) + 1
        self.published += 1
        payload = encode({"time": self._now(), "event": kind, **values}).encode()
        if self._at_once:
            self._at_once -= 1
            self._router.publish(topic, payload, QOS, False, BROKER)
        else:
            self._waiting.append((topic, payload))

    def tick(self) -> None:
        """A quarter of a second has passed: refill the buckets, publish waiting events, and report suppressed ones."""
        for readers in list(self._spent):
            self._spent[readers] -= self.rate / TICKS_PER_SECOND
            if self._spent[readers] <= 0:
                del self._spent[readers]
        self._at_once = AT_ONCE
        waiting, self._waiting = self._waiting, []
        for topic, payload in waiting:
            self._router.publish(topic, payload, QOS, False, BROKER)
        now = self._data_plane.turn.tick
        reports = bool(self._suppressed) and now >= self._report_at
        if reports:
            self._report_at = now + TICKS_PER_SECOND
            self._report()
        if waiting or reports:
            self._data_plane.end_turn()

    def _report(self) -> None:
        suppressed, self._suppressed = self._suppressed, {}
        numbers: dict[str, dict[str, int]] = {}
        for (readers, kind), number in suppressed.items():
            numbers.setdefault(readers, {})[kind] = number
        for readers, by_kind in numbers.items():
            node = {} if readers else {"node": self._node_id()}
            self.publish(readers, readers.encode() + ROOT + b"suppressed", "suppressed", {**node, "events": by_kind})


class Clock:
    """The present as text; the text of a second is made once."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self) -> str:
        """ISO 8601 in UTC, with milliseconds."""
        second, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{milliseconds:03d}Z"
