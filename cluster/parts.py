"""The parts of a node in a cluster, in two groups, for modules that work with many of them."""

from typing import NamedTuple

from .membership.cleanup import Cleanup
from .membership.clock import ClusterClock
from .membership.heartbeat import Heartbeat
from .membership.joining import Joining
from .membership.lease import Lease
from .membership.recovery import Recovery
from .replication.declared_groups import DeclaredGroups
from .replication.routes import Routes
from .sessions.assignments import Assignments
from .sessions.claim import Claims
from .sessions.delayed_messages import RedisDelayed
from .sessions.takeover import TakeOver
from .sessions.tenant_queues import TenantQueues
from .sessions.unfinished import Unfinished
from .sessions.wills import Wills


class SessionParts(NamedTuple):
    """The parts for sessions and their messages."""

    claims: Claims
    routes: Routes
    wills: Wills
    unfinished: Unfinished
    takeover: TakeOver
    assignments: Assignments
    groups: DeclaredGroups
    delayed: RedisDelayed
    tenant_queues: TenantQueues


class MembershipParts(NamedTuple):
    """The parts for the membership of the node."""

    clock: ClusterClock
    lease: Lease
    recovery: Recovery
    cleanup: Cleanup
    heartbeat: Heartbeat
    joining: Joining
