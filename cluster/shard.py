"""A shard: one instance of the protocol of deploy/docs/CLUSTER.md, on one Redis primary. A cluster has one.

The primary has the sessions, the groups and the retained messages of the shard, the numbers of its changes, the epochs
of its claims and its clock. Each node is a member: it has a copy of the state that all nodes know, it serves the
sessions of its clients, and it judges the other members.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

from .._speedups.protocol import close_reasons
from ..broker import logs
from ..broker.config.declared_group import DeclaredGroup
from ..broker.config.schema import Config
from ..broker.core.data_plane import DataPlane
from .among import Among
from .commit_replies import CommitReplies
from .elsewhere import Elsewhere
from .membership.clock import ClusterClock
from .membership.data_loss import DataLoss
from .membership.dead_nodes import DeadNodes
from .membership.description import Description
from .membership.heartbeat import Heartbeat
from .membership.inbox import Inbox
from .membership.joining import Joining
from .membership.lease import Lease
from .membership.other_nodes import OtherNodes
from .membership.reconnection import LinkSteps, Reconnection
from .message_log import LoggedMessages
from .orphans import Orphans
from .peers.members import Members
from .peers.rpc import Rpc
from .primary import Primary
from .redis.durability import Durability, inspect
from .redis.link import LinkError, LinkLost, Reply, ignore
from .redis.shard_addresses import Place
from .replication.analytics_results import AnalyticsResults
from .replication.applied_changes import AppliedChanges
from .replication.barrier import Barrier
from .replication.changes import Changes
from .replication.declared_groups import DeclaredGroups
from .replication.redis_access import RedisAccess
from .replication.replica import Replica
from .replication.routes import Routes
from .replication.snapshot import SnapshotReader
from .sessions.assignments import Assignments
from .sessions.claim import Claims
from .sessions.claim_reconciliation import ClaimReconciliation
from .sessions.damaged_keys import DamagedKeys
from .sessions.delayed_messages import RedisDelayed
from .sessions.delayed_wills import RedisWills
from .sessions.stored_sessions import RedisSessions
from .sessions.subscribing import ClusterSubscribing
from .sessions.takeover import TakeOver
from .sessions.tenant_queues import TenantQueues
from .sessions.transactions import RedisTransactions
from .sessions.unconfirmed_messages import UnconfirmedMessages
from .sessions.wills import Wills

COUNT_SECONDS = 1.0  # between questions for the number of sessions
LEAVE_SECONDS = 2.0  # that Redis may take for the end of the membership

log = logs.get("flockmq.cluster")


class Shard:
    """This node in a shard.

    The public parts are interfaces of the coordinator. Parts that serve all clients of the node, whatever their shards,
    are arguments.

    Args:
        primary: of the shard.
        plane: of the node.
        name: of the node in its cluster.
        routes: of the node.
        access: users and roles.
        results: the results of analytics jobs that the node has published.
        logged: the log of messages of the node.
        loop: of the node.
        among: the rules between the shards of the node.
    """

    def __init__(
        self,
        primary: Primary,
        plane: DataPlane,
        *,
        name: str,
        routes: Routes,
        access: RedisAccess | Elsewhere,
        results: AnalyticsResults | Elsewhere,
        logged: LoggedMessages | Elsewhere,
        loop: asyncio.AbstractEventLoop,
        among: Among,
    ) -> None:
        link, journal, store = primary.link, primary.journal, primary.store
        self.primary = primary
        self.link = link
        self.membership = primary.membership
        self.routes = routes
        self._plane = plane
        self._name = name
        self._logged = logged
        self._among = among
        self.number = number = primary.journal.shard
        self._sessions_stored = 0  # persistent ones of all nodes, as far as this node has asked
        self._count_at = 0.0
        self._unburied: set[bytes] = set()  # nodes that are dead in other shards, while there was no link

        # The state that all nodes know.
        members = Members(plane, link, lambda node: among.home_of(node) == number)
        changes = Changes(plane, members, link.node_id, journal, among.memberships, partial(among.late.changed, number))
        barrier = Barrier(plane.turn, journal, link)
        applied = among.barrier(barrier, link)
        self.replica = Replica(
            members=members,
            changes=changes,
            barrier=barrier,
            applied=AppliedChanges(link, changes, barrier, loop, among.flush),
            reader=SnapshotReader(plane, changes, link),
            results=results,
            access=access,
        )

        # The sessions of this node's clients.
        self.claims = claims = Claims()
        journal.group_records.follow_claims(claims.epoch_of)
        self._wills = Wills(plane, link, journal, claims)
        self._unconfirmed = UnconfirmedMessages(link, claims)
        self.owner = TakeOver(
            plane,
            link,
            journal,
            claims=claims,
            wills=self._wills,
            routes=routes,
            barrier=applied,
            unconfirmed=self._unconfirmed,
            flushed=among.flushed,
            home=among.touched(link.node_id),
            most_sessions=lambda: among.most_sessions(self),
        )
        self.subscribing = ClusterSubscribing(
            plane,
            journal,
            claims,
            routes,
            applied,
            among.memberships,
            partial(among.touched, link.node_id),
            among.late.note,
        )
        self.sessions = RedisSessions(plane, link)
        self.assignments = Assignments(plane, link, claims, journal.group_records, store, among, number)
        damaged = DamagedKeys(claims, self.membership.become_fenced)
        store.listener = CommitReplies(plane, link, self.replica, self.assignments, damaged)
        self.groups = DeclaredGroups(plane, link, barrier, store.listener.changed)
        self.wills = RedisWills(link, members.is_first)
        self.delayed = RedisDelayed(plane, link, self._wills, members.is_first, loop)
        self.transactions = RedisTransactions(plane, link)
        self._tenant_queues = TenantQueues(
            plane.turn, link, shard=number, home=among.home_of(link.node_id), totals=among.tenant_totals
        )
        self._limit_queues(plane.config)

    def attach(self, lease: Lease, rpc: Rpc, place: Place) -> None:
        """Make the parts of the membership, and connect the link with them.

        Args:
            lease: of the node in this shard.
            rpc: the calls of the node.
            place: of the shard.
        """
        plane, link, membership, replica = self._plane, self.link, self.membership, self.replica
        self._lease = lease
        self._clock = ClusterClock(self.primary.journal)
        died = partial(self._among.died, self)
        self._orphans = Orphans(link, self._among.links)
        self._dead_nodes = DeadNodes(
            link, self._wills, lambda: plane.config.mqtt.session_expiry, died, several=self._among.count > 1
        )
        self._reconnection = Reconnection(
            link,
            membership,
            address=str(self.primary.address),
            replica=replica,
            claims=self.claims,
            lease=lease,
            data_loss=DataLoss(replica, self.primary.store, self.owner, self.assignments, self._unconfirmed),
            steps=self._link_steps(),
        )
        description = Description(plane, self._name, replica.changes, self.routes, self.owner, self._reconnection)
        self._heartbeat = Heartbeat(
            link,
            membership,
            lease=lease,
            replica=replica,
            dead_nodes=self._dead_nodes,
            clock=self._clock,
            describe=description.fields,
        )
        replica.reader.attach(self._heartbeat.send_if_due)
        self._joining = Joining(
            link,
            membership,
            place=place,
            others_too=self._among.others_too,
            replica=replica,
            store=self.primary.store,
            heartbeat=self._heartbeat,
            wills=self._wills,
            logged=self._logged,
            clock=self._clock,
        )
        replica.changes.attach(OtherNodes(link, membership, replica, self.owner, rpc, died))
        inbox = Inbox(plane, link, replica, self._handlers(rpc))
        link.attach(plane.reactor, inbox.receive, inbox.finish, self._reconnection.start, plane.turn.seal_deferred)

    def _link_steps(self) -> LinkSteps:
        """The parts that have to know about the link, in the order in which they are called."""
        link, store = self.link, self.primary.store
        reconciliation = ClaimReconciliation(link, self.claims, self._wills, self.owner)
        return LinkSteps(
            lost=(
                store.stop_flowing,
                self.owner.link_lost,
                self._lease.link_lost,
                self.assignments.suspend,
            ),
            back=(
                self._bury_missed,  # before anything that follows from it
                self._logged.configure,  # the log is registered before its first entry
                self.set_clock,  # before deadlines that clients have asked for
                lambda: store.flow(link.connection, link.applied),  # send the blocks that Redis lacks
                reconciliation.start,  # after commits that release claims
                self.replica.access.link_back,
                self.replica.members.confirm_all,
                partial(self._among.link_back, link),
            ),
            caught_up=(
                self.assignments.recover,
                self.replica.members.forget_departed,
                self._lease.resume,
                self._plane.end_turn,
            ),
        )

    def _handlers(self, rpc: Rpc) -> dict[bytes, Callable[..., object]]:
        """The functions for messages about sessions, wills, the clock and calls, of other nodes and of Redis."""
        claims, assignments = self.claims, self.assignments
        return {
            b"taken": self.owner.taken,
            b"released": self.owner.released,
            b"adopt": self._wills.publish,
            b"later": self.delayed.announced,
            b"clock": self._clock.set,
            b"kick": lambda client_id: claims.close(client_id, close_reasons.KICKED_BY_OPERATOR),
            # In Redis the session ends with its connection from now on.
            b"purge": lambda client_id: claims.close(client_id, close_reasons.PURGED_BY_OPERATOR),
            b"assigned": assignments.receive,
            b"given": assignments.receive_given,
            b"key_free": assignments.key_free,
            b"key_closed": assignments.key_closed,
            b"key_elsewhere": assignments.key_elsewhere,
            b"ask": rpc.handle_ask,
            b"answer": rpc.handle_answer,
        }

    # ---- life ----

    async def join(self, former_id: bytes) -> None:
        """Become a member: read the state of the shard, and declare the groups of the configuration.

        Args:
            former_id: of the node before it was fenced; empty = it was not.

        Raises:
            Refused, LinkError, LinkLost, OSError, TimeoutError: as `Joining.join`. The membership is over then.
        """
        try:
            await self._joining.join(former_id)
        finally:
            if self.membership.joins:
                self.membership.become_left()
                self.link.hang_up()
        self.configure(self._plane.config)
        await self.groups.declare_all(self._declared(self._plane.config))

    def configure(self, config: Config) -> None:
        """Apply the limits of a configuration."""
        self._limit_queues(config)
        self.assignments.configure(config)

    def _declared(self, config: Config) -> list[DeclaredGroup]:
        """The groups of a configuration that this shard has."""
        return [group for group in config.shared.groups if self._among.home_of(group.name.encode()) == self.number]

    def declare_groups(self, config: Config) -> None:
        """Declare the groups of a configuration."""
        self._plane.run(self.groups.declare_all(self._declared(config)))

    def _limit_queues(self, config: Config) -> None:
        limits = config.limits
        drop_oldest = limits.queue_policy == "drop-old"
        self.primary.store.limit_queues(limits.max_queued_messages, limits.max_queued_bytes, drop_oldest=drop_oldest)

    def tick(self, now: float) -> bool:
        """A quarter of a second has passed, and the link carries calls. Hang up if Redis does not answer.

        Args:
            now: monotonic.

        Returns:
            Whether Redis answers.
        """
        if self.link.silent_for > min(self._plane.config.cluster.timeout, self._lease.seconds / 2):
            log.error("Redis does not answer", seconds=round(self.link.silent_for, 1))
            self.link.hang_up()
            return False
        self.owner.send_requests()  # Redis refuses claims that are late, until the next heartbeat
        self._heartbeat.tick(now)
        self._dead_nodes.tick(now)
        if self.number == 0:
            self.delayed.tick(now)
            self.transactions.tick(now)
        self._count_sessions(now)
        if self._among.count > 1:
            self.primary.journal.flush_forgotten()
            if self.is_first:
                self._orphans.tick(now)
        self._tenant_queues.tick(now)
        self.replica.members.resume_held(now)
        return True

    def beat(self) -> None:
        """Send a heartbeat if one is due, while other shards are joined."""
        if self.link.connected:
            self._heartbeat.tick(time.monotonic())

    def _count_sessions(self, now: float) -> None:
        """Ask how many sessions the shard has, if others have to know."""
        if self._among.count > 1 and self._plane.config.limits.max_sessions and now >= self._count_at:
            self._count_at = now + COUNT_SECONDS
            self.link.call(self._counted, "SCARD", self.link.keys.sessions)

    def _counted(self, reply: Reply) -> None:
        if isinstance(reply, int):
            self._sessions_stored = reply

    @property
    def sessions_stored(self) -> int:
        """The persistent sessions of the shard, as far as this node has asked."""
        return self._sessions_stored

    def bury(self, node: bytes) -> None:
        """A node is dead in another shard: it is dead in this one, too."""
        if self.link.connected:
            self._dead_nodes.bury(node, b"")
        else:
            self._unburied.add(node)

    def look_for_orphans(self) -> None:
        """A node is dead: look for its traces at the next tick."""
        self._orphans.look_soon()

    def _bury_missed(self) -> None:
        nodes, self._unburied = self._unburied, set()
        for node in nodes:
            self._dead_nodes.bury(node, b"")

    @property
    def is_first(self) -> bool:
        """Whether this node has the smallest id of the live ones."""
        return self.replica.members.is_first()

    @property
    def lease(self) -> Lease:
        """The lease of the node in this shard."""
        return self._lease

    def set_clock(self) -> None:
        """Bring the clock of the shard up to date for all calls that follow."""
        self._clock.advance(self.link)

    def announce_end(self) -> None:
        """The node is drained: its clients come to other members. Changes nothing if it was declared dead."""
        if self.link.connected:
            self.link.function(ignore, "leaving")

    async def leave(self) -> None:
        """End the membership; all records that the node could store are stored."""
        self._reconnection.stop()
        if self.membership.is_member:
            self.membership.become_leaving()
            with contextlib.suppress(LinkLost, LinkError, TimeoutError):
                await asyncio.wait_for(self.link.ask_function("leave"), LEAVE_SECONDS)
        if not self.membership.is_over:
            self.membership.become_left()

    async def inspect(self) -> Durability:
        """The durability of the primary. Raises redis.RedisError and others: the primary does not reply."""
        config, client = self._plane.config, self.primary.address.async_client()
        try:
            return await inspect(
                client, config.cluster.replicas, config.limits.max_packet_size, in_slot=bool(self.link.keys.tag)
            )
        finally:
            await client.aclose()
