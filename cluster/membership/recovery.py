"""Recovery: the link was lost; the node reconnects, catches up and continues, or rejoins."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ...broker import logs
from ...broker.core.data_plane import DataPlane
from ...broker.errors import reason_of
from ..message_log import LoggedMessages
from ..peers import wire
from ..peers.node_link import NodeLink
from ..redis.append_only_file import rewrite_after_restart
from ..redis.link import GONE, LOST_DATA, LinkError, LinkLost
from ..redis.store import RedisStore
from ..replication.replica import Replica
from ..replication.snapshot import Behind
from ..sessions.claim import Claims
from ..sessions.leases import Leases
from ..sessions.reclaim import Reclaim
from ..sessions.takeover import TakeOver
from ..sessions.unfinished import Unfinished
from .clock import ClusterClock
from .lease import Lease

BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)  # between attempts to reach Redis, plus or minus a half
ATTEMPTS_PER_LOG_LINE = 20
STARTED_TWICE = "Redis has started more than once since this node was there, so its losses can't be known"
AWAY_LEASES = 3  # after which persistent clients are closed, if the machine of Redis is reachable

log = logs.get("flockmq.cluster")


class Gone(LinkError):
    """Redis has this node no more."""


class Recovery:
    """Brings the link of a node back.

    Args:
        plane: of the node.
        link: of the node.
        address: of Redis, for the log.
        replica: the replicated state of the node.
        store: of the node.
        lease: of the node.
        clock: of the cluster, as the node has it.
        logged: the log of messages of the node.
        claims: of the node.
        takeover: of the node.
        reclaim: of the node.
        leases: of the node.
        unfinished: of the node.
        on_fenced: called with the reason when the node can't continue, and has to rejoin.
    """

    def __init__(
        self,
        plane: DataPlane,
        link: NodeLink,
        *,
        address: str,
        replica: Replica,
        store: RedisStore,
        lease: Lease,
        clock: ClusterClock,
        logged: LoggedMessages,
        claims: Claims,
        takeover: TakeOver,
        reclaim: Reclaim,
        leases: Leases,
        unfinished: Unfinished,
        on_fenced: Callable[[str], object],
    ) -> None:
        self._plane = plane
        self._link = link
        self._address = address
        self._replica = replica
        self._store = store
        self._lease = lease
        self._clock = clock
        self._logged = logged
        self._claims = claims
        self._takeover = takeover
        self._reclaim = reclaim
        self._leases = leases
        self._unfinished = unfinished
        self._on_fenced = on_fenced
        self._task: asyncio.Task[None] | None = None
        self._asked_at = 0.0  # monotonic: the last question whose reply confirmed the membership
        self._away_since = 0.0  # when the link was lost, monotonic; 0 = connected
        self._unreplied = 0  # calls that Redis has executed, and whose replies were lost with earlier links
        self.links_lost = 0

    def start(self) -> None:
        """The link is lost."""
        if self._link.closed or self._task is not None:
            return
        self.links_lost += 1
        self._link.connected = False
        self._away_since = time.monotonic()
        self._store.stop_flowing()
        self._takeover.link_lost()
        self._lease.link_lost()
        self._leases.suspend()
        reason = {"reason": self._link.why_closed} if self._link.why_closed else {}
        log.error("Redis is away: messages for persistent sessions and other nodes wait", redis=self._address, **reason)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._reconnect())
        loop.call_later(self._lease.valid_until - self._away_since, self._close_persistent_if_due)

    def tick(self, now: float) -> None:
        """Redis is away: after some time close the persistent clients, so that they connect to other nodes."""
        if self._away_since:
            self._lease.tick_without_redis(now)
            self._close_persistent_if_due()

    def _close_persistent_if_due(self) -> None:
        if not self._away_since:
            return
        if self._link.reachable:
            deadline = self._away_since + self._lease.seconds * AWAY_LEASES
        else:
            deadline = self._lease.valid_until
        if time.monotonic() >= deadline:
            self._claims.close_persistent("this node has lost the others")

    def stop(self) -> None:
        """The node stops."""
        if self._task is not None:
            self._task.cancel()

    async def _reconnect(self) -> None:
        attempt = 0
        reasons: set[str] = set()  # that are in the log
        while not self._link.closed:
            # Nodes that are back earlier take this one for dead after a lease.
            await asyncio.sleep(min(_backoff(attempt), self._lease.seconds / 4))
            attempt += 1
            try:
                await self._link.open()
                await self._resume()
                return
            except Behind:
                self._on_fenced("it was away for longer than Redis keeps changes")
                return
            except Gone:
                self._on_fenced(GONE)
                return
            except (LinkLost, LinkError, OSError, TimeoutError) as error:
                self._link.hang_up()
                reason = reason_of(error)
                if reason not in reasons or attempt % ATTEMPTS_PER_LOG_LINE == 0:
                    reasons.add(reason)
                    log.warning("Redis is still away", reason=reason)
            except Exception:
                log.exception("internal error: recovery of the link failed")
                self._on_fenced("recovery of the link failed")
                return

    async def _resume(self) -> None:
        """Catch up, then continue."""
        link, replica = self._link, self._replica
        _, seq, change, calls = await self._ask_as_member(link.resume)
        if lost := await self._what_is_lost(seq, change, calls):
            await self._unfinished.restore()
            self._on_fenced(lost)
            return
        await replica.reader.catch_up()
        if replica.changes.last < change:
            raise Behind
        await replica.reader.read_logs([*replica.members.departed, *replica.members], self._confirm)
        await replica.reader.read_queues(self._claims.shared_sessions(), self._confirm)
        results = await replica.reader.ask_hash("HGETALL", link.keys.analytics_results)
        await self._confirm()
        if link.closed:
            return
        if not link.connection.open:  # it ended after the last reply, and `start` leaves that to this task
            raise LinkLost
        self._task = None
        replica.results.replace(results)
        replica.members.forget_heartbeats()
        replica.barrier.made(change)
        self._lease.renew(self._asked_at)
        link.connected = True
        away = time.monotonic() - self._away_since
        self._away_since = 0.0
        self._logged.configure()
        self._clock.advance(link)  # before deadlines that clients have asked for meanwhile
        self._store.flow(link.connection, seq)
        self._reclaim.start()
        replica.users.refresh_all()
        for member in replica.members:
            member.confirm(member.sent)
        link.publish(link.keys.all, wire.back(link.node_id, replica.changes.last))
        link.note_process()
        link.release()
        self._leases.recover()
        replica.members.forget_departed()
        rewrite_after_restart(link.connection)
        log.info("Redis is back", seconds=round(away, 1))
        self._lease.resume()
        self._plane.end_turn()

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

    async def _what_is_lost(self, seq: int, change: int, calls: int) -> str:
        """A sentence if Redis has lost data that this node has had confirmed, or has received; else nothing.

        Args:
            seq: of the node's last commit, as Redis has it.
            change: the number of the last change in Redis.
            calls: with acknowledgements, and claims, that Redis has counted.
        """
        reader = self._replica.reader
        if seq < self._store.confirmed_seq or change < self._replica.changes.last:
            return LOST_DATA
        replied = self._store.acks_executed + self._takeover.claims_executed
        if calls < replied + self._unreplied:
            return LOST_DATA  # acknowledgements of clients, or claims of sessions
        self._unreplied = calls - replied
        if not await reader.is_same_history():
            return "Redis has lost changes, and has used their numbers for others"
        # Numbers of queues and places of groups would be used again, for other messages.
        if await reader.has_lost(self._unfinished.numbers()):
            return LOST_DATA
        lost = await reader.lost_places(self._leases.last_places())
        return STARTED_TWICE if lost is None else LOST_DATA if lost else ""


def _backoff(attempt: int) -> float:
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.5, 1.5)
