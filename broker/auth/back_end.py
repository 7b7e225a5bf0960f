"""What the methods have in common that request another server: answers that they remember, and a pause after failures.

A back end that fails refuses clients with code 3; it is never as if it did not know the user. After some failures in a
row it gets no requests for some seconds, then one: so a fleet that returns neither waits nor hinders its recovery.
"""

import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from .. import logs
from .authenticator import ReasonCode, Verdict

MAX_FAILURES = 5  # in a row, until requests pause ...
PAUSE_SECONDS = 5.0  # ... for so long; then one client is tried
MAX_REMEMBERED = 100_000
AWAY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the authentication back end fails")
PAUSED = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the authentication back end has failed lately")

T = TypeVar("T")

log = logs.get("flockmq.auth")


class BackEnd:
    """Whether a back end gets requests.

    Args:
        place: of the back end, for the log; it has no password.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._failures = 0
        self._paused_until = 0.0
        self.pauses = 0  # times that a failure has begun a pause, or prolonged it

    def takes(self) -> bool:
        """Whether it gets one more request. While it fails, that is one at the end of each pause."""
        if time.monotonic() < self._paused_until:
            return False
        if self._failures >= MAX_FAILURES:
            self._pause()  # for all but this client
        return True

    def failed(self, error: object) -> None:
        """A request has failed, or had no answer in time."""
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self.pauses += 1
            self._pause()
        log.error("authentication back end failed", url=self._place, failures=self._failures, error=error)

    def answered(self) -> None:
        """A request has been answered."""
        self._failures = 0
        self._paused_until = 0.0

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + PAUSE_SECONDS


class Remembered(Generic[T]):
    """Values that are remembered for a while, in memory; the oldest go first if there are too many.

    Args:
        seconds: 0 = nothing is remembered.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()  # until when; the oldest first

    def find(self, key: Hashable) -> T | None:
        """The value of a key; None: it is not remembered."""
        until, value = self._values.get(key, (0.0, None))
        return value if time.monotonic() < until else None

    def keep(self, key: Hashable, value: T) -> None:
        """Remember a value from now on, in place of an earlier one."""
        if self._seconds:
            self.forget(key)
            self._values[key] = time.monotonic() + self._seconds, value
            if len(self._values) > MAX_REMEMBERED:
                self._values.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        """Remember no value of this key."""
        self._values.pop(key, None)
