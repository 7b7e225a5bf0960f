"""Delays the reply to a failed login; the delay doubles per failure and address.

A successful login is never delayed: a whole site may be behind one address, and one device with an old password there
must not shut out the rest. Guessing is bounded because an address that has failed lately has few attempts at a time.
The table is bounded, and entries expire.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass

from ..core.networks import network_of

MAX_DELAY = 8.0  # seconds; `limits.connect_timeout` ends connections that wait longer
EXPIRY_SECONDS = 300.0  # seconds without a failure
MAX_ADDRESSES = 20_000
MAX_ATTEMPTS = 32  # at a time, of an address that has failed lately
MAX_DELAYED = 2_000  # replies to all addresses


@dataclass(slots=True)
class Record:
    """The failures of an address."""

    failures: int = 0
    last: float = 0.0
    under_way: int = 0  # attempts since


class Penalties:
    """The table of addresses."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()  # the latest failure is last
        self._delayed = 0
        self._first_delay = 0.0

    def configure(self, first_delay: float) -> None:
        """Delay the reply to a first failure by this many seconds; 0 = no delays."""
        self._first_delay = first_delay

    def begin(self, address: str) -> bool:
        """Begin an attempt; False: it is refused. `end` follows unless it is."""
        record = self._records.get(network_of(address))
        if record is None:
            return True
        if record.under_way >= MAX_ATTEMPTS and time.monotonic() - record.last < EXPIRY_SECONDS:
            return False
        record.under_way += 1
        return True

    def end(self, address: str) -> None:
        """End an attempt: its reply was sent."""
        record = self._records.get(network_of(address))
        if record is not None and record.under_way:
            record.under_way -= 1

    def failed(self, address: str) -> float:
        """Record a failure; returns the delay of its reply in seconds. `answered` follows if there is one."""
        if not self._first_delay:
            return 0.0
        network, now = network_of(address), time.monotonic()
        record = self._records.pop(network, None)
        if record is None:
            record = Record(under_way=1)
            if len(self._records) >= MAX_ADDRESSES:
                self._records.popitem(last=False)
        elif now - record.last > EXPIRY_SECONDS:
            record.failures = 0
        self._records[network] = record
        record.failures += 1
        record.last = now
        if self._delayed >= MAX_DELAYED:
            return 0.0
        self._delayed += 1
        return float(min(MAX_DELAY, self._first_delay * 2 ** min(record.failures - 1, 16)))

    def answered(self) -> None:
        """A delayed reply was sent."""
        self._delayed -= 1
