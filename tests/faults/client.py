"""The clients of the fault suite: the clients of `flockmq prove`, with the time limit of the tests."""

import time
from collections.abc import Callable

from flockmq.loadtest.prove.client import NEVER, Outgoing, RecordedClient
from flockmq.loadtest.prove.client import Fleet as ReadingFleet
from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE

__all__ = ["NEVER", "FaultClient", "Fleet", "Outgoing"]


class FaultClient(RecordedClient):
    """A client; not connected yet. The arguments are as for `RecordedClient`.

    It gives a CONNECT without a reply up after a minute, as real clients do: in a partition the only reset may be lost.
    """

    def reconnect(self, port: int, *, will: bytes | None = None) -> None:
        """Connect, as often as the node closes the connection: one that was killed may have to rejoin the cluster."""
        until(lambda: self.connect(port, will=will), f"{self.client_id} connects")


class Fleet(ReadingFleet):
    """Clients that are served together."""

    def run(self, until: Callable[[], bool], what: str = "") -> None:
        """Read and answer until a condition holds."""
        end = time.monotonic() + DEADLINE
        while not until():
            assert time.monotonic() < end, f"it did not happen: {what}"
            self._step(0.5)
