"""Users and roles of a cluster, in Redis. The functions that change them report each change to all nodes."""

from collections.abc import Callable, Sequence
from typing import Any

from ..._speedups.base.msgpack import pack
from ...broker.auth.access_store import AccessStore, Change, Kind
from ...broker.errors import NotNow
from ..peers.node_link import NodeLink
from ..redis.link import GONE, LinkLost, Reply, ReplyError, away_is_not_now


class RedisAccess(AccessStore):
    """Reads and changes documents in Redis.

    Args:
        link: of this node.
        replicas: that must have a change before it is confirmed.
    """

    def __init__(self, link: NodeLink, replicas: int) -> None:
        self._link = link
        self._replicas = replicas

    @property
    def connected(self) -> bool:
        return self._link.connected

    # ---- reports ----

    async def load(self) -> None:
        """Read the roles, before reports of changes are processed. Raises as `NodeLink.ask`."""
        self._roles_read(await self._link.ask("HGETALL", self._link.keys.access(Kind.ROLE)))

    def link_back(self) -> None:
        """The link is back: reports of changes were lost."""

        def read(reply: Reply) -> None:
            if not isinstance(reply, (LinkLost, ReplyError)):  # else this is called again
                self._roles_read(reply)

        self._link.call(read, "HGETALL", self._link.keys.access(Kind.ROLE))
        self._watcher.reports_lost()

    def _roles_read(self, reply: Any) -> None:
        found = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        self._watcher.roles_read({_text(name): document for name, document in found.items()})

    def receive(self, kind: bytes, documents: list[bytes]) -> None:
        """A node has changed documents: names and documents in turn; empty = there is none."""
        found = zip(map(_text, documents[::2]), documents[1::2], strict=True)
        self._watcher.changed(Kind(kind.decode()), {name: document or None for name, document in found})

    # ---- documents ----

    def read(self, kind: Kind, names: Sequence[str], then: Callable[[list[bytes | None] | None], object]) -> None:
        def read(reply: Reply) -> None:
            then(None if isinstance(reply, (LinkLost, ReplyError)) else reply)

        self._link.call(read, "HMGET", self._link.keys.access(kind), *names)

    async def find(self, kind: Kind, names: Sequence[str]) -> list[bytes | None]:
        self._check()
        with away_is_not_now():
            found: list[bytes | None] = await self._link.ask("HMGET", self._link.keys.access(kind), *names)
        return found

    async def page(self, kind: Kind, after: str, beginning: str, limit: int) -> list[tuple[str, bytes]]:
        self._check()
        with away_is_not_now():
            names, documents = await self._link.ask_function("page_access", kind, after, beginning, limit)
        return [(_text(name), document) for name, document in zip(names, documents, strict=True) if document]

    async def change(self, kind: Kind, changes: Sequence[Change]) -> list[bool]:
        self._check()
        listed = [part for name, before, after in changes for part in (name.encode(), before or b"", after or b"")]
        with away_is_not_now():
            outcome, *made = await self._link.ask_function("change_access", kind, pack(listed))
            if outcome == b"gone":
                raise NotNow(GONE)
            await self._link.copied(self._replicas)
        return [bool(each) for each in made[0]]

    def _check(self) -> None:
        if not self._link.connected:
            raise NotNow("Redis is away")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
