"""Who shows wrong credentials waits for the answer: twice as long each time, by address.

Right ones are never made to wait: behind one address may be a whole site, and one device with an old password there
must not shut out the rest. What bounds guessing is that an address which has failed lately has few attempts at a time.
The table is bounded, and forgets.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

LONGEST = 8.0  # seconds; connections have `limits.connect_timeout` to be let in
FORGOTTEN_AFTER = 300.0  # seconds without a failure
ADDRESSES_MOST = 20_000
ATTEMPTS_MOST = 32  # at a time, of an address that has failed lately
DELAYED_MOST = 2_000  # answers of all addresses that wait


@dataclass(slots=True)
class Record:
    """What is known of an address."""

    failures: int = 0
    last: float = 0.0
    under_way: int = 0  # attempts that were begun since


def network_of(address: str) -> str:
    """The host of an address, without its port; of IPv6 the network of 64 bits that one customer has."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ip_address(host)
    except ValueError:  # a Unix socket
        return host or address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
    return host


class Penalties:
    """The table."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()  # that failed last comes last
        self._delayed = 0
        self.first_delay = 0.0  # seconds

    def begin(self, address: str) -> bool:
        """An attempt begins; False: it must not. `end` follows if it may."""
        record = self._records.get(network_of(address))
        if record is None:
            return True
        if record.under_way >= ATTEMPTS_MOST and time.monotonic() - record.last < FORGOTTEN_AFTER:
            return False
        record.under_way += 1
        return True

    def end(self, address: str) -> None:
        """The attempt has been answered."""
        record = self._records.get(network_of(address))
        if record is not None and record.under_way:
            record.under_way -= 1

    def failed(self, address: str) -> float:
        """Note a failure; returns for how many seconds its answer is to wait. `answered` follows if it waits."""
        if not self.first_delay:
            return 0.0
        network, now = network_of(address), time.monotonic()
        record = self._records.pop(network, None)
        if record is None:
            record = Record(under_way=1)
            if len(self._records) >= ADDRESSES_MOST:
                self._records.popitem(last=False)
        elif now - record.last > FORGOTTEN_AFTER:
            record.failures = 0
        self._records[network] = record
        record.failures += 1
        record.last = now
        if self._delayed >= DELAYED_MOST:
            return 0.0
        self._delayed += 1
        return float(min(LONGEST, self.first_delay * 2 ** min(record.failures - 1, 16)))

    def answered(self) -> None:
        """An answer that waited has been given."""
        self._delayed -= 1
