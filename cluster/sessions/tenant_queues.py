"""The bytes in the queues of each tenant over all nodes, which `max_queued_bytes` of a tenant limits.

Redis counts its own queues, and judges the limit when a commit adds to them. The queues of clean sessions, and leases
for which no member has room, are at their node. So each node reports their bytes once a second, and learns the bytes of
all other queues, with which it judges its own.
"""

from functools import partial

from ..._speedups.base.msgpack import pack
from ..._speedups.session.tenant import Tenant
from ..._speedups.session.turn import Turn
from ..peers.node_link import NodeLink
from ..redis.link import Reply

REPORT_SECONDS = 1.0


class TenantQueues:
    """Reports the bytes of queues of this node.

    Args:
        turn: of this node.
        link: of this node.
    """

    def __init__(self, turn: Turn, link: NodeLink) -> None:
        self._turn = turn
        self._link = link
        self._report_at = 0.0

    def tick(self, now: float) -> None:
        """Report, if it is time and there are tenants."""
        tenants = [*self._turn.tenants]
        if now < self._report_at or not tenants:
            return
        self._report_at = now + REPORT_SECONDS
        bytes_here = [part for tenant in tenants for part in (tenant.prefix, tenant.queued_here)]
        self._link.function(partial(self._reported, tenants), "queued", pack(bytes_here))

    @staticmethod
    def _reported(tenants: list[Tenant], reply: Reply) -> None:
        if isinstance(reply, list) and reply[0] != b"gone":
            for tenant, elsewhere in zip(tenants, reply[1], strict=True):
                tenant.queued_elsewhere = elsewhere
