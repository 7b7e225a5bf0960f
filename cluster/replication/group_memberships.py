"""The members of groups that another shard has than the member: the shard of the group has to know them."""

from collections.abc import Callable

from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.cluster.sharded_journal import ShardedJournal, shard_of
from ..._speedups.codec.topics import is_shared

HERE: tuple[int, ...] = ()
ELSEWHERE = (1,)  # the last field of a subscription or a route: another shard has its group


class GroupMemberships:
    """Records the members of groups in the shards of the groups.

    Args:
        journal: of the node; None: there is one shard.
    """

    def __init__(self, journal: ShardedJournal | None) -> None:
        self._journal = journal
        self._is_first: Callable[[int], bool] = lambda shard: False

    @property
    def divided(self) -> bool:
        """Whether there are several shards."""
        return self._journal is not None

    def attach(self, is_first: Callable[[int], bool]) -> None:
        """Connect the answer to whether this node is the first one of a shard."""
        self._is_first = is_first

    def session_ended(self, of: ClusterJournal, name: bytes, client_id: bytes) -> None:
        """A session with a subscription to `name` has ended: the first node of another shard records that there."""
        if self._journal is not None and is_shared(name):
            shard = shard_of(name, self._journal.shards)
            if shard != of.shard and self._is_first(shard):
                self._journal.part(shard).change(("parted", name, b"c:" + client_id, b""))

    def join(self, of: ClusterJournal, name: bytes, client_id: bytes) -> tuple[int, ...]:
        """A session subscribes to `name`; returns the fields that its record has besides. `of`: of the session."""
        return self._record("joined", of, name, b"c:" + client_id, b"")

    def part(self, of: ClusterJournal, name: bytes, client_id: bytes) -> tuple[int, ...]:
        """A session unsubscribes, likewise."""
        return self._record("parted", of, name, b"c:" + client_id, b"")

    def node_joins(self, of: ClusterJournal, name: bytes, node: bytes) -> tuple[int, ...]:
        """A node has a route for `name`, likewise."""
        return self._record("joined", of, name, b"n:" + node, node)

    def node_parts(self, of: ClusterJournal, name: bytes, node: bytes) -> tuple[int, ...]:
        """A node withdraws it, likewise."""
        return self._record("parted", of, name, b"n:" + node, node)

    def _record(self, kind: str, of: ClusterJournal, name: bytes, member: bytes, node: bytes) -> tuple[int, ...]:
        if self._journal is None or not is_shared(name):
            return HERE
        shard = shard_of(name, self._journal.shards)
        if shard == of.shard:
            return HERE
        self._journal.part(shard).change((kind, name, member, node))
        return ELSEWHERE
