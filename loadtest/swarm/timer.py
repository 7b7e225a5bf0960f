"""The timer of all simulated clients of a process."""

from __future__ import annotations

import time
from typing import Protocol

import gevent

PERIOD = 1.0  # seconds between two looks
POLL = 0.02  # seconds between two looks at closing connections


class Timed(Protocol):
    """An object with a deadline."""

    @property
    def next_due(self) -> float:
        """Monotonic time of the deadline; infinite if there is none."""

    def on_time(self, now: float) -> None:
        """The deadline has passed."""


class Closing(Protocol):
    """A connection that has sent DISCONNECT."""

    @property
    def ended(self) -> bool:
        """Whether its socket is closed."""

    def abort(self) -> None:
        """Close it at once."""


class Timer:
    """Calls `on_time` of the registered objects, at most a second late."""

    def __init__(self) -> None:
        self.timed: set[Timed] = set()
        self.closing: set[Closing] = set()

    def run(self) -> None:
        """Run until the greenlet is killed."""
        while True:
            gevent.sleep(PERIOD)
            now = time.monotonic()
            for each in list(self.timed):
                if each.next_due <= now:
                    each.on_time(now)
            self.closing = {connection for connection in self.closing if not connection.ended}

    def wait_closed(self, seconds: float) -> None:
        """Wait until the closing connections have ended; abort the remaining ones after `seconds`."""
        end = time.monotonic() + seconds
        while any(not connection.ended for connection in self.closing) and time.monotonic() < end:
            gevent.sleep(POLL)
        for connection in self.closing:
            connection.abort()
        self.closing.clear()
