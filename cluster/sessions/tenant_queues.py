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
        shard: its number.
        home: the shard to which this node reports its bytes.
        totals: of all shards, which each adds to: the bytes elsewhere, by shard and tenant.
    """

    def __init__(
        self, turn: Turn, link: NodeLink, *, shard: int, home: int, totals: dict[int, dict[bytes, int]]
    ) -> None:
        self._turn = turn
        self._link = link
        self._shard = shard
        self._home = home
        self._totals = totals
        self._report_at = 0.0

    def tick(self, now: float) -> None:
        """Report, if it is time and there are tenants."""
        tenants = [*self._turn.tenants]
        if now < self._report_at or not tenants:
            return
        self._report_at = now + REPORT_SECONDS
        bytes_here = [
            part for tenant in tenants for part in (tenant.prefix, tenant.queued_here * (self._shard == self._home))
        ]
        self._link.function(partial(self._reported, tenants), "queued", pack(bytes_here))

    def _reported(self, tenants: list[Tenant], reply: Reply) -> None:
        if isinstance(reply, list) and reply[0] != b"gone":
            self._totals[self._shard] = {tenant.prefix: n for tenant, n in zip(tenants, reply[1], strict=True)}
            for tenant in tenants:
                by_shard = {shard: total.get(tenant.prefix, 0) for shard, total in self._totals.items()}
                tenant.queued_elsewhere = sum(by_shard.values())
                if len(by_shard) > 1:  # Redis judges the limit by the bytes of its shard
                    by_shard[self._home] = by_shard.get(self._home, 0) + tenant.queued_here
                    tenant.queued_by_shard = by_shard
