"""How evenly a shared subscription divides messages among its equal subscribers."""

from __future__ import annotations

import time
from collections.abc import Callable

from .cost import Figures
from .target import Workload

INTERVAL = 1.0  # seconds of one figure


class Skew:
    """The messages of the subscribers of a shared subscription while it is under load.

    Args:
        load: the first subscribers are slow, the next ones die; all others are equal.
        received: returns the messages of each subscriber so far.
    """

    def __init__(self, load: Workload, received: Callable[[], list[int]]) -> None:
        self._load = load
        self._received = received
        self._at_first: list[int] = []
        self._at_last: list[int] = []
        self._last = 0.0
        self._worst = 0.0

    def begin(self) -> None:
        """The warm-up is over."""
        self._at_first = self._at_last = self._received()
        self._last = time.monotonic()

    def look(self) -> None:
        """Note the difference of a whole second; called a few times a second."""
        now = time.monotonic()
        if now - self._last < INTERVAL:
            return
        received = self._received()
        self._worst = max(self._worst, spread(self._equal(self._at_last, received)))
        self._at_last, self._last = received, now

    def figures(self) -> Figures:
        """The fewest and the most messages of an equal subscriber, their distance over their mean, and the others'."""
        received = self._received()
        equal = self._equal(self._at_first, received)
        load = self._load
        return {
            "equal_subscribers": len(equal),
            "slow_subscribers": load.slow,
            "dying_subscribers": load.dying,
            "received_slow": sum(received[: load.slow]),
            "received_dying": sum(received[load.slow : load.slow + load.dying]),
            "received_equal": sum(received[load.slow + load.dying :]),
            "skew_share": spread(equal),
            "skew_second_share": self._worst,
        }

    def _equal(self, before: list[int], after: list[int]) -> list[int]:
        first = self._load.slow + self._load.dying
        return [now - then for then, now in zip(before[first:], after[first:], strict=True)]


def spread(counts: list[int]) -> float:
    """The distance of the largest from the smallest, as a share of the mean; 0 if there is nothing."""
    total = sum(counts)
    return (max(counts) - min(counts)) * len(counts) / total if total else 0.0
