"""The coordinator of a node in a cluster: builds the parts of this package, and offers them as a `Coordinator`.

`state.py` has what the node is in its cluster. While it is *connected*, its link carries calls. Without a link it
continues the work that needs no other node. When the link is back, the node catches up. If another node has declared it
dead, or Redis has lost data that it had confirmed, the node is *fenced*: it closes all clients, and rejoins with
another id.
"""

import asyncio
import contextlib
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b

from .._speedups.base.msgpack import pack
from .._speedups.cluster.journal import ClusterJournal
from .._speedups.codec.packets import Connect
from .._speedups.net.connection import Connection
from .._speedups.protocol import close_reasons
from .._speedups.session.session import Session
from ..broker import logs
from ..broker.config.declared_group import DeclaredGroup
from ..broker.config.schema import Config
from ..broker.coordination.admission import Admission
from ..broker.coordination.coordinator import Coordinator, Delayed, Done, QueueLimits, RedisUse
from ..broker.core.calls import SECONDS, Arguments, RpcMethods, RpcReply
from ..broker.core.data_plane import DataPlane
from ..broker.core.will import Will
from ..broker.errors import NotNow, StoreError, reason_of
from ..broker.streams.message_log import MessageLog
from .commit_replies import CommitReplies
from .membership.cleanup import Cleanup
from .membership.clock import ClusterClock
from .membership.description import describe_node
from .membership.heartbeat import Heartbeat
from .membership.inbox import Inbox
from .membership.joining import Joining
from .membership.lease import Lease
from .membership.losses import Losses
from .membership.recovery import LinkSteps, Recovery
from .message_log import LoggedMessages
from .peers import wire
from .peers.members import Members
from .peers.node_link import NodeLink
from .peers.rpc import Rpc
from .redis.append_only_file import rewrite_after_restart
from .redis.clients import RedisAddress
from .redis.connector import Connector, Refused
from .redis.durability import inspect
from .redis.link import DECLARED_DEAD, LinkError, LinkLost, Reply, ignore, info_fields, is_forbidden
from .redis.log_bounds import REPAIR_LOG_BYTES, REPAIR_LOG_SECONDS, LogBounds
from .redis.store import RedisStore
from .replication.analytics_results import AnalyticsResults
from .replication.barrier import Barrier
from .replication.changes import Changes
from .replication.declared_groups import DeclaredGroups
from .replication.replica import Replica
from .replication.routes import Routes
from .replication.snapshot import SnapshotReader
from .replication.users import Users
from .sessions.claim import Claims
from .sessions.damaged_keys import DamagedKeys
from .sessions.delayed_messages import DelayedMessages
from .sessions.delayed_wills import DelayedWills
from .sessions.leases import Leases
from .sessions.reclaim import Reclaim
from .sessions.subscribing import Subscribing
from .sessions.takeover import TakeOver
from .sessions.tenant_queues import TenantQueues
from .sessions.unfinished import Unfinished
from .sessions.wills import Wills
from .state import Membership, State
from .streams.redis_log import RedisLog

MIN_PATIENCE = 3.0  # seconds without data from Redis after which a call counts as lost
STOP_SECONDS = 10.0
DRAIN_STEPS = 8
DRAIN_STEP_SECONDS = 0.05
COMMITS_UNDER_WAY = 2  # one that Redis executes, and one that it finds when it has ended

log = logs.get("flockmq.cluster")


class ClusterCoordinator(Coordinator):
    """Coordinates a node with the others.

    Args:
        config: of the node.
        loop: of the node.
        rejoin: called with the reason when the node is fenced; the coordinator does nothing after that.
        former_id: of the node before it was fenced; empty = it was not.
    """

    journal: ClusterJournal
    store: RedisStore
    users: Users

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, rejoin: Callable[[str], None], former_id: str = ""
    ) -> None:
        self._config = config
        self._former_id = former_id.encode()
        self._loop = loop
        self._rejoin = rejoin
        self._address = RedisAddress.parse(config.cluster.redis, config.cluster.prefix)
        self._durability = ""
        self._name = config.cluster.node_name or socket.gethostname()
        node_id = f"{self._name}-{secrets.token_hex(4)}".encode()
        keys = self._address.keys
        patience = max(MIN_PATIENCE, config.cluster.timeout)
        self._membership = Membership(node_id.decode(), self._on_fenced)
        connector = Connector(self._address, node_id, patience)
        self._link = NodeLink(connector, keys, node_id, self._membership, patience)
        self.journal = ClusterJournal(self._batch_header, node_id)
        self.store = RedisStore(
            keys,
            node_id,
            limits=self._queue_limits,
            bounds=LogBounds(REPAIR_LOG_BYTES, REPAIR_LOG_SECONDS),
            replicas=config.cluster.replicas,
            on_fenced=self._membership.become_fenced,
        )
        self.users = Users(self._link)
        self._message_log = RedisLog(self._address)
        self._settled = asyncio.Event()  # all is committed, or the node is fenced: a stop need not wait

    # ---- composition ----

    def attach(self, data_plane: DataPlane, methods: RpcMethods) -> None:
        super().attach(data_plane, methods)
        self._build_replica(data_plane)
        self._build_sessions(data_plane)
        self._build_membership(data_plane)
        self._rpc = Rpc(data_plane, self._link, self._replica.members, methods)
        handlers: dict[bytes, Callable[..., object]] = {
            b"taken": self._takeover.taken,
            b"released": self._takeover.released,
            b"adopt": self._wills.publish,
            b"later": self._delayed.announced,
            b"kick": lambda client_id: self._claims.close(client_id, close_reasons.KICKED_BY_OPERATOR),
            b"purge": self._purge,
            b"leased": self._leases.receive,
            b"given": self._leases.receive_given,
            b"key_free": self._leases.key_free,
            b"key_closed": self._leases.key_closed,
            b"ask": self._rpc.handle_ask,
            b"answer": self._rpc.handle_answer,
        }
        inbox = Inbox(data_plane, self._link, self._replica, handlers)
        data_plane.turn.limit_commits(COMMITS_UNDER_WAY)
        self._link.attach(
            data_plane.reactor, inbox.receive, inbox.finish, self._recovery.start, data_plane.turn.seal_deferred
        )

    def _build_replica(self, plane: DataPlane) -> None:
        members = Members(plane, self._link)
        changes = Changes(
            plane,
            members,
            self._link.node_id,
            on_ready=self._on_member_ready,
            on_left=self._on_member_left,
        )
        self._replica = Replica(
            members=members,
            changes=changes,
            barrier=Barrier(plane.turn, self.journal, self._link),
            reader=SnapshotReader(plane, changes, self._link, between=lambda: self._heartbeat.send_if_due()),
            results=AnalyticsResults(plane.router),
            users=self.users,
        )
        self._routes = Routes(self.journal)
        self._logged = LoggedMessages(plane, self.store, self._link, self._name, lambda: self._config.analytics)
        self.journal.attach(self._logged.log)

    def _build_sessions(self, plane: DataPlane) -> None:
        self._claims = Claims()
        self.journal.follow_claims(self._claims.epoch_of)
        damaged = DamagedKeys(self._claims, self._membership.become_fenced)
        self._wills = Wills(plane, self._link, self.journal, self._claims)
        self._delayed = DelayedMessages(plane, self._link, self._wills, self._is_first, self._loop)
        self._delayed_wills = DelayedWills(self._link, self._is_first)
        self._tenant_queues = TenantQueues(plane.turn, self._link)
        self._unfinished = Unfinished(plane, self._link, self._claims)
        self._takeover = TakeOver(
            plane,
            self._link,
            self.journal,
            claims=self._claims,
            wills=self._wills,
            routes=self._routes,
            barrier=self._replica.barrier,
            unfinished=self._unfinished,
        )
        self._leases = Leases(plane, self._link, self._claims, self.journal, self.store)
        self.store.listener = CommitReplies(plane, self._link, self._replica, self._leases, damaged)
        self._groups = DeclaredGroups(plane, self._link, self._replica.barrier, self.store.listener.changed)
        self._subscribing = Subscribing(plane, self.journal, self._claims, self._routes)

    def _build_membership(self, plane: DataPlane) -> None:
        cluster = self._config.cluster
        self._lease = Lease(
            cluster.lease,
            cluster.timeout,
            loop=self._loop,
            reactor=plane.reactor,
            link=self._link,
            membership=self._membership,
            close_persistent=self._claims.close_persistent,
        )
        plane.reactor.attach_lease(self._on_lease_expired)
        self._clock = ClusterClock(self.journal)
        self._cleanup = Cleanup(self._link, self._wills, lambda: self._config.mqtt.session_expiry)
        self._heartbeat = Heartbeat(
            self._link,
            self._membership,
            lease=self._lease,
            replica=self._replica,
            cleanup=self._cleanup,
            clock=self._clock,
            describe=self._describe_node,
        )
        self._recovery = Recovery(
            self._link,
            self._membership,
            address=str(self._address),
            replica=self._replica,
            claims=self._claims,
            lease=self._lease,
            losses=Losses(self._replica, self.store, self._takeover, self._leases, self._unfinished),
            steps=self._link_steps(plane),
        )

    def _link_steps(self, plane: DataPlane) -> LinkSteps:
        reclaim = Reclaim(self._link, self._claims, self._wills, self._takeover)
        return LinkSteps(
            lost=(
                self.store.stop_flowing,
                self._takeover.link_lost,
                self._lease.link_lost,
                self._leases.suspend,
            ),
            back=(
                self._logged.configure,  # the log is registered before its first entry
                partial(self._clock.advance, self._link),  # before deadlines that clients have asked for
                self._flow,
                reclaim.start,  # after commits that release claims
                self.users.refresh_all,
                self._replica.members.confirm_all,
            ),
            caught_up=(
                self._leases.recover,
                self._replica.members.forget_departed,
                self._lease.resume,
                plane.end_turn,
            ),
        )

    def _flow(self) -> None:
        """The link is back: send what Redis lacks."""
        self.store.flow(self._link.connection, self._link.applied)

    # ---- life ----

    async def start(self) -> None:
        plane, link, membership = self.data_plane, self._link, self._membership
        self.store.start(self._confirm, self._loop.call_soon_threadsafe)
        began = time.monotonic()
        try:
            await Joining(
                link,
                membership,
                replica=self._replica,
                store=self.store,
                heartbeat=self._heartbeat,
                wills=self._wills,
                logged=self._logged,
                clock=self._clock,
            ).join(self._former_id)
        except Refused as error:
            reason = re.sub("^(LAYOUT|MOVED|ARRIVING) ", "", str(error))
            raise StoreError(f"Redis at {self._address} is unusable: {reason}", _hint(str(error))) from error
        except (LinkLost, LinkError, OSError, TimeoutError) as error:
            raise NotNow(f"Redis at {self._address} is away: {reason_of(error)}") from error
        finally:
            if membership.joins:
                membership.become_left()
                link.hang_up()
        self._leases.configure(self._config)
        await self._groups.declare_all(self._config.shared.groups)
        await self._inspect_redis()
        if membership.is_over:
            raise NotNow(f"fenced while it joined the cluster: {membership.why_fenced}")
        rewrite_after_restart(link.connection)
        log.info(
            "joined the cluster",
            node=self.node_id,
            nodes=self.nodes,
            subscriptions=plane.router.filters.count,
            retained=plane.router.retained.count,
            seconds=round(time.monotonic() - began, 2),
        )

    async def _inspect_redis(self) -> None:
        """Log warnings about the durability of Redis."""
        client = self._address.async_client()
        try:
            found = await inspect(
                client,
                self._config.cluster.replicas,
                self._config.limits.max_packet_size,
                in_slot=bool(self._link.keys.tag),
            )
        except Exception as error:  # for information only
            log.warning("durability of Redis is unknown", reason=error)
        else:
            self._durability = found.sentence
            for warning in found.warnings:
                log.warning(warning)
        finally:
            await client.aclose()

    def configure(self, config: Config) -> None:
        self._config = config
        self._logged.configure()
        self._leases.configure(config)
        self.data_plane.run(self._groups.declare_all(config.shared.groups))

    def tick(self) -> None:
        now, link, membership = time.monotonic(), self._link, self._membership
        if membership.has_lost_link:
            self._lease.tick_without_redis(now)
        if not membership.has_link:
            return
        if membership.state is State.SUSPENDED or now > self._lease.valid_until:
            self._on_lease_expired()
            return
        self._leases.tick()
        self.data_plane.turn.drop_expired()
        self.data_plane.turn.seal()  # acknowledgements of clients, which no packet waits for
        if link.silent_for > min(self._config.cluster.timeout, self._lease.seconds / 2):
            log.error("Redis does not answer", seconds=round(link.silent_for, 1))
            link.hang_up()
            return
        self._heartbeat.tick(now)
        self._cleanup.tick(now)
        self._delayed.tick(now)
        self._tenant_queues.tick(now)
        self._replica.members.resume_held(now)
        self._expire_retained()

    def _expire_retained(self) -> None:
        """Drop the expired retained messages here; one of the nodes removes them from Redis."""
        topics = self.data_plane.router.expire_retained()
        if topics and self._is_first():
            for topic in topics:
                self.journal.change(("expired", topic))

    def is_responsible(self, name: str) -> bool:
        """Whether this node has the highest weight for the name of all live ones."""
        nodes = [self._link.node_id, *(member.node for member in self._replica.members)]
        return self._link.connected and max(nodes, key=partial(_weight, name)) == self._link.node_id

    def _is_first(self) -> bool:
        """Whether this node has the smallest id of the live ones."""
        return self._link.node_id <= min((member.node for member in self._replica.members), default=b"\xff")

    async def drain(self, references: tuple[str, ...]) -> None:
        link = self._link
        if link.connected:
            link.function(ignore, "leaving")  # changes nothing if this node was declared dead
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
        link, turn, membership = self._link, self.data_plane.turn, self._membership
        if membership.is_member:
            await self._delayed.stop()
            self._logged.log.close()
            turn.seal()
            turn.after_commit(self._settled.set)
            try:
                await asyncio.wait_for(self._settled.wait(), STOP_SECONDS)
            except TimeoutError:
                log.error("Redis does not answer: unconfirmed messages were not acknowledged, and may be lost")
        self._recovery.stop()
        if membership.is_member:
            membership.become_leaving()
            with contextlib.suppress(LinkLost, LinkError, TimeoutError):
                await asyncio.wait_for(link.ask_function("leave"), STOP_SECONDS / 5)
        if not membership.is_over:
            membership.become_left()
        self._end()

    def _end(self) -> None:
        """Nothing more is read from Redis or written to it."""
        self._message_log.close()
        self.store.close()
        self._link.hang_up()

    # ---- state ----

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def node_id(self) -> str:
        return self._link.node_id.decode()

    @property
    def nodes(self) -> int:
        return 1 if self._membership.joins else len(self._replica.members) + 1

    @property
    def is_alone(self) -> bool:
        return False

    def describe(self) -> str:
        return f"node {self._name} of the cluster at {self._address}; {self._durability or 'Redis keeps the state'}"

    def ready(self) -> tuple[bool, str]:
        if self._membership.joins or self._membership.is_over:
            return False, "the node is joining the cluster"
        if self._membership.has_lost_link:
            return False, "Redis is away"
        return True, "ready"  # also if Redis has no memory left: clients that take their messages free some

    def _describe_node(self) -> dict[str, str | int]:
        """The fields of this node in Redis."""
        return {
            **describe_node(self.data_plane, self._name),
            "change": self._replica.changes.last,
            "routes": len(self._routes),
            "fights": self._takeover.fights,
            "links_lost": self._recovery.links_lost,
        }

    # ---- connections and sessions ----

    @property
    def message_log(self) -> MessageLog | None:
        return self._message_log if self._config.analytics.topics else None

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        self._takeover.claim(admission, connection, packet)

    def ended(self, connection: Connection, session: Session | None) -> None:
        if not self._link.closed:
            self._takeover.ended(connection, session)

    def discard_will(self, connection: Connection) -> None:
        self._takeover.discard_will(connection)

    def subscription_weight(self, connection: Connection, session: Session) -> int:
        weight = self._subscribing.weight_of(connection, session)
        return weight if weight is not None else super().subscription_weight(connection, session)

    def has_subscription(self, connection: Connection, session: Session, topic_filter: bytes) -> bool:
        wanted = self._subscribing.wanted_by(connection, session)
        return (
            topic_filter in wanted
            if wanted is not None
            else super().has_subscription(connection, session, topic_filter)
        )

    def subscribe(
        self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], identifier: int, done: Done
    ) -> None:
        self._subscribing.subscribe(connection, session, filters, identifier)
        self._replica.barrier.when_applied(done)

    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        self._subscribing.unsubscribe(connection, session, filters)
        self._replica.barrier.when_applied(done)

    async def end_session(self, client_id: bytes) -> bool:
        with _away_is_not_now():
            outcome, *_ = await self._link.ask_function("purge", client_id)
            return bool(outcome != b"unknown")

    def limit_queue(self, client_id: bytes, limits: QueueLimits | None) -> None:
        super().limit_queue(client_id, limits)
        if self._link.connected:
            value = "" if limits is None else "{} {} {:d}".format(*limits)
            self._link.function(ignore, "limit", client_id, value)

    async def stored_session(self, client_id: bytes) -> dict[str, int] | None:
        link, keys = self._link, self._link.keys
        with _away_is_not_now():
            known = await link.ask("EXISTS", keys.session(client_id))
            size, acked = await link.ask("HMGET", keys.session(client_id), "b", "a")
            entries = await link.ask("LLEN", keys.queue(client_id))
        queued = int(entries) - int(acked or 0)
        return {"queued_messages": queued, "queued_bytes": int(size or 0)} if known else None

    async def waiting_wills(self) -> list[tuple[bytes, Will, int]]:
        return await self._delayed_wills.list()

    async def cancel_will(self, client_id: bytes) -> bool:
        return await self._delayed_wills.cancel(client_id)

    async def delayed_messages(self, prefix: bytes, without: bytes, after: str, limit: int) -> list[Delayed]:
        with _away_is_not_now():
            return await self._delayed.waiting(prefix, without, after, limit)

    async def cancel_delayed(self, message: str, prefix: bytes) -> bool:
        with _away_is_not_now():
            return await self._delayed.cancel(message, prefix)

    async def stored_waiting(self, groups: list[bytes]) -> dict[bytes, tuple[int, int]]:
        if not groups:
            return {}
        with _away_is_not_now():
            found = await self._link.ask_function("waiting", pack(groups))
        return dict(zip(groups, zip(found[::2], found[1::2], strict=True), strict=True))

    async def redis_use(self) -> RedisUse:
        with _away_is_not_now():
            sessions = int(await self._link.ask("ZCARD", self._link.keys.sessions))
            try:
                found = info_fields(await self._link.ask("INFO", "memory"))
            except LinkError as error:
                if not is_forbidden(str(error)):
                    raise
                found = {}
        memory, most = (int(found[name]) if name in found else None for name in ("used_memory", "maxmemory"))
        return RedisUse(sessions, memory, most or None)

    async def purge_group(self, name: bytes) -> int:
        with _away_is_not_now():
            return int(await self._link.ask_function("purge_group", name))

    async def declare_group(self, group: DeclaredGroup) -> None:
        with _away_is_not_now():
            await self._groups.declare(group)

    async def remove_group(self, name: bytes) -> int | None:
        with _away_is_not_now():
            return await self._groups.remove(name)

    async def call_all(self, method: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, RpcReply]:
        return await self._rpc.call_all(method, arguments, seconds)

    # ---- called by the parts ----

    def _on_fenced(self, reason: str, before: State) -> None:
        """This node is no longer a member of the cluster."""
        self._end()
        self._settled.set()
        if before not in (State.JOINING, State.READY):  # else `start` fails, and the node tries again
            self._rejoin(reason)

    def _on_lease_expired(self) -> None:
        now = time.monotonic()
        if not self._link.connected:
            self._lease.look_for_pause(now)
        elif self._lease.expire(now):
            self._clock.advance(self._link)  # before deadlines that clients have asked for meanwhile

    def _on_member_ready(self, node: bytes, change: int) -> None:
        log.info("node joined", node=node.decode())
        member = self._replica.members.add(node)
        self._replica.barrier.node_joined(node, change)

        def read(reply: Reply) -> None:
            member.process = reply if isinstance(reply, bytes) else b""

        self._link.call(read, "HGET", self._link.keys.node(node), "process")

    def _on_member_left(self, node: bytes) -> None:
        if node == self._link.node_id:
            if self._membership.state is not State.LEAVING:
                self._membership.become_fenced(DECLARED_DEAD)
            return
        if self._replica.members.get(node) is not None:
            log.info("node left", node=node.decode())
        self._replica.members.remove(node)
        self._replica.barrier.node_left(node)
        self._takeover.node_left(node)
        self._rpc.node_left(node)

    def _queue_limits(self) -> tuple[int, int, bool]:
        limits = self._config.limits
        return limits.max_queued_messages, limits.max_queued_bytes, limits.queue_policy == "drop-old"

    def _batch_header(self) -> bytes:
        """The header of the batch in the next block."""
        return wire.batch_header(wire.LOGGED, self._link.node_id, self.store.seq + 1)

    def _confirm(self, blocks: int) -> None:
        self.data_plane.turn.confirm(blocks)

    def _purge(self, client_id: bytes) -> None:
        """An operator ends a session whose client is here; in Redis it ends with its connection from now on."""
        self._claims.close(client_id, close_reasons.PURGED_BY_OPERATOR)


@contextlib.contextmanager
def _away_is_not_now() -> Iterator[None]:
    """Report an unreachable Redis as NotNow: the callers are independent of Redis."""
    try:
        yield
    except (LinkLost, LinkError) as error:
        raise NotNow("Redis is away") from error


def _weight(name: str, node: bytes) -> bytes:
    """The weight of a node for a name: spreads names over nodes, and moves few of them when nodes change."""
    return blake2b(name.encode() + node, digest_size=8).digest()


def _hint(reason: str) -> str:
    if reason.startswith("LAYOUT"):
        return "run the version of FlockMQ that its nodes have, or choose another cluster.prefix"
    if reason.startswith("MOVED"):
        return "serve it there, or bring it back with `flockmq migrate FROM TO`"
    if reason.startswith("ARRIVING"):
        return "repeat `flockmq migrate FROM TO` as it was"
    if reason.startswith(("WRONGPASS", "NOAUTH", "ERR AUTH", "invalid username-password", "Authentication required")):
        return "check user and password in the URL"
    if "cluster support disabled" in reason:
        return "this Redis is no Redis Cluster: redis://HOST:PORT is its URL"
    if is_forbidden(reason):
        return "the user needs the rights that deploy/docs/CLUSTER.md lists"
    return "FlockMQ needs Redis 7.0 or later"
