"""The parts of a node in a cluster, in two groups, for modules that work with many of them."""

from typing import NamedTuple

from .membership.clock import ClusterClock
from .membership.dead_nodes import DeadNodes
from .membership.heartbeat import Heartbeat
from .membership.joining import Joining
from .membership.lease import Lease
from .membership.reconnection import Reconnection
from .replication.declared_groups import DeclaredGroups
from .replication.routes import Routes
from .sessions.assignments import Assignments
from .sessions.claim import Claims
from .sessions.delayed_messages import RedisDelayed
from .sessions.takeover import TakeOver
from .sessions.tenant_queues import TenantQueues
from .sessions.unconfirmed_messages import UnconfirmedMessages
from .sessions.wills import Wills


class SessionParts(NamedTuple):
    """The parts for sessions and their messages."""

    claims: Claims
    routes: Routes
    wills: Wills
    unconfirmed: UnconfirmedMessages
    takeover: TakeOver
    assignments: Assignments
    groups: DeclaredGroups
    delayed: RedisDelayed
    tenant_queues: TenantQueues


class MembershipParts(NamedTuple):
    """The parts for the membership of the node."""

    clock: ClusterClock
    lease: Lease
    reconnection: Reconnection
    dead_nodes: DeadNodes
    heartbeat: Heartbeat
    joining: Joining
