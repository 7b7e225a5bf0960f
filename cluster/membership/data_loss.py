"""Data loss: whether Redis still has all that this node has had confirmed, or has received, when its link is back."""

from ..redis.link import LOST_DATA
from ..redis.store import RedisStore
from ..replication.replica import Replica
from ..sessions.assignments import Assignments
from ..sessions.takeover import TakeOver
from ..sessions.unconfirmed_messages import UnconfirmedMessages

STARTED_TWICE = "more than one process of Redis had the data since this node was there, so losses can't be known"


class DataLoss:
    """Compares the numbers of this node with the numbers that Redis has.

    Args:
        replica: the replicated state of the node.
        store: of the node.
        takeover: of the node.
        leases: of the node.
        unconfirmed: of the node.
    """

    def __init__(
        self,
        replica: Replica,
        store: RedisStore,
        takeover: TakeOver,
        assignments: Assignments,
        unconfirmed: UnconfirmedMessages,
    ) -> None:
        self._replica = replica
        self._store = store
        self._takeover = takeover
        self._assignments = assignments
        self._unconfirmed = unconfirmed
        self._unreplied = 0  # calls that Redis has executed, and whose replies were lost with earlier links

    async def find(self, seq: int, change: int, calls: int) -> str:
        """A sentence if Redis has lost data that this node has had confirmed, or has received; else nothing.

        If it has lost data, it has got back what clients have not completed. Raises as `NodeLink.ask`.

        Args:
            seq: of the node's last commit, as Redis has it.
            change: the number of the last change in Redis.
            calls: with acknowledgements, and claims, that Redis has counted.
        """
        lost = await self._compare(seq, change, calls)
        if lost:
            await self._unconfirmed.restore()
        return lost

    async def _compare(self, seq: int, change: int, calls: int) -> str:
        reader = self._replica.reader
        if seq < self._store.confirmed_seq or change < self._replica.changes.last:
            return LOST_DATA
        replied = self._store.acks_executed + self._takeover.claims_executed
        if calls < replied + self._unreplied:
            return LOST_DATA  # acknowledgements of clients, or claims of sessions
        self._unreplied = calls - replied
        if not await reader.is_same_history():
            return "Redis has lost changes, and has used their numbers for others"
        # Numbers of queues and places of groups would be used again, for other messages.
        if await reader.has_lost(self._unconfirmed.numbers()):
            return LOST_DATA
        lost = await reader.lost_places(self._assignments.last_places())
        return STARTED_TWICE if lost is None else LOST_DATA if lost else ""
