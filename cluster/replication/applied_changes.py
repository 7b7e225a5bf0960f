"""Applied changes: this node reports how far it has applied the changes of all, and the barrier of each waits for that.

With few nodes it sends a message to the origin of each change. All nodes to all would be as many messages as the square
of their number, so in a large cluster Redis counts instead (`barrier.lua`). Nodes agree on the way: each knows from the
changes which nodes there are. While it changes, some have reported in one way and some in the other, so each says
`back`.
"""

import asyncio
import time
from functools import partial

from ...broker import logs
from ..peers import wire
from ..peers.node_link import NodeLink
from ..redis.link import GONE, LinkLost, Reply, ReplyError
from .barrier import Barrier
from .changes import Changes
from .flush import Flush

COUNTED_FROM = 8  # other nodes from which on Redis counts
# Between two reports of a node, at least, and for each other node: all reports cost Redis 5 % of a core at most.
SECONDS, SECONDS_PER_NODE = 0.005, 0.0005
REFUSED_SECONDS = 0.5

log = logs.get("flockmq.cluster")


class AppliedChanges:
    """Reports the changes that this node has applied.

    Args:
        link: of this node.
        changes: of this node.
        barrier: of this node.
        loop: of the node.
        flush: of the node, if there are several shards. A retained message that this node has accepted before it
            applied a change may be in another shard: it has to be there when the change is reported.
    """

    def __init__(
        self,
        link: NodeLink,
        changes: Changes,
        barrier: Barrier,
        loop: asyncio.AbstractEventLoop,
        flush: Flush | None = None,
    ) -> None:
        self._link = link
        self._flush = flush
        self._last = 0  # the last change that may be reported, with several shards
        self._changes = changes
        self._barrier = barrier
        self._loop = loop
        self._unreported: dict[bytes, int] = {}  # node -> its last change that this node has applied
        self._is_counted = False  # the way of the last report
        self._asked = 0  # the change that Redis knows this node to wait for, or has told it of
        self._due = 0.0  # monotonic: when Redis may have the next report
        self._timer: asyncio.TimerHandle | None = None
        self._is_under_way = False  # a report to Redis
        self._refusal = ""  # of the last report

    def note(self, origin: bytes, change: int) -> None:
        """This node has applied a change of the origin, or the origin asks how far this node is."""
        if self._flush is None:
            self._unreported[origin] = change
        else:
            self._flush.when_stored(partial(self._note_stored, origin, change, self._changes.last))

    def _note_stored(self, origin: bytes, change: int, last: int) -> None:
        self._unreported[origin] = max(change, self._unreported.get(origin, 0))
        self._last = max(self._last, last)

    @property
    def _reported(self) -> int:
        """The last change that may be reported."""
        return self._changes.last if self._flush is None else self._last

    def announce(self) -> None:
        """Reports to this node, and from it, may be lost: tell all nodes how far it is. They reply with reports."""
        self._is_counted = len(self._barrier) >= COUNTED_FROM
        self._asked = 0
        if self._flush is None:
            self._announce(self._changes.last)
        else:
            self._flush.when_stored(partial(self._announce, self._changes.last))
        self.note(self._link.node_id, self._changes.last)

    def _announce(self, last: int) -> None:
        self._last = max(self._last, last)
        if self._link.connected:
            self._link.publish(self._link.keys.all, wire.back(self._link.node_id, last))

    def report(self) -> None:
        """All received data is processed, and the turn will end: report the applied changes."""
        if (len(self._barrier) >= COUNTED_FROM) is not self._is_counted and self._link.connected:
            self.announce()
        if self._is_counted:
            self._report_to_redis()
        elif self._unreported:
            self._report_to_origins()

    def _report_to_origins(self) -> None:
        for origin, change in self._unreported.items():
            if origin != self._link.node_id:
                self._link.publish(self._link.keys.to(origin), wire.applied(self._link.node_id, change))
        self._unreported.clear()

    def _report_to_redis(self) -> None:
        wanted = self._barrier.wanted
        if not self._unreported and wanted <= self._asked:
            return
        if self._is_under_way or self._timer is not None or not self._link.connected:
            return
        now = time.monotonic()
        if now < self._due:
            self._timer = self._loop.call_later(self._due - now, self._on_timer)
            return
        self._due = now + max(SECONDS, SECONDS_PER_NODE * len(self._barrier))
        self._is_under_way = True
        self._unreported.clear()
        self._asked = max(self._asked, wanted)
        self._link.function(self._replied, "applied", self._reported, wanted)

    def _on_timer(self) -> None:
        self._timer = None
        self.report()

    def _replied(self, reply: Reply) -> None:
        self._is_under_way = False
        if isinstance(reply, (LinkLost, ReplyError)):
            self._asked = 0
            self.note(self._link.node_id, self._changes.last)
        elif reply[0] == b"gone" and self._link.membership.is_member:
            self._link.membership.become_fenced(GONE)
        refusal = str(reply) if isinstance(reply, ReplyError) else ""
        if refusal:
            self._due = time.monotonic() + REFUSED_SECONDS
            if refusal != self._refusal:
                log.error("Redis refuses a report of applied changes: clients wait for SUBACK", reason=refusal)
        self._refusal = refusal
        self._report_to_redis()
