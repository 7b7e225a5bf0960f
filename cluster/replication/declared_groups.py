"""Groups in a cluster: Redis keeps the declarations, and each is a change that all nodes apply."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from ..._speedups.base.msgpack import pack
from ..._speedups.session.turn import COUNTERS
from ...broker import logs
from ...broker.config.declared_group import DeclaredGroup, differences
from ...broker.coordination.coordinator import Groups
from ...broker.core.data_plane import DataPlane
from ...broker.errors import NotNow
from ..peers.node_link import NodeLink
from ..redis.link import GONE, LinkError, LinkLost, Reply, ReplyError, away_is_not_now
from .barrier import Barrier

SHARED_DISCARDED = COUNTERS.index("shared_discarded")

log = logs.get("flockmq.cluster")


class DeclaredGroups(Groups):
    """Declares groups, and removes them and their messages.

    Args:
        plane: of this node.
        link: of this node.
        barrier: of this node.
        on_changed: called with the number of a change that this node has made, and its records.
    """

    def __init__(
        self,
        plane: DataPlane,
        link: NodeLink,
        barrier: Barrier,
        on_changed: Callable[[int, list[tuple[Any, ...]]], object],
    ) -> None:
        self._plane = plane
        self._link = link
        self._barrier = barrier
        self._on_changed = on_changed
        self._configured: dict[bytes, bytes] = {}  # group -> settings that this node's configuration had last

    async def waiting(self, groups: list[bytes]) -> dict[bytes, tuple[int, int]]:
        if not groups:
            return {}
        with away_is_not_now():
            found = await self._link.ask_function("waiting", pack(groups))
        return dict(zip(groups, zip(found[::2], found[1::2], strict=True), strict=True))

    async def purge(self, name: bytes) -> int:
        with away_is_not_now():
            return int(await self._link.ask_function("purge_group", name))

    async def declare(self, group: DeclaredGroup) -> None:
        with away_is_not_now():
            await self._change(group.name.encode(), group.stored)
            await self._applied()

    async def remove(self, name: bytes) -> int | None:
        with away_is_not_now():
            if not await self._link.ask("HEXISTS", self._link.keys.declared_groups, name):
                return None
            dropped = await self._change(name, b"")
            self._plane.turn.count(SHARED_DISCARDED, dropped)
            await self._applied()
            return dropped

    async def declare_all(self, groups: Iterable[DeclaredGroup]) -> None:
        """Declare the groups of the configuration, as far as Redis answers; the last declaration of a group is valid.

        The log has a warning if another configuration, or an operator, has declared a group with other settings.
        """
        for group in groups:
            name, stored = group.name.encode(), group.stored
            try:
                before = await self._link.ask("HGET", self._link.keys.declared_groups, name)
                await self._change(name, stored)
            except (LinkLost, LinkError, NotNow) as error:
                log.error("a group of the configuration is not declared; reload it", group=group.name, reason=error)
                continue
            if before and before not in (stored, self._configured.get(name)):
                log.warning(
                    "this node's configuration replaces other settings of a group, which another configuration or an "
                    "operator declared; make shared.groups the same at all nodes",
                    group=group.name,
                    changes=differences(before, stored),
                )
            self._configured[name] = stored
        self._plane.end_turn()

    async def _change(self, name: bytes, settings: bytes) -> int:
        """Declare the group in Redis and here, at once with the reply; returns the number of dropped messages."""

        def replied(reply: Reply) -> None:
            if not isinstance(reply, (LinkLost, ReplyError)) and reply[0] != b"gone" and reply[1]:
                self._on_changed(reply[1], [("group", name, settings), ("mark", reply[3])])

        reply = await self._link.ask_function_first(replied, "declare_group", name, settings)
        if reply[0] == b"gone":
            raise NotNow(GONE)
        return int(reply[2])

    async def _applied(self) -> None:
        """Wait until all nodes have applied the changes of this node."""
        applied = asyncio.Event()
        self._barrier.when_applied(applied.set)
        self._plane.end_turn()
        await applied.wait()
