"""The delayed messages of a cluster: Redis has them, and one node publishes them when they are due."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from ..._speedups.session.tenant import Tenant
from ...broker.coordination.coordinator import Delayed, DelayedMessages
from ...broker.core.data_plane import DataPlane
from ..peers.node_link import NodeLink
from ..redis.link import LinkError, LinkLost, Reply, away_is_not_now
from .wills import Wills

AT_ONCE = 200  # messages that Redis hands to a node in one call
LOOK_SECONDS = 1.0
NOTHING_DUE = 2**53 - 1  # milliseconds, in place of the first due time: only staged chunks of transactions wait
HELD = 50  # milliseconds until the first node looks again while another one has messages
LATE = 1000  # milliseconds: messages that are later than this are published by any node


class RedisDelayed(DelayedMessages):
    """Publishes the messages to `$delayed/SECONDS/TOPIC` when they are due, at one of the nodes.

    That is the first node. Redis announces a message that is due before all others, and each reply has the time of the
    next one, so the first node has a timer for it. All nodes look once a second: that is how they learn the number of
    messages, and of each tenant's messages. They publish messages that the first node should have published: it may be
    dead.

    Args:
        plane: of this node.
        link: of this node.
        wills: of this node. Redis hands a message over as it does a will: its publication settles it.
        is_first: whether this node is the first one.
        loop: of this node.
    """

    def __init__(
        self,
        plane: DataPlane,
        link: NodeLink,
        wills: Wills,
        is_first: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._plane = plane
        self._link = link
        self._wills = wills
        self._is_first = is_first
        self._loop = loop
        self._timer: asyncio.Handle | None = None
        self._due_at = 0.0  # time of the loop at which the timer fires
        self._look_at = 0.0
        self._stopped = False

    def tick(self, now: float) -> None:
        """Look, if it is time."""
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._take(0 if self._is_first() else LATE)
            self._count_tenants()

    def announced(self, wait: int) -> None:
        """A message is due before all others, in `wait` milliseconds."""
        if self._is_first():
            self._arm(wait)

    async def stop(self) -> None:
        """Take no more messages, and wait for messages that are on their way: the node publishes them before it
        leaves."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(LinkLost, LinkError):
            await self._link.ask("PING")

    async def waiting(self, prefix: bytes, without: bytes, after: str, limit: int) -> list[Delayed]:
        due, _, number = after.partition("-")
        found: list[Delayed] = []
        while len(found) < limit:
            with away_is_not_now():
                due, number, rows = await self._link.ask_function(
                    "list_later", prefix, without, due or "0", number, limit - len(found)
                )
            found += (_row(*row) for row in rows)
            if not number:
                break
        return found

    async def cancel(self, message: str, prefix: bytes) -> bool:
        with away_is_not_now():
            return bool(await self._link.ask_function("cancel_later", prefix, message))

    def _count_tenants(self) -> None:
        """Learn how many messages of each known tenant wait in Redis."""
        tenants = [*self._plane.turn.tenants]
        if tenants and self._link.connected:
            names = [tenant.prefix for tenant in tenants]
            self._link.call(partial(self._counted, tenants), "HMGET", self._link.keys.later_tenants, *names)

    def _counted(self, tenants: list[Tenant], reply: Reply) -> None:
        if isinstance(reply, list):
            for tenant, count in zip(tenants, reply, strict=True):
                self._plane.router.delayed.report_tenant(tenant, int(count or 0))

    def _arm(self, wait: int) -> None:
        when = self._loop.time() + max(0, wait) / 1000
        if self._timer is not None:
            if self._due_at <= when:
                return
            self._timer.cancel()
        # Not the timer's own `when`: uvloop returns a Handle without it for a time that is now.
        self._due_at = when
        self._timer = self._loop.call_at(when, self._due)

    def _due(self) -> None:
        self._timer = None
        self._take(0)

    def _take(self, late: int) -> None:
        """Take the messages that have been due for this time, in milliseconds."""
        if self._link.connected and not self._stopped and not self._wills.missed:
            self._link.function(self._taken, "later", AT_ONCE, late)

    def _taken(self, reply: Reply) -> None:
        if not isinstance(reply, list) or reply[0] == b"gone":
            return
        _, first, count, size, messages = reply
        for number, stored in zip(messages[::2], messages[1::2], strict=True):
            self._wills.publish_delayed(number, stored)
        is_due = first < NOTHING_DUE
        self._plane.router.delayed.report(count, size, first if is_due else 0)
        if is_due and not self._stopped and (messages or self._is_first()):
            if self._is_first():
                # Without a message that is due: another node has messages that it has not published yet.
                self._arm(first if messages else max(first, HELD))
            elif first <= -LATE:
                self._take(LATE)


def _row(
    number: bytes, wait: int, due: bytes, publisher: bytes, topic: bytes, qos: int, retain: int, size: int
) -> Delayed:
    """A row of `flockmq_list_later`."""
    name = number.decode()
    return Delayed(name, f"{due.decode()}-{name}", wait, publisher, topic, qos, bool(retain), size)
