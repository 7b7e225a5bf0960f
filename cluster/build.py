"""The composition of a node in a cluster: its primary, the parts for all of its clients, and its shard."""

import asyncio
import secrets
import socket
from collections.abc import Callable

from ..broker.config.schema import Config
from ..broker.coordination.coordinator import Coordinator, Foundation
from ..broker.core.calls import RpcMethods
from ..broker.core.data_plane import DataPlane
from .life import ClusterLife
from .membership.lease import Lease
from .message_log import LoggedMessages
from .peers.nodes import ClusterNodes
from .peers.rpc import Rpc
from .primary import Primary
from .redis.clients import RedisAddress
from .replication.analytics_results import AnalyticsResults
from .replication.redis_access import RedisAccess
from .replication.routes import Routes
from .shard import Shard
from .state import State

COMMITS_UNDER_WAY = 2  # one that Redis executes, and one that it finds when it has ended


class ClusterFoundation(Foundation):
    """The journal and the store of a node in a cluster.

    Args:
        config: of the node.
        loop: of the node.
        rejoin: called with the reason when the node is fenced; its parts do nothing after that.
        former_id: of the node before it was fenced; empty = it was not.
    """

    _life: ClusterLife  # is there from `build` on

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, rejoin: Callable[[str], None], former_id: str = ""
    ) -> None:
        self._name = config.cluster.node_name or socket.gethostname()
        self._loop = loop
        self._rejoin = rejoin
        self._former_id = former_id.encode()
        address = RedisAddress.parse(config.cluster.redis, config.cluster.prefix)
        node_id = f"{self._name}-{secrets.token_hex(4)}".encode()
        self._primary = Primary(address, config.cluster, node_id, self._fenced)
        self.journal, self.store = self._primary.journal, self._primary.store
        self.access = self._access = RedisAccess(self._primary.link, config.cluster.replicas)

    def build(self, data_plane: DataPlane, methods: RpcMethods) -> Coordinator:
        primary, cluster = self._primary, data_plane.config.cluster
        logged = LoggedMessages(
            data_plane, primary.store, primary.link, self._name, lambda: data_plane.config.analytics
        )
        primary.journal.attach(logged.log)
        shard = Shard(
            primary,
            data_plane,
            name=self._name,
            routes=Routes(primary.journal),
            access=self._access,
            results=AnalyticsResults(data_plane.router),
            logged=logged,
            loop=self._loop,
        )
        lease = Lease(
            cluster.lease,
            cluster.timeout,
            loop=self._loop,
            reactor=data_plane.reactor,
            link=primary.link,
            membership=primary.membership,
            close_persistent=shard.claims.close_persistent,
        )
        rpc = Rpc(data_plane, primary.link, shard.replica.members, methods)
        shard.attach(lease, rpc)
        data_plane.turn.limit_commits(COMMITS_UNDER_WAY)
        self._life = ClusterLife(
            data_plane,
            shard,
            name=self._name,
            lease=lease,
            logged=logged,
            loop=self._loop,
            former_id=self._former_id,
        )
        return Coordinator(
            life=self._life,
            nodes=ClusterNodes(primary.link, primary.membership, shard.replica.members, rpc),
            owner=shard.owner,
            subscribing=shard.subscribing,
            sessions=shard.sessions,
            groups=shard.groups,
            wills=shard.wills,
            delayed=shard.delayed,
            transactions=shard.transactions,
        )

    def _fenced(self, reason: str, before: State) -> None:
        """This node is no longer a member of the cluster."""
        self._life.end()
        if before not in (State.JOINING, State.READY):  # else `start` fails, and the node tries again
            self._rejoin(reason)
