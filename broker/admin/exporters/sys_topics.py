"""The $SYS tree: the metrics of the node, as retained messages that only the broker publishes."""

import math
import resource
import time

from ...broker import Broker
from ...metrics import LOADS, METRICS, SUMS

ROOT = "$SYS/broker/"
KIB = 1024
AVERAGES = {"1min": 60.0, "5min": 300.0, "15min": 900.0}  # seconds


class SysTopics:
    """Publishes the tree; a value is published again only when it has changed."""

    def __init__(self, broker: Broker, version: str) -> None:
        self._broker = broker
        self._version = version
        self._sent: dict[str, str] = {}
        self._last = broker.data_plane.turn.counted()
        self._updated = 0.0  # monotonic
        self._loads = dict.fromkeys(((name, span) for name, _ in LOADS for span in AVERAGES), 0.0)

    def update(self, uptime: float) -> None:
        """Publish the values that have changed.

        Args:
            uptime: seconds since the start.
        """
        now = time.monotonic()
        elapsed = now - self._updated if self._updated else 0.0
        self._updated = now
        figures = self._broker.data_plane.turn.counted()
        self._publish("version", f"FlockMQ {self._version}")
        self._publish("uptime", f"{uptime:.0f} seconds")
        values = {metric.name: metric.read(self._broker, figures) for metric in METRICS}
        for metric in METRICS:
            self._publish(metric.topic, str(values[metric.name]))
        for topic, names in SUMS.items():
            self._publish(topic, str(sum(values[name] for name in names)))
        memory = resident_bytes()
        self._publish("heap/current", str(memory))
        self._publish("heap/maximum", str(max(memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)))
        for name, counter in LOADS:
            rate = (figures[counter] - self._last[counter]) * 60 / elapsed if elapsed else 0.0
            for span, seconds in AVERAGES.items():
                weight = math.exp(-elapsed / seconds)
                self._loads[name, span] = rate + weight * (self._loads[name, span] - rate)
                self._publish(f"load/{name}/{span}", f"{self._loads[name, span]:.2f}")
        self._last = figures

    def _publish(self, name: str, value: str) -> None:
        if self._sent.get(name) != value:
            self._sent[name] = value
            self._broker.data_plane.router.publish((ROOT + name).encode(), value.encode(), 0, True)


def resident_bytes() -> int:
    """The memory of this process that is resident."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
