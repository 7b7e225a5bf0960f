"""The leases of a node, one in each shard, over its reactor: it serves its clients while all of them last."""

import time

from ..._speedups.net.reactor import Reactor


class Leases:
    """The leases of a node.

    Args:
        reactor: of the node.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._ends: dict[int, float] = {}  # monotonic, by number
        self._stopped: set[int] = set()

    def lease(self) -> "OneLease":
        """One more, which lasts until it is set."""
        number = len(self._ends)
        self._ends[number] = float("inf")
        return OneLease(self, number)

    def set(self, number: int, seconds: float) -> None:
        """Set how long a lease lasts."""
        now = time.monotonic()
        self._ends[number] = now + seconds
        self._reactor.set_lease(max(min(self._ends.values()) - now, 1e-9))

    def stop(self, number: int) -> None:
        """A lease is over, until `start`."""
        self._stopped.add(number)
        self._reactor.stop()

    def start(self, number: int) -> None:
        """A lease is confirmed."""
        self._stopped.discard(number)
        if not self._stopped:
            self._reactor.start()


class OneLease:
    """The reactor of a node, as the lease of one shard sees it.

    Args:
        leases: of the node.
        number: among them.
    """

    def __init__(self, leases: Leases, number: int) -> None:
        self._leases = leases
        self._number = number

    def set_lease(self, seconds: float) -> None:
        """As `Reactor.set_lease`."""
        self._leases.set(self._number, seconds)

    def stop(self) -> None:
        """As `Reactor.stop`."""
        self._leases.stop(self._number)

    def start(self) -> None:
        """As `Reactor.start`."""
        self._leases.start(self._number)
