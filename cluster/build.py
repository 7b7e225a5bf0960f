"""The composition of a node in a cluster: its primaries, the parts for all of its clients, and its shards."""

import asyncio
import secrets
import socket
from collections.abc import Callable

from .._speedups.cluster.journal import ClusterJournal
from .._speedups.cluster.sharded_journal import ShardedJournal
from ..broker.config.schema import Config
from ..broker.coordination.coordinator import Coordinator, Foundation
from ..broker.core.calls import RpcMethods
from ..broker.core.data_plane import DataPlane
from .among import Among
from .elsewhere import Elsewhere
from .life import ClusterLife
from .membership.lease import Lease
from .membership.leases import Leases
from .message_log import LoggedMessages
from .peers.nodes import ClusterNodes
from .peers.rpc import Rpc
from .primary import Primary
from .redis.shard_addresses import addresses_of, places_of
from .redis.store import RedisStore
from .replication.analytics_results import AnalyticsResults
from .replication.redis_access import RedisAccess
from .replication.routes import Routes
from .shard import Shard
from .sharding.parts import ShardedGroups, ShardedOwner, ShardedSessions, ShardedSubscribing, ShardedWills
from .sharding.shards import Shards
from .sharding.store import ShardedStore
from .state import State

JOINING = (State.JOINING, State.READY)
COMMITS_UNDER_WAY = 2  # one that Redis executes, and one that it finds when it has ended


class ClusterFoundation(Foundation):
    """The journal and the store of a node in a cluster.

    Args:
        config: of the node.
        loop: of the node.
        rejoin: called with the reason when the node is fenced; its parts do nothing after that.
        former_id: of the node before it was fenced; empty = it was not.
    """

    journal: ClusterJournal | ShardedJournal
    store: RedisStore | ShardedStore
    _life: ClusterLife  # is there from `build` on

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, rejoin: Callable[[str], None], former_id: str = ""
    ) -> None:
        self._name = config.cluster.node_name or socket.gethostname()
        self._loop = loop
        self._rejoin = rejoin
        self._former_id = former_id.encode()
        self._is_fenced = False
        node_id = f"{self._name}-{secrets.token_hex(4)}".encode()
        self._primaries = [
            Primary(address, config.cluster, node_id, self._fenced) for address in addresses_of(config.cluster)
        ]
        first = self._primaries[0]
        self._sharded: ShardedJournal | None = None
        if len(self._primaries) == 1:
            self.journal, self.store = first.journal, first.store
        else:
            self._sharded = ShardedJournal([primary.batch_header for primary in self._primaries], node_id)
            for shard, primary in enumerate(self._primaries):
                primary.journal = self._sharded.part(shard)
            self.journal = self._sharded
            self.store = ShardedStore([primary.store for primary in self._primaries], self._sharded)
        self.access = self._access = RedisAccess(first.link, config.cluster.replicas)

    def build(self, data_plane: DataPlane, methods: RpcMethods) -> Coordinator:
        first, link = self._primaries[0], self._primaries[0].link
        logged = LoggedMessages(data_plane, self.store, link, self._name, lambda: data_plane.config.analytics)
        self.journal.attach(logged.log)
        among = Among(data_plane, self._sharded, self._loop)
        home = self._primaries[among.home_of(link.node_id)]
        routes = Routes(home.journal, link.node_id, among.memberships)
        results, elsewhere = AnalyticsResults(data_plane.router), Elsewhere()
        leases = Leases(data_plane.reactor)
        shards = []
        for primary in self._primaries:
            is_first = primary is first
            shards.append(
                Shard(
                    primary,
                    data_plane,
                    name=self._name,
                    routes=routes,
                    access=self._access if is_first else elsewhere,
                    results=results if is_first else elsewhere,
                    logged=logged if is_first else elsewhere,
                    loop=self._loop,
                    among=among,
                )
            )
        among.attach(shards)
        rpc = Rpc(data_plane, link, shards[0].replica.members, methods)
        places = places_of([primary.address for primary in self._primaries])
        for shard, place in zip(shards, places, strict=True):
            shard.attach(self._lease(data_plane, shard, leases), rpc, place)
        data_plane.turn.limit_commits(COMMITS_UNDER_WAY)
        if isinstance(self.store, ShardedStore):
            self.store.attach(data_plane.turn, COMMITS_UNDER_WAY)
        parts = Shards(shards, among)
        self._life = ClusterLife(
            data_plane,
            parts,
            name=self._name,
            logged=logged,
            loop=self._loop,
            former_id=self._former_id,
            store=self.store,
        )
        return self._coordinator(
            parts,
            ClusterNodes(
                [primary.link for primary in self._primaries],
                [primary.store for primary in self._primaries],
                first.membership,
                shards[0].replica.members,
                rpc,
            ),
        )

    def _lease(self, data_plane: DataPlane, shard: Shard, leases: Leases) -> Lease:
        cluster = data_plane.config.cluster
        return Lease(
            cluster.lease,
            cluster.timeout,
            loop=self._loop,
            reactor=leases.lease(),
            link=shard.link,
            membership=shard.membership,
            close_persistent=shard.claims.close_persistent,
        )

    def _coordinator(self, shards: Shards, nodes: ClusterNodes) -> Coordinator:
        first, several = shards.first, len(shards) > 1
        return Coordinator(
            life=self._life,
            nodes=nodes,
            owner=ShardedOwner(shards) if several else first.owner,
            subscribing=ShardedSubscribing(shards) if several else first.subscribing,
            sessions=ShardedSessions(shards) if several else first.sessions,
            groups=ShardedGroups(shards) if several else first.groups,
            wills=ShardedWills(shards) if several else first.wills,
            delayed=first.delayed,
            transactions=first.transactions,
        )

    def _fenced(self, reason: str, before: State) -> None:
        """This node is no longer a member of a shard, and so of none."""
        if self._is_fenced:
            return
        self._is_fenced = True
        joins = before in JOINING or any(primary.membership.state in JOINING for primary in self._primaries)
        for primary in self._primaries:
            primary.membership.become_fenced(reason)
        self._life.end()
        if not joins:  # else `start` fails, and the node tries again
            self._rejoin(reason)
