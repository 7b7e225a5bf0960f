"""Flush: waits for what no single shard can order. All that this node has done is in some shards, or all has arrived.

A subscription of a client takes effect at all nodes when each shard in which it made a change says so, and what was
retained before has arrived from every shard. And a session is released when all that its connection has published is
in the shards that got it: so it is before what its next connection publishes (deploy/docs/CLUSTER.md, "Shards").

A shard is *away* if its link carries no calls, or does not reply for some time. What is retained there reaches a
subscription later, so nobody waits for that.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..._speedups.session.turn import Turn
from ..peers.node_link import NodeLink
from ..redis.link import LinkLost, Reply
from .barrier import Barrier

Done = Callable[[], object]
Late = Callable[[int], object]

SILENT_SECONDS = 0.4  # after which a shard that has not replied counts as away


@dataclass(eq=False, slots=True)
class Wait:
    """Something that waits for replies of shards.

    Attributes:
        done: is called then; None: it was.
        needed: shards without which it goes on waiting, as bits.
        missing: shards whose replies it lacks, as bits.
        until: when it waits for no shard that is away and not needed, by the clock of the loop.
        left_out: shards for which it has not waited, as bits.
        late: is called with these.
    """

    done: Done | None
    needed: int
    missing: int
    until: float
    left_out: int = 0
    late: Late | None = None


class Flush:
    """The waits of a node.

    Args:
        turn: of the node.
        loop: of the node.
    """

    def __init__(self, turn: Turn, loop: AbstractEventLoop) -> None:
        self._turn = turn
        self._loop = loop
        self._barriers: list[Barrier] = []
        self._links: list[NodeLink] = []
        self._asked: list[list[Wait]] = []  # of each link: wait for the reply to the question that is under way ...
        self._next: list[list[Wait]] = []  # ... and to the next one
        self._waits: deque[Wait] = deque()  # that do not need all shards, in the order of `until`
        self._timer: TimerHandle | None = None

    def attach(self, barrier: Barrier, link: NodeLink) -> None:
        """One more shard."""
        self._barriers.append(barrier)
        self._links.append(link)
        self._asked.append([])
        self._next.append([])

    @property
    def _all(self) -> int:
        return (1 << len(self._links)) - 1

    @property
    def away(self) -> int:
        """The shards that are away, as bits."""
        return sum(
            1 << number
            for number, link in enumerate(self._links)
            if not link.connected or link.silent_for > SILENT_SECONDS
        )

    # ---- as a barrier ----

    @property
    def is_behind(self) -> bool:
        """Whether a node may lack a change of this node, or a shard does."""
        return any(barrier.is_behind for barrier in self._barriers)

    def when_applied(self, done: Done, shards: int, late: Late | None = None) -> None:
        """Call `done` when all nodes have applied the changes so far in some shards, and all has arrived.

        That is what was retained before, in all shards that are not away.

        Args:
            done: what to do.
            shards: as bits.
            late: called before with the shards that were left out, as bits.
        """
        concerned = [barrier for number, barrier in enumerate(self._barriers) if shards >> number & 1]
        left = len(concerned)

        def applied() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._ask(done, self._all, shards, late)

        def stored() -> None:
            for barrier in concerned:
                barrier.when_last_applied(applied)

        self._turn.after_commit(stored, shards)

    # ---- what was before ----

    def when_flushed(self, done: Done, shards: int) -> None:
        """Call `done` when all that this node has recorded so far is in these shards, as bits.

        What it has published is then in all shards that are not away.
        """
        self._turn.after_commit(partial(self._ask, done, self._all, shards), shards)

    def when_stored(self, done: Done) -> None:
        """Call `done` when all that this node has recorded so far is stored in the shards that are not away."""
        away = self.away
        if away:
            self._turn.after_commit(done, self._all & ~away)
            return
        wait = self._wait(done, 0, self._all)
        self._turn.after_commit(partial(self._end, wait))

    # ---- waits ----

    def _wait(self, done: Done, needed: int, missing: int) -> Wait:
        wait = Wait(done, needed, missing, self._loop.time() + SILENT_SECONDS)
        if missing & ~needed:
            self._waits.append(wait)
            self._set_timer()
        return wait

    def _end(self, wait: Wait) -> None:
        done, wait.done = wait.done, None
        if done is not None:
            if wait.late is not None:
                wait.late(wait.left_out)
            done()

    def _set_timer(self) -> None:
        while self._waits and self._waits[0].done is None:
            self._waits.popleft()
        if self._waits and self._timer is None:
            self._timer = self._loop.call_at(self._waits[0].until, self._on_timer)

    def _on_timer(self) -> None:
        """Some have waited for long: no longer for what is away."""
        self._timer = None
        away, now, again = self.away, self._loop.time(), []
        while self._waits and self._waits[0].until <= now:
            wait = self._waits.popleft()
            if wait.done is None:
                continue
            if wait.needed:
                wait.left_out |= wait.missing & away & ~wait.needed
                wait.missing &= ~wait.left_out
                if not wait.missing:
                    self._end(wait)
            elif wait.missing & away:
                wait.missing &= ~away
                self._turn.after_commit(partial(self._end, wait), wait.missing)
            if wait.done is not None and wait.missing & ~wait.needed:
                again.append(wait)
        for wait in again:
            wait.until = now + SILENT_SECONDS
            self._waits.append(wait)
        self._set_timer()

    # ---- questions: each link replies when all before has arrived ----

    def _ask(self, done: Done, asked: int, needed: int, late: Late | None = None) -> None:
        """Call `done` when the links of these shards have replied; unless they are away and not needed."""
        left_out = asked & self.away & ~needed
        wait = self._wait(done, needed, asked & ~left_out)
        wait.left_out, wait.late = left_out, late
        for number in range(len(self._links)):
            if wait.missing >> number & 1:
                self._next[number].append(wait)
                self._send(number)
        if not wait.missing:
            self._end(wait)

    def _send(self, number: int) -> None:
        if self._links[number].connected and self._next[number] and not self._asked[number]:
            self._asked[number], self._next[number] = self._next[number], []
            self._links[number].call(partial(self._replied, number), "PING")

    def _replied(self, number: int, reply: Reply) -> None:
        asked, self._asked[number] = self._asked[number], []
        if isinstance(reply, LinkLost):  # `link_back` asks again
            self._next[number] = [wait for wait in (*asked, *self._next[number]) if wait.done is not None]
            return
        for wait in asked:
            wait.missing &= ~(1 << number)
            if not wait.missing:
                self._end(wait)
        self._send(number)

    def link_back(self, link: NodeLink) -> None:
        """A link carries calls again."""
        self._send(self._links.index(link))
