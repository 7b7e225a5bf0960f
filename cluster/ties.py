"""The ties of a node to the Redis of its cluster: its id, its link, its journal and its store."""

import asyncio
import secrets
import socket
from collections.abc import Callable

from .._speedups.cluster.journal import ClusterJournal
from ..broker.config.schema import Config
from .peers import wire
from .peers.node_link import NodeLink
from .redis.clients import RedisAddress
from .redis.connector import Connector
from .redis.log_bounds import REPAIR_LOG_BYTES, REPAIR_LOG_SECONDS, LogBounds
from .redis.store import RedisStore
from .replication.users import Users
from .state import Membership, State
from .streams.redis_log import RedisLog

MIN_PATIENCE = 3.0  # seconds without data from Redis after which a call counts as lost


class Ties:
    """The parts of a node in a cluster that are there before its data plane.

    Args:
        config: of the node.
        rejoin: called with the reason when the node is fenced; the parts of the node do nothing after that.
    """

    def __init__(self, config: Config, rejoin: Callable[[str], None]) -> None:
        cluster = config.cluster
        self.config = config  # in force
        self.name = cluster.node_name or socket.gethostname()
        self.address = RedisAddress.parse(cluster.redis, cluster.prefix)
        self._rejoin = rejoin
        node_id = f"{self.name}-{secrets.token_hex(4)}".encode()
        keys, patience = self.address.keys, max(MIN_PATIENCE, cluster.timeout)
        self.membership = Membership(node_id.decode(), self._fenced)
        self.link = NodeLink(Connector(self.address, node_id, patience), keys, node_id, self.membership, patience)
        self.journal = ClusterJournal(self._batch_header, node_id)
        self.store = RedisStore(
            keys,
            node_id,
            limits=self._queue_limits,
            bounds=LogBounds(REPAIR_LOG_BYTES, REPAIR_LOG_SECONDS),
            replicas=cluster.replicas,
            on_fenced=self.membership.become_fenced,
        )
        self.users = Users(self.link)
        self.message_log = RedisLog(self.address)
        self.settled = asyncio.Event()  # all is committed, or the node is fenced: a stop need not wait

    def configure(self, config: Config) -> None:
        """The configuration was read again."""
        self.config = config

    def close(self) -> None:
        """Read nothing more from Redis, and write nothing to it."""
        self.message_log.close()
        self.store.close()
        self.link.hang_up()

    def _fenced(self, reason: str, before: State) -> None:
        """This node is no longer a member of the cluster."""
        self.close()
        self.settled.set()
        if before not in (State.JOINING, State.READY):  # else `start` fails, and the node tries again
            self._rejoin(reason)

    def _queue_limits(self) -> tuple[int, int, bool]:
        limits = self.config.limits
        return limits.max_queued_messages, limits.max_queued_bytes, limits.queue_policy == "drop-old"

    def _batch_header(self) -> bytes:
        """The header of the batch in the next block."""
        return wire.batch_header(wire.LOGGED, self.link.node_id, self.store.seq + 1)
