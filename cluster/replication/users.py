"""Users of the cluster, in Redis: read when they log in, cached while the link reports changes.

The cache is exact while the node is connected: replies and reports of changes arrive in the order of Redis. During an
outage only cached users may log in. When the link is back, the node reads all cached users again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from ...broker.auth.cluster_users import Away
from ..peers.node_link import NodeLink
from ..redis.link import LinkLost, Reply, ReplyError

MAX_CACHED = 100_000  # users without a connection; those with one stay
AT_ONCE = 500  # users read with one command


class Users:
    """The users that this node has read.

    Args:
        link: of this node.
    """

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._known: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._on_changed: Callable[[set[str]], object] = lambda names: None
        self._connected: Callable[[], set[str]] = set
        self._room = MAX_CACHED

    def attach(self, on_changed: Callable[[set[str]], object], connected: Callable[[], set[str]]) -> None:
        """Call `on_changed` with the names of cached users that have changed.

        `connected` returns the names of users that have a connection: they stay in the cache, since a change of an
        absent user is not noticed.
        """
        self._on_changed, self._connected = on_changed, connected

    def known(self, username: str) -> bytes | None:
        """The JSON of a cached user."""
        return self._known.get(username)

    async def find(self, username: str) -> bytes | None:
        """The JSON of a user; None: there is none.

        Raises:
            Away: Redis is away, and the user is not cached.
        """
        if username in self._known:
            self._known.move_to_end(username)
            return self._known[username]
        if not self._link.connected:
            raise Away
        found: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def read(reply: Reply) -> None:
            if isinstance(reply, bytes):
                self._learn(username, reply)
            if not found.done():
                found.set_result(reply)

        self._link.call(read, "HGET", self._link.keys.users, username)
        reply = await found
        if reply is not None and not isinstance(reply, bytes):
            raise Away
        return reply

    def _learn(self, username: str, data: bytes | None) -> bool:
        """Cache a user; returns whether that is a change."""
        changed = self._known.pop(username, None) != data
        if data is not None:
            self._known[username] = data
            if len(self._known) > self._room:
                self._trim()
        return changed

    def _trim(self) -> None:
        """Forget the users without a connection that logged in longest ago."""
        connected = self._connected()
        absent = [name for name in self._known if name not in connected]
        for name in absent[: max(len(absent) - MAX_CACHED, 0)]:
            del self._known[name]
        self._room = len(self._known) + MAX_CACHED // 10  # so that not each new user costs a search

    def refresh(self, username: bytes) -> None:
        """A user has changed: read it again if it is cached."""
        name = username.decode("utf-8", "replace")
        if name in self._known:
            self._read([name])

    def refresh_all(self) -> None:
        """Read all cached users again: reports of changes were lost with the link."""
        names = list(self._known)
        for start in range(0, len(names), AT_ONCE):
            self._read(names[start : start + AT_ONCE])

    def _read(self, names: list[str]) -> None:
        def read(reply: Reply) -> None:
            if isinstance(reply, (LinkLost, ReplyError)):
                return  # `refresh_all` follows when the link is back
            changed = {name for name, data in zip(names, reply, strict=True) if self._learn(name, data)}
            if changed:
                self._on_changed(changed)

        self._link.call(read, "HMGET", self._link.keys.users, *names)
