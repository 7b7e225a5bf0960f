"""How the node feels: how late its clock is, and how long the store takes. Looked at four times a second."""

import time

from _speedups.session.turn import Turn

SPAN = 15.0  # seconds; Prometheus looks about as often


class Longest:
    """The most that was noted in the last 15 to 30 seconds. Any thread may read it."""

    def __init__(self) -> None:
        self._now = self._before = 0.0
        self._turned = time.monotonic()

    def note(self, seconds: float) -> None:
        """It took so long this time."""
        spans = self._spans()
        if spans:
            self._before = self._now if spans == 1 else 0.0
            self._now = 0.0
            self._turned += spans * SPAN
        self._now = max(self._now, seconds)

    def read(self) -> float:
        """The longest, in seconds."""
        spans = self._spans()
        return max(self._now, self._before) if spans == 0 else self._now if spans == 1 else 0.0

    def _spans(self) -> float:
        """How many have passed since what is `_now` began."""
        return (time.monotonic() - self._turned) // SPAN


class LoopMonitor:
    """Measures the loop and the store.

    Args:
        turn: of the node.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._asked: float | None = None  # when, while the store has not answered
        self.loop_lag = Longest()
        self.store_latency = Longest()

    def tick(self, late: float) -> None:
        """A quarter of a second has passed, and `late` seconds more."""
        self.loop_lag.note(late)
        if self._asked is not None:
            self.store_latency.note(time.monotonic() - self._asked)
            return
        self._asked = time.monotonic()
        self._turn.after_commit(self._stored)

    def _stored(self) -> None:
        assert self._asked is not None
        self.store_latency.note(time.monotonic() - self._asked)
        self._asked = None
