"""Retained messages for subscriptions that were made while a shard was away.

SUBACK does not wait for such a shard. A node may have accepted a retained message before it knew the subscription, and
keep it until the shard is back. So what changes in the shard then is sent to these subscriptions as retained: until all
nodes are back, or are declared dead.
"""

from collections.abc import Callable, Iterable
from math import inf

from ..._speedups.codec.topics import is_shared, matches
from ..._speedups.session.session import Session
from ...broker.core.data_plane import DataPlane
from ...broker.core.subscription_options import MAXIMUM_QOS, RETAIN_HANDLING_SHIFT

LEASES = 2.0  # after which all nodes are back, or dead, and have stored what they kept
NOT_WANTED = 2  # Retain Handling: no retained messages


class LateRetained:
    """The subscriptions at a node that may lack retained messages.

    Args:
        plane: of the node.
        away: returns the shards that are away, as bits.
    """

    def __init__(self, plane: DataPlane, away: Callable[[], int]) -> None:
        self._plane = plane
        self._away = away
        self._exact: dict[bytes, dict[Session, tuple[int, int]]] = {}  # by filter: sessions, with QoS and identifier
        self._wild: dict[bytes, dict[Session, tuple[int, int]]] = {}  # likewise of filters with wildcards
        self._until: dict[int, float] = {}  # of each shard: when nothing is late any more, monotonic
        self._changed: dict[bytes, None] = {}  # topic names

    def note(self, shards: int, session: Session, filters: Iterable[tuple[bytes, int]], identifier: int) -> None:
        """A session has subscribed while some shards were away, or soon after one was: other nodes may be back later.

        Args:
            shards: as bits.
            session: that has subscribed.
            filters: with their options.
            identifier: of the subscription.
        """
        if not shards and not self._until:
            return
        for name, options in filters:
            if not is_shared(name) and options >> RETAIN_HANDLING_SHIFT != NOT_WANTED:
                found = self._wild if b"+" in name or b"#" in name else self._exact
                found.setdefault(name, {})[session] = options & MAXIMUM_QOS, identifier
        self._until |= {shard: inf for shard in range(shards.bit_length()) if shards >> shard & 1}

    def changed(self, shard: int, topic: bytes) -> None:
        """The retained message of a topic name has changed in a shard."""
        if shard in self._until:
            self._changed[topic] = None

    def tick(self, now: float) -> None:
        """Send what has changed; to be called several times a second.

        Args:
            now: monotonic.
        """
        away = self._away()
        if not away and not self._until:
            return
        self._until |= {shard: inf for shard in range(away.bit_length()) if away >> shard & 1}
        changed, self._changed = self._changed, {}
        for topic in changed:
            self._send(topic, topic, self._exact.get(topic, {}))
            for name, sessions in self._wild.items():
                if matches(name, topic):
                    self._send(topic, name, sessions)
        for shard, until in list(self._until.items()):
            if away >> shard & 1:
                self._until[shard] = inf
            elif until == inf:
                self._until[shard] = now + self._plane.config.cluster.lease * LEASES
            elif now > until:
                del self._until[shard]
        if not self._until:
            self._exact.clear()
            self._wild.clear()

    def _send(self, topic: bytes, topic_filter: bytes, sessions: dict[Session, tuple[int, int]]) -> None:
        for session, (qos, identifier) in list(sessions.items()):
            if session.owner is None or not self._plane.router.filters.has(session, topic_filter):
                del sessions[session]
                continue
            search = self._plane.router.retained.search(topic, qos, identifier)
            if search is not None:
                session.pull_from(search)
