"""The world: virtual time, and a list of all that will happen. The next event is the earliest; nothing else runs.

All chance comes from one generator with the seed of the run. So the same plan has the same history.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from tests.simulation.clock import NS, Clock
from tests.simulation.story import Story

MICRO = 1_000  # nanoseconds
MILLI = 1_000_000
FOREVER = 1 << 62
FIRST_REDIS = "redis0"  # the host whose wall clock is shown while no other one acts
MAX_STEPS = 2_000_000  # of a run: some twenty thousand are usual


class Event:
    """A call at a time of the world."""

    __slots__ = ("arguments", "call", "time")

    def __init__(self, time: int, call: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
        self.time = time
        self.call = call
        self.arguments = arguments

    def cancel(self) -> None:
        """Do not call."""
        self.call = None


class World:
    """Time and chance of one run.

    Args:
        seed: of the run.
        clock: of the process.
        story: the acts of each part.
    """

    def __init__(self, seed: int, clock: Clock, story: Story) -> None:
        self.rng = random.Random(seed)
        self.now = 0  # nanoseconds
        self.story = story
        self._clock = clock
        self._events: list[tuple[int, int, Event]] = []  # a heap: by time, then by number
        self._number = 0
        self.steps = 0  # events so far
        self._wrong: dict[str, int] = {}  # nanoseconds by which the wall clock of a host is wrong
        clock.set(0)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self.now / NS

    def after(self, delay: int, call: Callable[..., object], *arguments: Any) -> Event:
        """Call after so many nanoseconds."""
        return self.at(self.now + delay, call, *arguments)

    def at(self, time: int, call: Callable[..., object], *arguments: Any) -> Event:
        """Call at a time."""
        self._number += 1
        event = Event(max(time, self.now), call, arguments)
        heapq.heappush(self._events, (event.time, self._number, event))
        return event

    def run_until(self, time: int, condition: Callable[[], bool] | None = None) -> bool:
        """Let all happen up to a time, or until a condition is met, which is asked after each event.

        Returns:
            Whether the condition was met.
        """
        events = self._events
        while events and events[0][0] <= time:
            event = heapq.heappop(events)[2]
            if event.call is None:
                continue
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise RuntimeError("the run does not end: too many events")
            self.now = event.time
            self._clock.set(event.time)
            event.call(*event.arguments)
            if condition is not None and condition():
                return True
        self.now = time
        self._clock.set(time)
        return False

    def step_clock(self, host: str, step: int) -> None:
        """Let the wall clock of a host be wrong by so many nanoseconds more."""
        self._wrong[host] = self._wrong.get(host, 0) + step

    def act_as(self, host: str) -> None:
        """Show the wall clock of this host."""
        if self._wrong:
            self._clock.set_step(self._wrong.get(host, 0))

    def delay(self, typical: int, rare: int) -> int:
        """A delay in nanoseconds: mostly about the typical one, one in a hundred up to the rare one."""
        chance = self.rng.random()
        if chance < 0.01:
            return int(self.rng.random() * rare)
        return int(typical * (0.2 + 1.6 * chance))
