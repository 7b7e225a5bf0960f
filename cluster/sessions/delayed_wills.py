"""The delayed wills of a cluster: no node owns them, so that any node lists and cancels them in Redis (G6)."""

from collections.abc import AsyncIterator, Callable

from ...broker.coordination.coordinator import DelayedWills
from ...broker.core.will import Will
from ..peers.node_link import NodeLink
from ..redis.link import LinkError, LinkLost
from .wills import decode_will, way_back_of

STEP = 1000  # entries read at a time: other clients of Redis must not wait


class RedisWills(DelayedWills):
    """The wills of ended connections that wait for their delay.

    Args:
        link: of this node.
        is_first: whether this node is the cluster's first, which lists them.
    """

    def __init__(self, link: NodeLink, is_first: Callable[[], bool]) -> None:
        self._link = link
        self._is_first = is_first

    async def waiting(self) -> list[tuple[bytes, Will, int]]:
        """Client id, will, seconds until it is published; empty at all nodes but one, and without a link."""
        if not self._is_first():
            return []
        keys = self._link.keys
        try:
            now = int(await self._link.ask("HGET", keys.clock, "t") or 0)
            due = {epoch: int(float(time)) async for epoch, time in self._pairs("ZSCAN", keys.delayed)}
            stored = {epoch: will async for epoch, will in self._pairs("HSCAN", keys.delayed_wills)}
        except (LinkLost, LinkError):
            return []
        return [
            (*decode_will(will), max(0, -((now - due[epoch]) // 1000)))
            for epoch, will in stored.items()
            if epoch in due and way_back_of(will) is None  # else it was published since, or is no will
        ]

    async def cancel(self, client_id: bytes) -> bool:
        """Discard the will of a client; False if none waits, or this node has no link.

        The will goes first: a deadline without a will is dropped when it is due, or when the client connects.
        """
        keys = self._link.keys
        try:
            epoch = await self._link.ask("HGET", keys.rare(client_id), "d")
            if not epoch or not await self._link.ask("HDEL", keys.delayed_wills, epoch):
                return False
            await self._link.ask("ZREM", keys.delayed, epoch)
        except (LinkLost, LinkError):
            return False
        return True

    async def _pairs(self, command: str, key: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor = b"0"
        while True:
            cursor, found = await self._link.ask(command, key, cursor, "COUNT", STEP)
            for pair in zip(found[::2], found[1::2], strict=True):
                yield pair
            if cursor == b"0":
                return
