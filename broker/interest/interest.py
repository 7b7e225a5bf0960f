"""The topic filters that this broker wants messages of: of its clients, and of the brokers behind it.

Another broker gets the filters within the topics that it can send, with the path to the subscriber. A broker is not
asked for messages that are wanted by way of itself. So no interest goes round in a ring and keeps itself alive.
"""

import time

from ..._speedups.routing.interest import wanted_filters
from ..core.data_plane import DataPlane
from ..core.topic_filters import STREAM
from .filters import Rows, collapsed, intersection, reduced
from .neighbours import Neighbours

RECORDS_AT_ONCE = 2000  # that become entries of the tree: some milliseconds
VISITS = 50_000  # nodes of the tree of subscriptions that are looked at; with more filters the scope is wanted
LINGER = 3.0  # seconds for which a filter stays wanted after its last subscriber: it may come back
SHARE_OF_TIME = 20  # a calculation is followed by a pause of so many times its duration
STREAM_LEVELS = [STREAM.rstrip("/").encode(), b"+"]  # `$stream/SINCE/FILTER`


class Interest:
    """The wanted filters of a broker.

    Args:
        data_plane: of the node.
        neighbours: of the broker.
    """

    def __init__(self, data_plane: DataPlane, neighbours: Neighbours) -> None:
        self._filters = data_plane.router.filters
        self._sessions = data_plane.sessions
        self.neighbours = neighbours

    @property
    def version(self) -> tuple[int, int]:
        """Another one after each change."""
        return self._filters.changes, self.neighbours.version

    def own(self, scope: str, most: int) -> list[str]:
        """The filters of the clients within a scope; more than `most` are the scope itself."""
        if not self._sessions.leave_records(RECORDS_AT_ONCE):  # only the tree can be searched by levels
            return [scope]
        passed_over = self.neighbours.sessions
        levels = [level.encode() for level in scope.split("/")]
        found = wanted_filters(self._filters, levels, passed_over, most, VISITS)
        streams = wanted_filters(self._filters, STREAM_LEVELS + levels, passed_over, most, VISITS)
        if found is None or streams is None:
            return [scope]
        names = [name.decode() for name in found]
        names += [name.decode().split("/", len(STREAM_LEVELS))[-1] for name in streams]
        parts = (intersection(name, scope) for name in names)
        return list(dict.fromkeys(part for part in parts if part is not None))

    def of_others(self, scopes: list[str], peer: str) -> Rows:
        """The filters of other neighbours than the peer: a path begins with its neighbour, and none has the peer."""
        found: Rows = {}
        for neighbour in self.neighbours.reporting():
            for name, path in neighbour.rows.items():
                parts = () if peer in path else (intersection(name, scope) for scope in scopes)
                for part in parts:
                    if part is not None and (part not in found or len(path) < len(found[part])):
                        found[part] = path
        return found


class Watch:
    """The wanted filters, as one neighbour is to know them.

    Args:
        interest: of this broker.
        scopes: topic filters of the messages that the neighbour can send.
        peer: identity of the neighbour.
        most: rows; with more, each scope is one.
    """

    def __init__(self, interest: Interest, scopes: list[str], peer: str, most: int) -> None:
        self._interest = interest
        self.scopes = scopes
        self._peer = peer
        self._most = most
        self._version = (-1, -1)
        self._not_before = 0.0
        self._lingering: dict[str, float] = {}  # filters of this broker's clients: when they were wanted last
        self.rows: Rows = {}

    def changed(self) -> bool:
        """Calculate the rows again, if they may have changed; whether they have."""
        now, version = time.monotonic(), self._interest.version
        if now < self._not_before:
            return False
        is_over = any(now - last > LINGER for last in self._lingering.values())
        if version == self._version and not is_over:
            return False
        first = self._version == (-1, -1)
        self._version = version
        rows = self._calculate(now)
        self._not_before = time.monotonic() + SHARE_OF_TIME * (time.monotonic() - now)
        changed = rows != self.rows
        self.rows = rows
        return changed or first

    def _calculate(self, now: float) -> Rows:
        own = {name for scope in self.scopes for name in self._interest.own(scope, self._most)}
        before = {name for name, path in self.rows.items() if not path}
        for name in own:
            self._lingering.pop(name, None)
        for name in before - own:
            self._lingering.setdefault(name, now)
        self._lingering = {name: since for name, since in self._lingering.items() if now - since <= LINGER}
        found = self._interest.of_others(self.scopes, self._peer)
        found.update(dict.fromkeys((*own, *self._lingering), ()))
        found = reduced(found)
        return found if len(found) <= self._most else collapsed(found, self.scopes)
