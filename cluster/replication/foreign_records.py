"""Records of sessions and routes of other nodes: the memory that they need no more is freed in small steps."""

from ..._speedups.routing.foreign_sessions import ForeignSessions
from ..._speedups.session.turn import Turn

RETIRE_SECONDS = 10.0  # after which plans are made again, and Sessions go that stand for records in none of them ...
MOST_STANDING = 10_000  # ... or when there are so many
SEGMENTS_AT_ONCE = 64  # of the table: a few tenths of a millisecond with a million records


class ForeignRecords:
    """Cares for the records of a node.

    Args:
        foreign: of the node.
        turn: of the node.
    """

    def __init__(self, foreign: ForeignSessions, turn: Turn) -> None:
        self._foreign = foreign
        self._turn = turn
        self._retire_at = 0.0

    def tick(self, now: float) -> None:
        """Do what is due; to be called several times a second."""
        self._foreign.sweep(SEGMENTS_AT_ONCE)
        if now >= self._retire_at or self._foreign.receivers.standing >= MOST_STANDING:
            self._retire_at = now + RETIRE_SECONDS
            self._retire()

    def _retire(self) -> None:
        gone = self._foreign.retire()
        if gone is not None:
            self._turn.after_commit(gone)  # the reply to a block may have messages for such a Session
