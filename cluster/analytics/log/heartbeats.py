"""The time up to which the logs are complete, by the heartbeats of nodes.

A node that has lost Redis logs later the messages that its clients publish until Redis is back. Until then its log
looks as if they were silent, and as if nothing more of that time came. So the clock of the job must not pass its last
heartbeat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....broker import logs
from ..errors import RedisAway

PATIENCE = 5.0  # seconds without a heartbeat after which a node counts as away
SETTLE = 5.0  # seconds after its return in which it logs what has waited
DEAD = 600.0  # seconds without a heartbeat after which it is dead, with no node left to declare that

log = logs.get("flockmq.analytics")


@dataclass
class _Node:
    count: bytes
    beat_at: float  # when its count was first seen
    away_since: float | None = None  # its log is complete up to then
    back_at: float | None = None  # it beats again


class Heartbeats:
    """Looks at the heartbeats of all nodes; to be called some times a second.

    Args:
        counts: returns the count of heartbeats of each live node; raises RedisAway.
    """

    def __init__(self, counts: Callable[[], Mapping[bytes, bytes]]) -> None:
        self._counts = counts
        self._nodes: dict[bytes, _Node] = {}
        self._looked_at: float | None = None  # when Redis has last replied
        self.complete_until = float("inf")  # seconds since 1970; infinite: up to now

    def look(self, now: float | None = None) -> None:
        """Look, and set `complete_until`. While Redis is away, it stays.

        Args:
            now: seconds since 1970.
        """
        now = time.time() if now is None else now
        before = self._looked_at
        try:
            counts = self._counts()
        except RedisAway as error:
            if before is not None and now - before > PATIENCE:
                self._hold(min(before, self.complete_until), error)
            return
        self._looked_at = now
        # If Redis was away, all nodes were, too: this process has no other way to them.
        all_away = before is not None and now - before > PATIENCE
        self._nodes = {node: self._seen(node, count, now, before, all_away=all_away) for node, count in counts.items()}
        away = [node.away_since for node in self._nodes.values() if node.away_since is not None]
        self._hold(min(away, default=float("inf")), "nodes send no heartbeats")

    def _seen(self, name: bytes, count: bytes, now: float, before: float | None, *, all_away: bool) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            return _Node(count, now)
        if all_away and before is not None:
            node.away_since = before if node.away_since is None else node.away_since
            node.back_at, node.beat_at = None, now if node.count == count else node.beat_at
        if count != node.count:
            if now - node.beat_at > PATIENCE and node.away_since is None:
                node.away_since = node.beat_at
            if node.away_since is not None and (node.back_at is None or now - node.beat_at > PATIENCE):
                node.back_at = now
            node.count, node.beat_at = count, now
        elif now - node.beat_at > DEAD:
            node.away_since = None
        elif now - node.beat_at > PATIENCE and node.away_since is None:
            node.away_since, node.back_at = node.beat_at, None
        if node.back_at is not None and node.beat_at - node.back_at > SETTLE:
            node.away_since = node.back_at = None
        return node

    def _hold(self, until: float, reason: object) -> None:
        if until != float("inf") and self.complete_until == float("inf"):
            log.warning("logs may lack messages: until then nothing is called silent or over", reason=reason)
        self.complete_until = until
