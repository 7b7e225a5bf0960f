"""The rate limits of a link: how long it has to wait after what it has sent."""

import time

BURST = 0.1  # seconds at the rate that may be sent at once


class Pace:
    """Messages and bytes per second.

    Args:
        messages, size: limits per second; 0 = none.
    """

    def __init__(self, messages: int, size: int) -> None:
        self._rates = (messages, size)
        self._free_at = 0.0  # when all that was sent is within the rates

    def sent(self, messages: int, size: int) -> float:
        """So much was sent: the seconds until more may be; 0 = now."""
        now = time.monotonic()
        needed = max((n / rate for n, rate in zip((messages, size), self._rates, strict=True) if rate), default=0.0)
        self._free_at = max(self._free_at, now) + needed
        return self._free_at - now if self._free_at - now > BURST else 0.0
