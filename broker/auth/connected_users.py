"""The users behind the connections of a node: how many each has, until when they may stay, what they may do by now.

A changed rule, a removed user and the end of a token act on who is connected, at once: rights are replaced where they
are looked up, subscriptions stay and deliver what may be read.
"""

import asyncio
import heapq
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from _speedups.net.connection import Connection
from _speedups.session.rights import Rights
from broker import logs
from broker.auth.authenticator import Identity
from broker.auth.penalties import network_of
from broker.config.kinds import rate

if TYPE_CHECKING:
    from broker.broker import Broker

Renewed = Callable[[Identity], Identity | None]
FLAPPING_MOST = 20_000  # clients of whom it is known how often they came
NOTHING = Rights(())
RENEWED_AT_ONCE = 500  # some 20 ms
ENDED_AT_ONCE = 500
STALE_FREE = 1024  # entries of connections that have ended meanwhile

log = logs.get("flockmq.auth")


class ConnectedUsers:
    """Knows who is connected.

    Args:
        broker: whose connections they are.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._connections: Counter[str] = Counter()  # by user
        self._expiring: list[tuple[float, int, Connection]] = []  # a heap; also of connections that have ended
        self._numbers = itertools.count()
        self._expiries = 0  # of connections that are open
        self._arrivals: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # began, times since

    def __getitem__(self, username: str) -> int:
        """How many connections a user has."""
        return self._connections[username]

    # ---- connections come and go ----

    def flaps(self, listener: str, client_id: str, address: str) -> bool:
        """Note that a client came; whether it has come too often."""
        quota = self._broker.listeners[listener].quotas.flapping
        if not quota:
            return False
        most, seconds = rate(quota)
        who, now = (client_id, network_of(address)), time.monotonic()
        began, times = self._arrivals.pop(who, (now, 0))
        if now - began > seconds:
            began, times = now, 0
        elif times == most:
            began = now  # it is refused for as long again
        self._arrivals[who] = began, min(times + 1, most + 1)
        if len(self._arrivals) > FLAPPING_MOST:
            self._arrivals.popitem(last=False)
        return times >= most

    def has_room(self, identity: Identity, client_id: bytes) -> bool:
        """Whether the user may have one more connection, unless it is in place of another."""
        most = self._broker.listeners[identity.listener].quotas.max_connections_per_user
        if not most or identity.username is None or self._connections[identity.username] < most:
            return True
        session = self._broker.sessions.get(client_id)
        owner = None if session is None else session.owner
        return owner is not None and owner.identity.username == identity.username

    def came(self, connection: Connection) -> None:
        """A connection has got its session."""
        identity: Identity = connection.identity
        if identity.username is not None:
            self._connections[identity.username] += 1
        if identity.expires is not None:
            self._expiries += 1
            heapq.heappush(self._expiring, (identity.expires, next(self._numbers), connection))
            if len(self._expiring) > 2 * self._expiries + STALE_FREE:
                self._expiring = [entry for entry in self._expiring if not entry[2].closed]
                heapq.heapify(self._expiring)

    def went(self, connection: Connection) -> None:
        """A connection that had got a session is closed."""
        identity: Identity = connection.identity
        self._expiries -= identity.expires is not None
        if identity.username is not None:
            self._connections[identity.username] -= 1
            if self._connections[identity.username] <= 0:
                del self._connections[identity.username]

    # ---- what changes while they are connected ----

    def tick(self) -> None:
        """End the connections whose time is over; of many some at a time."""
        if self._expiring and self._expiring[0][0] <= time.time():
            work = self._ending()
            if next(work, None) is not None:
                self._broker.run(_go_on(work))

    def _ending(self) -> Iterator[int]:
        now = time.time()
        ended = 0
        while self._expiring and self._expiring[0][0] <= now:
            connection = heapq.heappop(self._expiring)[2]
            if connection.closed:
                continue
            connection.close("its credentials have expired")
            ended += 1
            if ended % ENDED_AT_ONCE == 0:
                self._broker.settle()
                yield ended
        self._broker.settle()

    def renew(self, renewed: Renewed, concerns: Callable[[Identity], bool] = lambda identity: True) -> None:
        """Ask anew who the connected clients are, and what they may; of many some at a time, so that others are served.

        Who comes meanwhile is judged by what holds already.
        """
        work = self._renewing(list(self._broker.reactor), renewed, concerns)
        if next(work, None) is not None:
            self._broker.run(_go_on(work))

    def _renewing(
        self, connections: list[Connection], renewed: Renewed, concerns: Callable[[Identity], bool]
    ) -> Iterator[int]:
        for start in range(0, len(connections), RENEWED_AT_ONCE):
            changed = [
                self._renew(connection, renewed)
                for connection in connections[start : start + RENEWED_AT_ONCE]
                if connection.identity is not None and not connection.closed and concerns(connection.identity)
            ]
            if any(changed):
                self._broker.router.filters.forget_plans()
            self._broker.settle()
            if start + RENEWED_AT_ONCE < len(connections):
                yield start

    def _renew(self, connection: Connection, renewed: Renewed) -> bool:
        """Whether delivery plans have to be forgotten for this."""
        identity = connection.identity
        found = renewed(identity)
        if found is None:
            connection.identity = replace(identity, rights=NOTHING)  # its will is not published either
            connection.close("its user may not connect any more")
            return False
        connection.identity = found
        session = connection.claimed  # None while it waits for one, which gets the rights with it
        return session is not None and session.set_rights(found.rights) and session.subscriptions_held > 0


async def _go_on(work: Iterator[int]) -> None:
    for _ in work:
        await asyncio.sleep(0)
