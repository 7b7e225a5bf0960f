"""The one timer of all simulated clients of a process: once a second it looks after each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gevent

from loadtest.swarm.connection import Connection

if TYPE_CHECKING:
    from loadtest.swarm.client import Client


class Pulse:
    """Looks after all clients of a process."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()  # that want to be connected
        self.finishing: set[Connection] = set()  # that have said DISCONNECT

    def run(self) -> None:
        """Beat for ever, in a greenlet."""
        while True:
            gevent.sleep(1.0)
            now = time.monotonic()
            for client in list(self.clients):
                client.beat(now)
            self.finishing = {connection for connection in self.finishing if not connection.ended}

    def wait_finished(self, seconds: float) -> None:
        """Return when the connections that were closed are gone, or after so long."""
        end = time.monotonic() + seconds
        while any(not connection.ended for connection in self.finishing) and time.monotonic() < end:
            gevent.sleep(0.02)
        for connection in self.finishing:
            connection.abort()
        self.finishing.clear()
