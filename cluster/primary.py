"""A Redis primary, as this node reaches it: the parts of a shard that are there before the data plane."""

from collections.abc import Callable

from .._speedups.cluster.journal import ClusterJournal
from ..broker.config.schema import ClusterConfig
from .peers import wire
from .peers.node_link import NodeLink
from .redis.clients import RedisAddress
from .redis.connector import Connector
from .redis.log_bounds import REPAIR_LOG_BYTES, REPAIR_LOG_SECONDS, LogBounds
from .redis.store import RedisStore
from .state import Membership, State

MIN_PATIENCE = 3.0  # seconds without data from Redis after which a call counts as lost


class Primary:
    """The membership of this node at one primary, its link, its journal and its store.

    Args:
        address: of the primary, with the prefix of the keys there.
        config: of the cluster.
        node_id: of this node.
        on_fenced: called with the reason, once, when this node is no member any more; the second argument is the state
            before.
    """

    def __init__(
        self, address: RedisAddress, config: ClusterConfig, node_id: bytes, on_fenced: Callable[[str, State], object]
    ) -> None:
        keys, patience = address.keys, max(MIN_PATIENCE, config.timeout)
        self.address = address
        self.membership = Membership(node_id.decode(), on_fenced)
        self.link = NodeLink(Connector(address, node_id, patience), keys, node_id, self.membership, patience)
        self.journal = ClusterJournal(self.batch_header, node_id)
        self.store = RedisStore(
            keys,
            node_id,
            bounds=LogBounds(REPAIR_LOG_BYTES, REPAIR_LOG_SECONDS),
            replicas=config.replicas,
            on_fenced=self.membership.become_fenced,
        )

    def close(self) -> None:
        """Read nothing more from Redis, and write nothing to it."""
        self.store.close()
        self.link.hang_up()

    def batch_header(self, ahead: int) -> bytes:
        """The header of the batch in the block after the next `ahead` ones."""
        return wire.batch_header(wire.LOGGED, self.link.node_id, self.store.seq + ahead + 1)
