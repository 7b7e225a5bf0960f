"""Health of the loop: delay of its clock, and latency of the store, measured four times a second."""

import time

from ..._speedups.session.turn import Turn

SPAN = 15.0  # seconds; about the interval of Prometheus


class Maximum:
    """The maximum of the last 15 to 30 seconds. Any thread may read it."""

    def __init__(self) -> None:
        self._now = self._before = 0.0
        self._turned = time.monotonic()

    def add(self, seconds: float) -> None:
        """Add a measurement."""
        spans = self._spans()
        if spans:
            self._before = self._now if spans == 1 else 0.0
            self._now = 0.0
            self._turned += spans * SPAN
        self._now = max(self._now, seconds)

    def read(self) -> float:
        """The maximum, in seconds."""
        spans = self._spans()
        return max(self._now, self._before) if spans == 0 else self._now if spans == 1 else 0.0

    def _spans(self) -> float:
        """The number of spans since the start of the present one."""
        return (time.monotonic() - self._turned) // SPAN


class LoopMonitor:
    """Measures the loop and the store.

    Args:
        turn: of the node.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._requested: float | None = None  # time, until the store has confirmed
        self.loop_lag = Maximum()
        self.store_latency = Maximum()

    def tick(self, late: float) -> None:
        """A quarter of a second has passed, and `late` seconds more."""
        self.loop_lag.add(late)
        if self._requested is not None:
            self.store_latency.add(time.monotonic() - self._requested)
            return
        self._requested = time.monotonic()
        self._turn.after_commit(self._stored)

    def _stored(self) -> None:
        assert self._requested is not None
        self.store_latency.add(time.monotonic() - self._requested)
        self._requested = None
