"""The clock of the cluster, as a node has it. No two clocks are compared: deadlines in Redis are times of this one.

Redis moves it forward with the heartbeats of the nodes (cluster/redis/functions/common.lua). A node goes on from the
last value with its own clock.
"""

import time

from _speedups.session.journal import Journal

DRIFT_MS = 1  # for each reply


class ClusterClock:
    """Keeps the journal's relation between the turn's clock and the clock of the cluster.

    Args:
        journal: of the node.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last_beat = _now()
        self._is_set = False

    def set(self, milliseconds: int) -> None:
        """Redis has sent the clock of the cluster.

        A reply that was long under way makes the clock appear late, never early: of all replies the earliest counts.
        The two clocks may drift apart by a thousandth.
        """
        if self._is_set:
            milliseconds = max(milliseconds, self._journal.time - DRIFT_MS)
        self._is_set = True
        self._journal.set_time(milliseconds)

    def elapsed(self) -> int:
        """Milliseconds since the last heartbeat that Redis has replied to, the machine's sleep included."""
        return int((_now() - self._last_beat) * 1000)

    def beaten(self, elapsed: int) -> None:
        """Redis has replied to the heartbeat that was sent when `elapsed` milliseconds had passed."""
        self._last_beat += elapsed / 1000


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
