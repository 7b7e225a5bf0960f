"""Clients that connect too often: refused for a while, by the quota of their listener."""

import time
from collections import OrderedDict
from collections.abc import Callable

from ..config.kinds import rate
from ..config.limits_config import QuotasConfig
from ..core.networks import network_of

MAX_CLIENTS = 20_000  # whose connections are counted


class Flapping:
    """Counts how often each client connects.

    Args:
        quotas: of a listener, by its name.
    """

    def __init__(self, quotas: Callable[[str], QuotasConfig]) -> None:
        self._quotas = quotas
        self._known: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # began, connections since

    def refuses(self, listener: str, client_id: str, address: str) -> bool:
        """Count a connection of a client; whether it connects too often."""
        quota = self._quotas(listener).flapping
        if not quota:
            return False
        limit, seconds = rate(quota)
        client, now = (client_id, network_of(address)), time.monotonic()
        began, times = self._known.pop(client, (now, 0))
        if now - began > seconds:
            began, times = now, 0
        elif times == limit:
            began = now  # it is refused for as long again
        self._known[client] = began, min(times + 1, limit + 1)
        if len(self._known) > MAX_CLIENTS:
            self._known.popitem(last=False)
        return times >= limit
