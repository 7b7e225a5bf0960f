"""Routes: the topic filters for which this node has clients. Other nodes send it messages by them."""

from collections.abc import Iterable
from math import log2

from _speedups.cluster.journal import ClusterJournal
from _speedups.codec.topics import is_shared

ONLY_PERSISTENT = 8  # bit of a route; as an option of the other node's subscription it is Retain As Published
EXACT_MEMBERS = 8  # numbers up to this one are announced exactly, greater ones as powers of two


class Routes:
    """Counts the sessions per filter; publishes a route with the first of them, and removes it with the last.

    A route's QoS is the highest QoS of the clean sessions with its filter: messages of QoS 1 and 2 for persistent
    sessions go through their queues. The QoS only grows; lowering it would save little. Filters of $SYS have no route:
    each node publishes there to its own clients.

    A route has a bit more while only persistent sessions have its filter: every node has their subscriptions, so links
    count the route only without it (`_speedups/routing/interest.pyx`). Nodes of earlier versions don't look at it.

    The route of a shared subscription has the number of its connected members too, in the bits above the QoS. Other
    nodes divide messages of QoS 0 by these numbers.
    """

    def __init__(self, journal: ClusterJournal) -> None:
        self._journal = journal
        self._known: dict[bytes, list[int]] = {}  # filter -> [sessions, QoS, announced, clean sessions]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, name: bytes, qos: int = 0, *, clean: bool) -> None:
        """One more session has the filter."""
        if is_local(name):
            return
        known = self._known.setdefault(name, [0, -1, -1, 0])
        known[0] += 1
        known[3] += clean
        self.raise_to(name, qos)

    def raise_to(self, name: bytes, qos: int) -> None:
        """A session with the filter has this QoS."""
        if is_local(name):
            return
        known = self._known[name]
        known[1] = max(known[1], qos)
        self._announce(name, known)

    def remove(self, names: Iterable[bytes], *, clean: bool) -> None:
        """One session less has each of these filters."""
        for name in names:
            if is_local(name):
                continue
            known = self._known[name]
            known[0] -= 1
            known[3] -= clean
            if not known[0]:
                del self._known[name]
                self._journal.change(("unroute", name))
            else:
                self._announce(name, known)

    def _announce(self, name: bytes, known: list[int]) -> None:
        """Publish the route if the other nodes know another one."""
        sessions, qos, announced, clean = known
        value = qos | (code_of(sessions) << 2 if is_shared(name) else 0 if clean else ONLY_PERSISTENT)
        if value != announced:
            known[2] = value
            self._journal.change(("route", name, value))


def code_of(count: int) -> int:
    """A number of members in six bits: itself if it is small; 9 is 16, and each further one is twice as much.

    So few joins of a large group change it.
    """
    return count if count <= EXACT_MEMBERS else round(log2(count)) + 5


def is_local(name: bytes) -> bool:
    """Whether a topic filter matches $SYS only."""
    return name.startswith(b"$SYS/") or name == b"$SYS"
