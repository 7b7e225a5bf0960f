"""Routes: the topic filters for which this node has clients. Other nodes send it messages by them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import log2

from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.cluster.peer import Way
from ..._speedups.codec.topics import is_shared
from ...broker.core.subscription_options import MAXIMUM_QOS
from ...broker.events.topics import ROOT as EVENTS
from .group_memberships import GroupMemberships

ONLY_PERSISTENT = 8  # as an option of the other node's subscription: Retain As Published
LINGER_SECONDS = 120.0  # that a route stays without a session: most clients that have lost a connection are back soon
WITHDRAWN_AT_ONCE = 1000  # in one turn; no client waits for that
IN_QUEUES = 1  # place in the fields of a route
EXACT_SUBSCRIBERS = 8  # numbers up to this one are announced exactly, greater ones as powers of two


@dataclass(slots=True)
class Route:
    """A topic filter of this node's clients.

    Attributes:
        sessions: with the filter.
        clean: the clean nodes of them.
        direct: nodes that get messages of QoS 1 and 2 from no queue: clean ones, and nodes that subscribe with QoS 0.
        qos: the highest of clean sessions.
        announced: to the other nodes: as `options_of` has it; empty = nothing.
    """

    sessions: int = 0
    clean: int = 0
    direct: int = 0
    qos: int = 0
    announced: tuple[int, ...] = ()


class Routes:
    """Counts the sessions per filter; publishes a route with the first of them, and removes it after the last.

    When the connection of a persistent session ends, its routes linger: if the client comes back to this node, no node
    has to apply a change. While a route lingers, this node gets messages of QoS 0 for it, and drops them. A route by
    which more than these come does not linger, nor does one of a shared subscription, which has no subscriber then.

    A route's QoS is the highest QoS of the clean sessions with its filter: messages of QoS 1 and 2 for persistent
    sessions go through their queues. The QoS only grows; lowering it would save little. Filters of $SYS have no route:
    each node publishes there to its own clients. Only those of events have one.

    A route says whether only persistent sessions have its filter: every node has their subscriptions, so links don't
    count such a route (`_speedups/routing/interest.pyx`). It also says whether all its sessions get messages of QoS 1
    and 2 through their queues.

    The route of a shared subscription has the number of its connected subscribers instead, as `code_of` has it. Other
    nodes divide messages of QoS 0 by these numbers.
    """

    def __init__(self, journal: ClusterJournal, node: bytes = b"", memberships: GroupMemberships | None = None) -> None:
        self._journal = journal
        self._node = node
        self._memberships = memberships or GroupMemberships(None)
        self._known: dict[bytes, Route] = {}  # by filter
        self._lingering: dict[bytes, float] = {}  # filters without a session -> since when, monotonic; the oldest first

    def __len__(self) -> int:
        return len(self._known)

    def add(self, name: bytes, options: int, *, clean: bool) -> None:
        """One more session has the filter, with these options."""
        if not is_local(name):
            self._lingering.pop(name, None)
            route = self._known.setdefault(name, Route())
            route.sessions += 1
            route.clean += clean
            self._grow(name, route, options & MAXIMUM_QOS, clean)

    def change(self, name: bytes, before: int, options: int, *, clean: bool) -> None:
        """A session with the filter has other options."""
        if not is_local(name):
            route = self._known[name]
            route.direct -= is_direct(before, clean)
            self._grow(name, route, options & MAXIMUM_QOS, clean)

    def remove(self, subscriptions: Iterable[tuple[bytes, int]], *, clean: bool, linger: bool = False) -> None:
        """One session less has each of these filters, with these options; with `linger` it may come back soon."""
        for name, options in subscriptions:
            if is_local(name):
                continue
            route = self._known[name]
            route.sessions -= 1
            route.clean -= clean
            route.direct -= is_direct(options, clean)
            if route.sessions:
                self._announce(name, route)
            elif linger and route.announced[IN_QUEUES]:
                self._lingering[name] = time.monotonic()
            else:
                self._withdraw(name)

    def tick(self, now: float) -> None:
        """Withdraw routes that have lingered for long enough."""
        for name, since in [*islice(self._lingering.items(), WITHDRAWN_AT_ONCE)]:
            if now - since < LINGER_SECONDS:
                break
            del self._lingering[name]
            self._withdraw(name)

    def _withdraw(self, name: bytes) -> None:
        del self._known[name]
        self._journal.change(("unroute", name, *self._memberships.node_parts(self._journal, name, self._node)))

    def _grow(self, name: bytes, route: Route, qos: int, clean: bool) -> None:
        route.direct += is_direct(qos, clean)
        if clean:
            route.qos = max(route.qos, qos)
        self._announce(name, route)

    def _announce(self, name: bytes, route: Route) -> None:
        """Publish the route if the other nodes know another one."""
        if is_shared(name):
            fields = (route.qos, 0, 0, code_of(route.sessions))
        else:
            fields = (route.qos, int(not route.direct), int(not route.clean), 0)
        if fields != route.announced:
            route.announced = fields
            elsewhere = self._memberships.node_joins(self._journal, name, self._node)
            self._journal.change(("route", name, *fields, *elsewhere))


def is_direct(options: int, clean: bool) -> bool:
    """Whether a session gets messages of QoS 1 and 2 without a queue in Redis."""
    return clean or not options & MAXIMUM_QOS


def options_of(qos: int, in_queues: int, only_persistent: int, subscribers: int) -> int:
    """The options with which another node subscribes to a filter, from its route.

    The QoS of the subscription says how messages of QoS 1 and 2 go there, so that the highest of several routes counts.

    Args:
        qos: the highest of the clean sessions.
        in_queues: 1 = messages of QoS 1 and 2 reach all sessions through queues.
        only_persistent: 1 = no clean session has the filter.
        subscribers: of a shared subscription, as `code_of` has them; 0: it is none.
    """
    if subscribers:
        return qos | subscribers << 2
    way = Way.IN_QUEUES if in_queues else Way.LOGGED if qos else Way.AT_MOST_ONCE
    return way | ONLY_PERSISTENT * only_persistent


@lru_cache(1000)
def stored_options(route: bytes) -> int:
    """The options of a route as Redis has it. There are few."""
    return options_of(*map(int, route.split()))


def code_of(count: int) -> int:
    """A number of subscribers in six bits: itself if it is small; 9 is 16, and each further one is twice as much.

    So few joins of a large group change it.
    """
    return count if count <= EXACT_SUBSCRIBERS else round(log2(count)) + 5


def is_local(name: bytes) -> bool:
    """Whether a topic filter matches $SYS only, and not events alone, which nodes send to each other."""
    return (name.startswith(b"$SYS/") and not name.startswith(EVENTS)) or name == b"$SYS"
