"""Among: the rules between the shards of a node, for a part of one shard. With one shard there is nothing to do."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from .._speedups.cluster.sharded_journal import ShardedJournal, shard_of
from ..broker.core.data_plane import DataPlane
from .peers.node_link import NodeLink
from .replication.barrier import Barrier
from .replication.flush import Flush
from .replication.group_memberships import GroupMemberships
from .replication.late_retained import LateRetained

LOOK_SECONDS = 0.1  # between looks for a heartbeat that is due


class OneShard(Protocol):
    """A shard, as the rules between shards see it."""

    link: NodeLink

    @property
    def sessions_stored(self) -> int:
        """The persistent sessions of the shard."""

    @property
    def is_first(self) -> bool:
        """Whether this node has the smallest id of the live ones."""

    def bury(self, node: bytes) -> None:
        """Declare a node dead."""

    def look_for_orphans(self) -> None:
        """A node is dead."""


class Among:
    """The rules between shards.

    Args:
        plane: of the node.
        journal: of the node; None: there is one shard.
        loop: of the node.
    """

    def __init__(self, plane: DataPlane, journal: ShardedJournal | None, loop: asyncio.AbstractEventLoop) -> None:
        self._plane = plane
        self.count = 1 if journal is None else journal.shards
        self.memberships = GroupMemberships(journal)
        self.tenant_totals: dict[int, dict[bytes, int]] = {}  # bytes in queues elsewhere, by tenant
        self.late = LateRetained(plane, lambda: 0 if self._flush is None else self._flush.away)
        self._flush = None if journal is None else Flush(plane.turn, loop)
        self._shards: Sequence[OneShard] = []
        self._come = 0  # calls of `others_too`
        self._all_are_here = asyncio.Event()

    async def others_too(self, keep_alive: Callable[[], Awaitable[None]]) -> None:
        """Wait until this has been called for each shard.

        Args:
            keep_alive: sends a heartbeat if one is due.
        """
        if self.count == 1:
            return
        self._come += 1
        all_are_here = self._all_are_here
        if self._come % self.count == 0:
            self._all_are_here = asyncio.Event()
            all_are_here.set()
        while not all_are_here.is_set():
            await keep_alive()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(all_are_here.wait(), LOOK_SECONDS)

    def attach(self, shards: Sequence[OneShard]) -> None:
        """Connect the shards."""
        self._shards = shards
        self.memberships.attach(lambda number: shards[number].is_first)

    @property
    def links(self) -> list[NodeLink]:
        """The links of all shards."""
        return [shard.link for shard in self._shards]

    def link_of(self, name: bytes) -> NodeLink:
        """The link of the shard of a client or a group."""
        return self._shards[self.home_of(name)].link

    def home_of(self, name: bytes) -> int:
        """The shard of a node, a client or a group."""
        return shard_of(name, self.count)

    def touched(self, *names: bytes) -> int:
        """The shards of some names, as bits."""
        return sum({1 << self.home_of(name) for name in names})

    @property
    def flush(self) -> Flush | None:
        """The waits for several shards; None: there is one shard."""
        return self._flush

    def barrier(self, barrier: Barrier, link: NodeLink) -> Barrier | Flush:
        """The barrier for SUBACK, with the barrier of one more shard."""
        if self._flush is None:
            return barrier
        self._flush.attach(barrier, link)
        return self._flush

    def flushed(self, done: Callable[[], object], shards: int = -1) -> None:
        """Call `done` when all that this node has published so far is in shards; with one shard it is in order.

        Args:
            done: what to do.
            shards: as bits; -1 = all.
        """
        if self._flush is None:
            done()
        else:
            self._flush.when_flushed(done, shards & ((1 << self.count) - 1))

    def link_back(self, link: NodeLink) -> None:
        """The link of a shard is back."""
        if self._flush is not None:
            self._flush.link_back(link)

    def died(self, where: OneShard, node: bytes) -> None:
        """A node is dead in a shard: it is dead in all, before this node does anything there that follows from it."""
        for shard in self._shards:
            if shard is not where:
                shard.bury(node)
            shard.look_for_orphans()

    def most_sessions(self, shard: OneShard) -> int:
        """The sessions that a shard may have; 0 = any number."""
        most = self._plane.config.limits.max_sessions
        if not most or self.count == 1:
            return most
        return max(1, most - sum(other.sessions_stored for other in self._shards if other is not shard))
