"""Messages that clients have lost because they were too slow: at full queues, and QoS 0 at full outputs.

Numbers are kept of clients that have lost some, the latest ones, so all other clients cost nothing.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..._speedups.session.session import Session

MAX_CLIENTS = 1000  # whose numbers are kept
AT_ONCE = 5000  # clients whose losses are noted in one go: some milliseconds; the counters have the rest


@dataclass(slots=True)
class Lost:
    """The messages that a client has lost at this node."""

    queue_full: int = 0
    output_full: int = 0
    last: float = 0.0  # monotonic

    @property
    def total(self) -> int:
        """All of them."""
        return self.queue_full + self.output_full


class LostMessages:
    """The numbers of a node."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, Lost] = OrderedDict()  # the latest is last

    def __len__(self) -> int:
        return len(self._clients)

    def items(self) -> list[tuple[bytes, Lost]]:
        """Client ids and their numbers."""
        return list(self._clients.items())

    def of(self, client_id: bytes) -> Lost | None:
        """The numbers of a client; None: it has lost nothing that is known."""
        return self._clients.get(client_id)

    def add(self, at_queues: Mapping[bytes, int], at_outputs: Iterable[tuple[Any, int]]) -> dict[bytes, Lost]:
        """Add messages that were lost since the last call.

        Args:
            at_queues: client id -> messages dropped at its full queue.
            at_outputs: connections, and the messages of QoS 0 for which their outputs had no room.

        Returns:
            Client id -> these messages.
        """
        now = time.monotonic()
        lost = {client_id: Lost(count, 0, now) for client_id, count in islice(at_queues.items(), AT_ONCE)}
        for connection, count in islice(at_outputs, AT_ONCE):
            session: Session | None = getattr(connection, "claimed", None)
            if session is not None:  # else it has ended since
                lost.setdefault(session.client_id, Lost(0, 0, now)).output_full += count
        for client_id, more in lost.items():
            known = self._clients.pop(client_id, None) or Lost()
            self._clients[client_id] = Lost(
                known.queue_full + more.queue_full, known.output_full + more.output_full, now
            )
        while len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return lost
