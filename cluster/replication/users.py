"""Users of the cluster, in Redis: looked up when they come, kept while the link carries news of their changes.

What is known here is exact while the node is connected, since replies and news come in the order in which Redis did
things. In an outage those known may still come in, and nobody else; when the link is back, all are read again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import hiredis

from broker.auth.cluster_users import Away
from cluster.redis.link import LinkLost, Reply

if TYPE_CHECKING:
    from cluster.coordinator import Cluster

KNOWN_MOST = 100_000
AT_ONCE = 500  # users read with one command


class Users:
    """The users, as this node knows them.

    Args:
        cluster: it belongs to.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._known: OrderedDict[str, bytes] = OrderedDict()  # that was looked up last comes last
        self._changed: Callable[[set[str]], object] = lambda names: None

    def attach(self, changed: Callable[[set[str]], object]) -> None:
        self._changed = changed

    def known(self, username: str) -> bytes | None:
        """The JSON of a user who was found before."""
        return self._known.get(username)

    async def find(self, username: str) -> bytes | None:
        """The JSON of a user; None: there is none.

        Raises:
            Away: Redis can't be asked, and the user isn't known here.
        """
        if username in self._known:
            self._known.move_to_end(username)
            return self._known[username]
        if not self._cluster.connected:
            raise Away
        found: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def came(reply: Reply) -> None:
            if isinstance(reply, bytes):
                self._learn(username, reply)
            if not found.done():
                found.set_result(reply)

        self._cluster.call(came, "HGET", self._cluster.keys.users, username)
        reply = await found
        if reply is not None and not isinstance(reply, bytes):
            raise Away
        return reply

    def _learn(self, username: str, data: bytes | None) -> bool:
        """Whether that is news."""
        is_news = self._known.pop(username, None) != data
        if data is not None:
            self._known[username] = data
            if len(self._known) > KNOWN_MOST:
                self._known.popitem(last=False)
        return is_news

    def heard(self, username: bytes) -> None:
        """Somebody has changed a user."""
        name = username.decode("utf-8", "replace")
        if name in self._known:
            self._read([name])

    def read_again(self) -> None:
        """What was said while there was no link was not heard."""
        names = list(self._known)
        for start in range(0, len(names), AT_ONCE):
            self._read(names[start : start + AT_ONCE])

    def _read(self, names: list[str]) -> None:
        def came(reply: Reply) -> None:
            if isinstance(reply, (LinkLost, hiredis.ReplyError)):
                return  # all are read again when the link is back
            news = {name for name, data in zip(names, reply, strict=True) if self._learn(name, data)}
            if news:
                self._changed(news)

        self._cluster.call(came, "HMGET", self._cluster.keys.users, *names)
