"""Lines of the log that anyone can cause, without a login: the first ones of a network are written, the rest is summed.

Refused connections, faults before CONNECT, failed handshakes: a stranger causes thousands a second. They would fill the
disk, and hide all that matters. At level debug, which somebody has asked for, all are written.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import logs
from .networks import network_of

LINES = 20  # of one event and network, in a period
SECONDS = 10.0  # of a period
MAX_NETWORKS = 1000  # events of networks that are told apart at a time; all further ones of an event are one network

log = logs.get("flockmq.connection")

Write = Callable[..., None]  # a method of a Log


@dataclass(slots=True)
class Flood:
    """The lines of one event and network, in the present period."""

    write: Write
    ends: float
    lines: int = 0


class LogLimiter:
    """Writes the lines of one node."""

    def __init__(self) -> None:
        self._floods: dict[tuple[str, str], Flood] = {}  # the oldest first

    def write(self, write: Write, event: str, *, address: str = "", **values: object) -> None:
        """Write a line, unless its network has caused many like it.

        Args:
            write: such as `log.info`.
            event: of the line.
            address: HOST:PORT of the stranger; "" if it is not known.
            values: more of the line.
        """
        values = {"address": address, **values} if address else values
        if log.enabled(logs.DEBUG):
            write(event, **values)
            return
        key = event, network_of(address) if address else ""
        flood = self._floods.get(key)
        if flood is None:
            if len(self._floods) >= MAX_NETWORKS:
                key = event, "others"
            flood = self._floods.setdefault(key, Flood(write, time.monotonic() + SECONDS))
        flood.lines += 1
        if flood.lines <= LINES:
            write(event, **values)

    def tick(self, now: float) -> None:
        """End the periods that are over."""
        for key in [key for key, flood in self._floods.items() if flood.ends <= now]:
            self._end(key)

    def close(self) -> None:
        """The node stops: end all periods."""
        for key in list(self._floods):
            self._end(key)

    def _end(self, key: tuple[str, str]) -> None:
        flood = self._floods.pop(key)
        if flood.lines > LINES:
            event, network = key
            where = {"network": network} if network else {}
            flood.write(
                f"{event}: more lines like it were left out", **where, lines=flood.lines - LINES, seconds=SECONDS
            )
