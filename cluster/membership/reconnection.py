"""Reconnection: the link was lost; the node reconnects, with growing waits, catches up and continues, or rejoins."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...broker import logs
from ...broker.errors import reason_of
from ..peers.node_link import NodeLink
from ..redis.append_only_file import rewrite_after_restart
from ..redis.link import GONE, LinkError, LinkLost
from ..replication.replica import Replica
from ..replication.snapshot import Behind
from ..sessions.claim import Claims
from ..state import Membership
from .data_loss import DataLoss
from .lease import Lease

BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)  # between attempts to reach Redis, plus or minus a half
ATTEMPTS_PER_LOG_LINE = 20

log = logs.get("flockmq.cluster")

Steps = Sequence[Callable[[], object]]


class Gone(LinkError):
    """Redis has this node no more."""


class LinkSteps(NamedTuple):
    """The parts of the node that have to know about the link, in the order in which they are called."""

    lost: Steps  # it is lost
    back: Steps  # it carries calls again; pushes are still held
    caught_up: Steps  # the held pushes are processed, and all that Redis lacks is sent


class Reconnection:
    """Brings the link of a node back.

    Args:
        link: of the node.
        membership: of the node.
        address: of Redis, for the log.
        replica: the replicated state of the node.
        claims: of the node.
        lease: of the node.
        data_loss: finds what Redis has lost.
        steps: the other parts.
    """

    def __init__(
        self,
        link: NodeLink,
        membership: Membership,
        *,
        address: str,
        replica: Replica,
        claims: Claims,
        lease: Lease,
        data_loss: DataLoss,
        steps: LinkSteps,
    ) -> None:
        self._link = link
        self._membership = membership
        self._address = address
        self._replica = replica
        self._claims = claims
        self._lease = lease
        self._data_loss = data_loss
        self._steps = steps
        self._task: asyncio.Task[None] | None = None  # the last one
        self._asked_at = 0.0  # monotonic: the last question whose reply confirmed the membership
        self.links_lost = 0

    def start(self) -> None:
        """The link of a member is lost."""
        self._membership.lose_link()
        self.links_lost += 1
        for step in self._steps.lost:
            step()
        reason = {"reason": self._link.why_closed} if self._link.why_closed else {}
        log.error("Redis is away: messages for persistent sessions and other nodes wait", redis=self._address, **reason)
        self._task = asyncio.get_running_loop().create_task(self._reconnect(time.monotonic()))

    def stop(self) -> None:
        """The node stops."""
        if self._task is not None:
            self._task.cancel()

    async def _reconnect(self, lost_at: float) -> None:
        attempt = 0
        reasons: set[str] = set()  # that are in the log
        while self._membership.has_lost_link:
            # Nodes that are back earlier take this one for dead after a lease.
            await asyncio.sleep(min(_backoff(attempt), self._lease.seconds / 4))
            attempt += 1
            try:
                await self._link.open()
                await self._resume(lost_at)
                return
            except Behind:
                self._membership.become_fenced("it was away for longer than Redis keeps changes")
                return
            except Gone:
                self._membership.become_fenced(GONE)
                return
            except (LinkLost, LinkError, OSError, TimeoutError) as error:
                self._link.hang_up()
                reason = reason_of(error)
                if reason not in reasons or attempt % ATTEMPTS_PER_LOG_LINE == 0:
                    reasons.add(reason)
                    log.warning("Redis is still away", reason=reason)
            except Exception:
                log.exception("internal error: recovery of the link failed")
                self._membership.become_fenced("recovery of the link failed")
                return

    async def _resume(self, lost_at: float) -> None:
        """Catch up, then continue."""
        link, replica = self._link, self._replica
        _, seq, change, calls = await self._ask_as_member(link.resume)
        if lost := await self._data_loss.find(seq, change, calls):
            self._membership.become_fenced(lost)
            return
        await replica.reader.catch_up()
        if replica.changes.last < change:
            raise Behind
        await replica.reader.read_repair_logs([*replica.members.departed, *replica.members], self._confirm)
        await replica.reader.read_queues(self._claims.shared_sessions(), self._confirm)
        results = await replica.reader.ask_hash("HGETALL", link.keys.analytics_results)
        await self._confirm()
        if not self._membership.has_lost_link:
            return
        if not link.connection.open:  # it ended after the last reply; only the loss of a member's link is reported
            raise LinkLost
        replica.results.replace(results)
        replica.members.forget_heartbeats()
        replica.barrier.made(change)
        self._lease.renew(self._asked_at)
        self._membership.regain_link()
        for step in self._steps.back:
            step()
        replica.applied.announce()
        link.note_process()
        link.release()
        rewrite_after_restart(link.connection)
        log.info("Redis is back", redis=self._address, seconds=round(time.monotonic() - lost_at, 1))
        for step in self._steps.caught_up:
            step()

    async def _confirm(self) -> None:
        """Confirm the membership again, if the last confirmation is a lease old: it took long, or the node stood still.

        Others may have declared this node dead, and have its sessions. Raises as `NodeLink.ask`, and `Gone`.
        """
        while not self._lease.is_confirmed_by(self._asked_at):
            await self._ask_as_member(partial(self._link.ask_function, "confirm"))

    async def _ask_as_member(self, ask: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Ask Redis for something that it has for members only. Raises as `NodeLink.ask`, and `Gone`."""
        asked_at = time.monotonic()
        reply: list[Any] = await ask()
        if reply[0] == b"gone":
            raise Gone
        self._asked_at = asked_at
        return reply


def _backoff(attempt: int) -> float:
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.5, 1.5)
