"""The clock of the cluster, as a node has it. No two clocks are compared: deadlines in Redis are times of this one.

Redis moves it forward with the heartbeats of the nodes (cluster/redis/functions/clock.lua). A node goes on from the
last value with its own clock.
"""

import time

from ..._speedups.session.journal import Journal
from ...broker import logs
from ..peers.node_link import NodeLink
from ..redis.link import Reply

DRIFT_MS = 1  # for each reply
LOGGED_MS = 60_000  # time without a node that the log names

log = logs.get("flockmq.cluster")


class ClusterClock:
    """Keeps the journal's relation between the turn's clock and the clock of the cluster.

    Args:
        journal: of the node.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._counted = _now()  # up to this time Redis has been sent what has passed
        self._is_set = False

    def begin(self, before: int, off: int, milliseconds: int) -> None:
        """The node joins.

        Args:
            before: the clock when it joined.
            off: the time until then in which no node lived, and which the clock counts in one step.
            milliseconds: the clock since nodes that died on this machine are declared dead, which may count more.
        """
        self._log_step(off + milliseconds - before)
        self._journal.set_time(milliseconds)
        self._is_set = True

    def _log_step(self, step: int) -> None:
        if step > LOGGED_MS:
            log.warning(
                "no node lived for a while: deadlines count that time by the wall clock of Redis", seconds=step // 1000
            )

    def set(self, milliseconds: int) -> None:
        """Redis has sent the clock of the cluster.

        A reply that was long under way makes the clock appear late, never early: of all replies the earliest counts.
        The two clocks may drift apart by a thousandth.
        """
        if self._is_set:
            self._log_step(milliseconds - self._journal.time)
            milliseconds = max(milliseconds, self._journal.time - DRIFT_MS)
        self._is_set = True
        self._journal.set_time(milliseconds)

    def elapsed(self) -> tuple[int, float]:
        """The time since the last call with a reply, the machine's sleep included.

        Returns milliseconds, for a call to bring to Redis; and the end of their range, for `count` after its reply.
        """
        milliseconds = int((_now() - self._counted) * 1000)
        return milliseconds, self._counted + milliseconds / 1000

    def count(self, until: float) -> None:
        """Redis has counted the time up to this one."""
        self._counted = max(self._counted, until)  # calls overlap if Redis is slow

    def advance(self, link: NodeLink) -> None:
        """Bring the clock up to date for all calls that follow: Redis lets it run for 3 s after a heartbeat."""
        milliseconds, until = self.elapsed()

        def replied(reply: Reply) -> None:
            if isinstance(reply, int):
                self.count(until)
                self.set(reply)

        link.function(replied, "clock", milliseconds)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
