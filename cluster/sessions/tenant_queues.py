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
        is_home: whether the bytes of this node are reported here; another shard may have them.
        totals: of all shards, which each adds to.
    """

    def __init__(
        self, turn: Turn, link: NodeLink, *, is_home: bool, totals: "dict[NodeLink, dict[bytes, int]]"
    ) -> None:
        self._turn = turn
        self._link = link
        self._is_home = is_home
        self._totals = totals
        self._report_at = 0.0

    def tick(self, now: float) -> None:
        """Report, if it is time and there are tenants."""
        tenants = [*self._turn.tenants]
        if now < self._report_at or not tenants:
            return
        self._report_at = now + REPORT_SECONDS
        bytes_here = [part for tenant in tenants for part in (tenant.prefix, tenant.queued_here * self._is_home)]
        self._link.function(partial(self._reported, tenants), "queued", pack(bytes_here))

    def _reported(self, tenants: list[Tenant], reply: Reply) -> None:
        if isinstance(reply, list) and reply[0] != b"gone":
            self._totals[self._link] = {tenant.prefix: n for tenant, n in zip(tenants, reply[1], strict=True)}
            for tenant in tenants:
                tenant.queued_elsewhere = sum(total.get(tenant.prefix, 0) for total in self._totals.values())
