"""The life of a node in a cluster: it joins, works, drains and leaves.

`state.py` has what the node is in its cluster. While it is *connected*, its link carries calls. Without a link it
continues the work that needs no other node. When the link is back, the node catches up. If another node has declared it
dead, or Redis has lost data that it had confirmed, the node is *fenced*: it closes all clients, and rejoins with
another id.
"""

import asyncio
import re
import time
from collections.abc import Sequence

from .._speedups.protocol import close_reasons
from ..broker import logs
from ..broker.config.schema import Config
from ..broker.coordination.coordinator import NodeLife, Risk
from ..broker.core.data_plane import DataPlane
from ..broker.errors import NotNow, StoreError, reason_of
from ..broker.storage.store import LogStore
from ..broker.streams.message_log import MessageLog
from .message_log import LoggedMessages
from .redis.append_only_file import rewrite_after_restart
from .redis.connector import Refused
from .redis.link import LinkError, LinkLost, is_forbidden
from .replication.foreign_records import ForeignRecords
from .shard import Shard
from .sharding.shards import Shards
from .state import State
from .streams.redis_log import RedisLog

STOP_SECONDS = 10.0
DRAIN_STEPS = 8
DRAIN_STEP_SECONDS = 0.05

log = logs.get("flockmq.cluster")


class ClusterLife(NodeLife):
    """The life of a node in a cluster.

    Args:
        data_plane: of the node.
        shards: of the cluster, with their parts.
        name: of the node in its cluster.
        logged: the log of messages of the node.
        loop: of the node.
        former_id: of the node before it was fenced; empty = it was not.
        store: of the node.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        shards: Shards,
        *,
        name: str,
        logged: LoggedMessages,
        loop: asyncio.AbstractEventLoop,
        former_id: bytes,
        store: LogStore,
    ) -> None:
        self._store = store
        self.data_plane = data_plane
        self.shards = shards
        self._name = name
        self._address = ", ".join(str(shard.primary.address) for shard in shards)
        self._logged = logged
        self._records = ForeignRecords(data_plane.router.foreign, data_plane.turn)
        self._log = RedisLog(shards.first.primary.address)
        self._loop = loop
        self._former_id = former_id
        self._durability = ""
        self._settled = asyncio.Event()  # all is committed, or the node is fenced: a stop need not wait
        data_plane.reactor.attach_lease(self._on_lease_expired)

    async def start(self) -> None:
        plane, shards = self.data_plane, self.shards
        self._store.start(self._confirm, self._loop.call_soon_threadsafe)
        began = time.monotonic()
        try:
            await shards.join(self._former_id)
        except Refused as error:
            reason = re.sub("^(LAYOUT|MOVED|ARRIVING|SHARDS) ", "", str(error))
            raise StoreError(f"Redis at {self._address} is unusable: {reason}", _hint(str(error))) from error
        except (LinkLost, LinkError, OSError, TimeoutError) as error:
            raise NotNow(f"Redis at {self._address} is away: {reason_of(error)}") from error
        await self._inspect_redis()
        for shard in shards:
            if shard.membership.is_over:
                raise NotNow(f"fenced while it joined the cluster: {shard.membership.why_fenced}")
            rewrite_after_restart(shard.link.connection)
        log.info(
            "joined the cluster",
            node=shards.first.link.node_id.decode(),
            nodes=len(shards.first.replica.members) + 1,
            subscriptions=plane.router.filters.count,
            retained=plane.router.retained.count,
            seconds=round(time.monotonic() - began, 2),
        )

    async def _inspect_redis(self) -> None:
        """Log warnings about the durability of Redis."""
        try:
            risks = await self.risks()
        except NotNow as error:  # for information only
            log.warning("durability of Redis is unknown", reason=error)
        else:
            for risk in risks:
                log.warning(str(risk))

    async def risks(self) -> Sequence[Risk]:
        try:
            found = [await shard.inspect() for shard in self.shards]
        except Exception as error:
            raise NotNow(str(error)) from error
        self._durability = found[0].sentence
        return [*dict.fromkeys(risk for each in found for risk in each.risks)]

    def configure(self, config: Config) -> None:
        self._logged.configure()
        for shard in self.shards:
            shard.configure(config)
            shard.declare_groups(config)

    def tick(self) -> None:
        if len(self.shards) > 1 and any(shard.membership.joins for shard in self.shards):
            return  # `Shards.join` sends the heartbeats
        now, linked = time.monotonic(), []
        for shard in self.shards:
            if shard.membership.has_lost_link:
                shard.lease.tick_without_redis(now)
            if not shard.membership.has_link:
                continue
            if shard.membership.state is State.SUSPENDED or (
                now > shard.lease.valid_until and not self._hang_up_if_alone(shard, now)
            ):
                self._on_lease_expired()
                return
            if not shard.membership.has_link:
                continue
            linked.append(shard)
        if not linked:
            return
        for shard in linked:
            shard.assignments.tick()
        self.data_plane.turn.drop_expired()
        self.data_plane.turn.seal()  # acknowledgements of clients, which no packet waits for
        self.shards.first.routes.tick(now)
        self.shards.among.late.tick(now)
        answers = [shard.tick(now) for shard in linked]
        if all(answers):
            if len(linked) == len(self.shards):  # else what has to be stored before records go is not
                self._records.tick(now)
            self._expire_retained()

    def _expire_retained(self) -> None:
        """Drop the expired retained messages here; one of the nodes removes them from Redis."""
        for topic in self.data_plane.router.expire_retained():
            shard = self.shards.of_topic(topic)
            if shard.replica.members.is_first():
                shard.primary.journal.change(("expired", topic))

    async def drain(self, references: tuple[str, ...]) -> None:
        for shard in self.shards:
            shard.announce_end()
        connections = list(self.data_plane.reactor)
        step = max(1, -(-len(connections) // DRAIN_STEPS))
        reason = close_reasons.NODE_STOPS.leading_to(references)
        for start in range(0, len(connections), step):
            for connection in connections[start : start + step]:
                connection.close(reason)
            self.data_plane.end_turn()
            if start + step < len(connections) and len(connections) > 100:
                await asyncio.sleep(DRAIN_STEP_SECONDS)

    async def stop(self) -> None:
        turn = self.data_plane.turn
        if all(shard.membership.is_member for shard in self.shards):
            await self.shards.first.delayed.stop()
            self._logged.log.close()
            turn.seal()
            self.shards.among.flushed(self._settle)  # behind the releases of all connections
            try:
                await asyncio.wait_for(self._settled.wait(), STOP_SECONDS)
            except TimeoutError:
                log.error("Redis does not answer: unconfirmed messages were not acknowledged, and may be lost")
        await asyncio.gather(*(shard.leave() for shard in self.shards))
        self.end()

    def _settle(self) -> None:
        turn = self.data_plane.turn
        turn.seal()
        turn.after_commit(self._settled.set)

    def end(self) -> None:
        """Read nothing more from Redis, and write nothing to it; also if the node is fenced."""
        self._log.close()
        for shard in self.shards:
            shard.primary.close()
        self._settled.set()

    def describe(self) -> str:
        kept = self._durability or "Redis keeps the state"
        return f"node {self._name} of the cluster at {self._address}; {kept}"

    def ready(self) -> tuple[bool, str]:
        memberships = [shard.membership for shard in self.shards]
        if any(membership.joins or membership.is_over for membership in memberships):
            return False, "the node is joining the cluster"
        if all(membership.has_lost_link for membership in memberships):
            return False, "Redis is away"
        return True, "ready"  # also if Redis has no memory left: clients that take their messages free some

    @property
    def message_log(self) -> MessageLog | None:
        return self._log if self.data_plane.config.analytics.topics else None

    def _confirm(self, blocks: int) -> None:
        self.data_plane.turn.confirm(blocks)

    def _on_lease_expired(self) -> None:
        now = time.monotonic()
        for shard in self.shards:
            if not shard.link.connected or self._hang_up_if_alone(shard, now):
                shard.lease.look_for_pause(now)
            elif shard.lease.expire(now):
                shard.set_clock()  # before deadlines that clients have asked for

    def _hang_up_if_alone(self, shard: Shard, now: float) -> bool:
        """The lease in a shard may be over while it goes on in another: then this node did not stand still.

        The shard does not reply: it is away, and all other clients are served. Returns whether this is so.
        """
        if now <= shard.lease.valid_until or shard.membership.state is not State.MEMBER:
            return False
        others = (each for each in self.shards if each is not shard and each.membership.state is State.MEMBER)
        if not any(now <= each.lease.valid_until for each in others):
            return False
        shard.link.hang_up("it has not confirmed the lease of this node")
        return True


def _hint(reason: str) -> str:
    if reason.startswith("LAYOUT"):
        return "run the version of FlockMQ that its nodes have, or choose another cluster.prefix"
    if reason.startswith("SHARDS"):
        return "give cluster.redis the URLs of the cluster in their order; the number of shards is for good"
    if reason.startswith("MOVED"):
        return "serve it there, or bring it back with `flockmq migrate FROM TO`"
    if reason.startswith("ARRIVING"):
        return "repeat `flockmq migrate` or `flockmq restore` as it was"
    if reason.startswith(("WRONGPASS", "NOAUTH", "ERR AUTH", "invalid username-password", "Authentication required")):
        return "check user and password in the URL"
    if "cluster support disabled" in reason:
        return "this Redis is no Redis Cluster: redis://HOST:PORT is its URL"
    if is_forbidden(reason):
        return "the user needs the rights that deploy/docs/CLUSTER.md lists"
    return "FlockMQ needs Redis 7.0 or later"
