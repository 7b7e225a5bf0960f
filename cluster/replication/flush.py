"""Flush: waits for what no single shard can order. All that this node has done is in all shards, or all has arrived.

A subscription of a client takes effect at all nodes when each shard in which it made a change says so, and what was
retained before has arrived from every shard. And a session is released when all that its connection has published is
in all shards: so it is before what its next connection publishes (deploy/docs/CLUSTER.md, "Shards").
"""

from collections.abc import Callable
from functools import partial

from ..._speedups.session.turn import Turn
from ..peers.node_link import NodeLink
from ..redis.link import LinkLost, Reply
from .barrier import Barrier

Done = Callable[[], object]


class Flush:
    """The waits of a node.

    Args:
        turn: of the node.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._barriers: list[Barrier] = []
        self._links: list[NodeLink] = []
        self._waiting: list[Done] = []  # for the next round
        self._served: list[Done] = []  # by the round that is under way
        self._missing: set[int] = set()  # links whose replies the round lacks

    def attach(self, barrier: Barrier, link: NodeLink) -> None:
        """One more shard."""
        self._barriers.append(barrier)
        self._links.append(link)

    # ---- as a barrier ----

    @property
    def is_behind(self) -> bool:
        """Whether a node may lack a change of this node, or a shard does."""
        return any(barrier.is_behind for barrier in self._barriers)

    def when_applied(self, done: Done) -> None:
        """Call `done` when all that is recorded so far is stored, all nodes have applied it, and this one has received
        all that was before."""
        left = len(self._barriers)

        def applied() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._ask(done)

        def stored() -> None:
            for barrier in self._barriers:
                barrier.when_last_applied(applied)

        self._turn.after_commit(stored)

    # ---- the end of a connection ----

    def when_flushed(self, done: Done) -> None:
        """Call `done` when all that this node has recorded and published so far is in all shards."""
        self._turn.after_commit(partial(self._ask, done))

    # ---- a round: every link replies ----

    def _ask(self, done: Done) -> None:
        self._waiting.append(done)
        if not self._served:
            self._begin()

    def _begin(self) -> None:
        self._served, self._waiting = self._waiting, []
        self._missing = set(range(len(self._links)))
        for number, link in enumerate(self._links):
            if link.connected:
                link.call(partial(self._replied, number), "PING")

    def _replied(self, number: int, reply: Reply) -> None:
        if isinstance(reply, LinkLost) or number not in self._missing:
            return  # `link_back` asks again
        self._missing.discard(number)
        if self._missing:
            return
        served, self._served = self._served, []
        for done in served:
            done()
        if self._waiting and not self._served:
            self._begin()

    def link_back(self, link: NodeLink) -> None:
        """A link carries calls again."""
        number = self._links.index(link)
        if number in self._missing:
            link.call(partial(self._replied, number), "PING")
