"""The clock of a node: ticks of the reactor, and periodic jobs as rows (period, function)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._speedups.base.tick import TICKS_PER_SECOND
from . import logs

MAX_TICKS = TICKS_PER_SECOND  # at once: a process that was suspended must not find all its clients timed out
EVERY_TICK = 0.0
LOG_SECONDS = 60.0  # between lines in the log about work that fails

log = logs.get("flockmq.node")


class Job(NamedTuple):
    """Periodic work."""

    period: float | Callable[[], float]  # seconds; a function if the configuration may change it
    run: Callable[[], object]


class Clock:
    """Runs on the loop between `start` and `stop`.

    Args:
        loop: of the node.
        tick: called with the ticks that have passed, maybe none; with further ticks in which the process was suspended
            or the machine slept; and with the seconds by which the clock is late.
        jobs: run in this order, after the tick. They may be replaced by others with the same periods.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tick: Callable[[int, int, float], object], jobs: Sequence[Job]
    ) -> None:
        self._loop = loop
        self._tick = tick
        self.jobs = jobs
        self._log_at = 0.0  # when a failure is logged again

    def start(self) -> None:
        """Begin to tick; the first run of each job is a period from now."""
        self._last_tick = time.monotonic()
        self._slept = time.clock_gettime(time.CLOCK_BOOTTIME) - self._last_tick  # seconds that the machine has slept
        self._last_runs = [self._last_tick] * len(self.jobs)
        self._schedule()

    def stop(self) -> None:
        """Tick no more."""
        self._handle.cancel()

    def _schedule(self) -> None:
        now = time.monotonic()
        self._due = max(now + 0.001, self._last_tick + 1 / TICKS_PER_SECOND)
        self._handle = self._loop.call_later(self._due - now, self._run)

    def _run(self) -> None:
        now = time.monotonic()
        ticks = int((now - self._last_tick) * TICKS_PER_SECOND)
        self._last_tick += ticks / TICKS_PER_SECOND
        slept = time.clock_gettime(time.CLOCK_BOOTTIME) - now
        missed = max(0, ticks - MAX_TICKS) + int((slept - self._slept) * TICKS_PER_SECOND)
        self._slept = slept
        self._call(self._tick, min(ticks, MAX_TICKS), missed, now - self._due)
        for number, (period, run) in enumerate(self.jobs):
            if now - self._last_runs[number] >= (period() if callable(period) else period):
                self._last_runs[number] = now
                self._call(run)
        self._schedule()

    def _call(self, work: Callable[..., object], *arguments: float) -> None:
        """Call a function; its failure must not end heartbeats, time limits and the other jobs."""
        try:
            work(*arguments)
        except Exception:
            now = time.monotonic()
            if now >= self._log_at:
                self._log_at = now + LOG_SECONDS
                log.exception("internal error: periodic work failed")
