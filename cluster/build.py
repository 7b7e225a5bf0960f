"""The composition of a node in a cluster, from top to bottom: a part stands below the parts that it uses."""

import asyncio
from collections.abc import Callable
from functools import partial

from .._speedups.protocol import close_reasons
from ..broker.config.schema import Config
from ..broker.coordination.coordinator import Coordinator, Foundation
from ..broker.core.calls import RpcMethods
from ..broker.core.data_plane import DataPlane
from .commit_replies import CommitReplies
from .life import ClusterLife
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
from .parts import MembershipParts, SessionParts
from .peers.members import Members
from .peers.nodes import ClusterNodes
from .peers.rpc import Rpc
from .replication.analytics_results import AnalyticsResults
from .replication.applied_changes import AppliedChanges
from .replication.barrier import Barrier
from .replication.changes import Changes
from .replication.declared_groups import DeclaredGroups
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
from .sessions.unconfirmed_messages import UnconfirmedMessages
from .sessions.wills import Wills
from .ties import Ties

COMMITS_UNDER_WAY = 2  # one that Redis executes, and one that it finds when it has ended


class ClusterFoundation(Foundation):
    """The journal and the store of a node in a cluster.

    Args:
        config: of the node.
        loop: of the node.
        rejoin: called with the reason when the node is fenced; its parts do nothing after that.
        former_id: of the node before it was fenced; empty = it was not.
    """

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, rejoin: Callable[[str], None], former_id: str = ""
    ) -> None:
        self._ties = ties = Ties(config, rejoin)
        self._loop = loop
        self._former_id = former_id.encode()
        self.journal, self.store, self.users = ties.journal, ties.store, ties.users

    def build(self, data_plane: DataPlane, methods: RpcMethods) -> Coordinator:
        ties, link = self._ties, self._ties.link
        replica = _replica(ties, data_plane, self._loop)
        logged = LoggedMessages(data_plane, ties.store, link, ties.name, lambda: ties.config.analytics)
        ties.journal.attach(logged.log)
        sessions = _sessions(ties, data_plane, replica, self._loop)
        membership = _membership(ties, data_plane, replica, sessions, logged, self._loop)
        rpc = Rpc(data_plane, link, replica.members, methods)
        replica.changes.attach(OtherNodes(link, ties.membership, replica, sessions.takeover, rpc))
        inbox = Inbox(data_plane, link, replica, _handlers(sessions, membership.clock, rpc))
        data_plane.turn.limit_commits(COMMITS_UNDER_WAY)
        seal = data_plane.turn.seal_deferred
        link.attach(data_plane.reactor, inbox.receive, inbox.finish, membership.reconnection.start, seal)
        return Coordinator(
            life=ClusterLife(
                data_plane,
                ties,
                replica=replica,
                sessions=sessions,
                membership=membership,
                logged=logged,
                loop=self._loop,
                former_id=self._former_id,
            ),
            nodes=ClusterNodes(link, ties.membership, replica.members, rpc),
            owner=sessions.takeover,
            subscribing=ClusterSubscribing(data_plane, ties.journal, sessions.claims, sessions.routes, replica.barrier),
            sessions=RedisSessions(data_plane, link),
            groups=sessions.groups,
            wills=RedisWills(link, replica.members.is_first),
            delayed=sessions.delayed,
        )


def _replica(ties: Ties, plane: DataPlane, loop: asyncio.AbstractEventLoop) -> Replica:
    """The state that every node has."""
    members = Members(plane, ties.link)
    changes = Changes(plane, members, ties.link.node_id)
    barrier = Barrier(plane.turn, ties.journal, ties.link)
    return Replica(
        members=members,
        changes=changes,
        barrier=barrier,
        applied=AppliedChanges(ties.link, changes, barrier, loop),
        reader=SnapshotReader(plane, changes, ties.link),
        results=AnalyticsResults(plane.router),
        users=ties.users,
    )


def _sessions(ties: Ties, plane: DataPlane, replica: Replica, loop: asyncio.AbstractEventLoop) -> SessionParts:
    """The parts for sessions and their messages."""
    link, journal = ties.link, ties.journal
    claims, routes = Claims(), Routes(journal)
    journal.group_records.follow_claims(claims.epoch_of)
    wills = Wills(plane, link, journal, claims)
    unconfirmed = UnconfirmedMessages(plane, link, claims)
    takeover = TakeOver(
        plane,
        link,
        journal,
        claims=claims,
        wills=wills,
        routes=routes,
        barrier=replica.barrier,
        unconfirmed=unconfirmed,
    )
    assignments = Assignments(plane, link, claims, journal.group_records, ties.store)
    damaged = DamagedKeys(claims, ties.membership.become_fenced)
    ties.store.listener = CommitReplies(plane, link, replica, assignments, damaged)
    return SessionParts(
        claims=claims,
        routes=routes,
        wills=wills,
        unconfirmed=unconfirmed,
        takeover=takeover,
        assignments=assignments,
        groups=DeclaredGroups(plane, link, replica.barrier, ties.store.listener.changed),
        delayed=RedisDelayed(plane, link, wills, replica.members.is_first, loop),
        tenant_queues=TenantQueues(plane.turn, link),
    )


def _membership(
    ties: Ties,
    plane: DataPlane,
    replica: Replica,
    sessions: SessionParts,
    logged: LoggedMessages,
    loop: asyncio.AbstractEventLoop,
) -> MembershipParts:
    """The parts for the membership of the node."""
    link, membership, store = ties.link, ties.membership, ties.store
    clock = ClusterClock(ties.journal)
    lease = Lease(
        ties.config.cluster.lease,
        ties.config.cluster.timeout,
        loop=loop,
        reactor=plane.reactor,
        link=link,
        membership=membership,
        close_persistent=sessions.claims.close_persistent,
    )
    reconnection = Reconnection(
        link,
        membership,
        address=str(ties.address),
        replica=replica,
        claims=sessions.claims,
        lease=lease,
        data_loss=DataLoss(replica, store, sessions.takeover, sessions.assignments, sessions.unconfirmed),
        steps=_link_steps(ties, plane, replica, sessions, logged, clock, lease),
    )
    dead_nodes = DeadNodes(link, sessions.wills, lambda: ties.config.mqtt.session_expiry)
    description = Description(plane, ties.name, replica.changes, sessions.routes, sessions.takeover, reconnection)
    heartbeat = Heartbeat(
        link,
        membership,
        lease=lease,
        replica=replica,
        dead_nodes=dead_nodes,
        clock=clock,
        describe=description.fields,
    )
    replica.reader.attach(heartbeat.send_if_due)
    joining = Joining(
        link,
        membership,
        replica=replica,
        store=store,
        heartbeat=heartbeat,
        wills=sessions.wills,
        logged=logged,
        clock=clock,
    )
    return MembershipParts(clock, lease, reconnection, dead_nodes, heartbeat, joining)


def _link_steps(
    ties: Ties,
    plane: DataPlane,
    replica: Replica,
    sessions: SessionParts,
    logged: LoggedMessages,
    clock: ClusterClock,
    lease: Lease,
) -> LinkSteps:
    """The parts that have to know about the link, in the order in which they are called."""
    link, store, takeover = ties.link, ties.store, sessions.takeover
    reconciliation = ClaimReconciliation(link, sessions.claims, sessions.wills, takeover)
    return LinkSteps(
        lost=(
            store.stop_flowing,
            takeover.link_lost,
            lease.link_lost,
            sessions.assignments.suspend,
        ),
        back=(
            logged.configure,  # the log is registered before its first entry
            partial(clock.advance, link),  # before deadlines that clients have asked for
            lambda: store.flow(link.connection, link.applied),  # send the blocks that Redis lacks
            reconciliation.start,  # after commits that release claims
            ties.users.refresh_all,
            replica.members.confirm_all,
        ),
        caught_up=(
            sessions.assignments.recover,
            replica.members.forget_departed,
            lease.resume,
            plane.end_turn,
        ),
    )


def _handlers(sessions: SessionParts, clock: ClusterClock, rpc: Rpc) -> dict[bytes, Callable[..., object]]:
    """The functions for messages about sessions, wills, the clock and calls, of other nodes and of Redis."""
    claims, assignments = sessions.claims, sessions.assignments
    return {
        b"taken": sessions.takeover.taken,
        b"released": sessions.takeover.released,
        b"adopt": sessions.wills.publish,
        b"later": sessions.delayed.announced,
        b"clock": clock.set,
        b"kick": lambda client_id: claims.close(client_id, close_reasons.KICKED_BY_OPERATOR),
        # In Redis the session ends with its connection from now on.
        b"purge": lambda client_id: claims.close(client_id, close_reasons.PURGED_BY_OPERATOR),
        b"assigned": assignments.receive,
        b"given": assignments.receive_given,
        b"key_free": assignments.key_free,
        b"key_closed": assignments.key_closed,
        b"ask": rpc.handle_ask,
        b"answer": rpc.handle_answer,
    }
