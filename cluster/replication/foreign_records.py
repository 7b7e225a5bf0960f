"""Records of sessions and routes of other nodes: the memory of records that have ended is freed in small steps."""

import time

from ..._speedups.routing.foreign_sessions import ForeignSessions
from ..._speedups.session.turn import Turn

RETIRE_SECONDS = 10.0  # after which plans are made again, and Sessions go that stand for records in none of them ...
MOST_STANDING = 10_000  # ... or a second, when there are so many
SWEEP_SECONDS = 0.001  # of a tick, for routes of nodes that have left


class ForeignRecords:
    """Cares for the records of a node.

    Args:
        foreign: of the node.
        turn: of the node.
    """

    def __init__(self, foreign: ForeignSessions, turn: Turn) -> None:
        self._foreign = foreign
        self._turn = turn
        self._retired_at = 0.0

    def tick(self, now: float) -> None:
        """Do what is due; to be called several times a second."""
        until = time.monotonic() + SWEEP_SECONDS
        while self._foreign.sweep() and time.monotonic() < until:
            pass
        many = self._foreign.receivers.standing >= MOST_STANDING
        if now - self._retired_at >= (min(1.0, RETIRE_SECONDS) if many else RETIRE_SECONDS):
            self._retired_at = now
            self._retire()

    def _retire(self) -> None:
        gone = self._foreign.retire()
        if gone is not None:
            self._turn.after_commit(gone)  # the reply to a block may have messages for such a Session
