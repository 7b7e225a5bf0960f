"""Stuck sessions: their clients leave a message unacknowledged for long, while others wait behind it.

A message has no time. Each round notes the oldest message of every session in which others wait; its age
counts from the first round that has seen it. A session without a connection is not stuck.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..._speedups.base.tick import TICKS_PER_SECOND
from ..._speedups.session import session_view
from ..._speedups.session.session import Session
from ..._speedups.session.turn import Turn
from .. import logs
from .sessions import Sessions

ROUND_TICKS = 20  # from one round to the next
LOOKS = 2000  # sessions in a row: a round takes several ticks if more of them wait
MAX_EPISODES = 1000  # at a time; further stuck sessions are only counted

log = logs.get("flockmq.queues")


@dataclass(slots=True)
class HoldUp:
    """The oldest unacknowledged message of a session in which others wait."""

    message: tuple[int, int]  # the number of its session, and its own in the queue
    since: int  # tick of the round that saw it first
    is_stuck: bool = False
    is_logged: bool = False


class StuckSessions:
    """Finds stuck sessions, and logs one warning per session when it begins to be stuck, and one line when it ends.

    Args:
        turn: of the node; it names the sessions in which messages wait.
        sessions: of the node.
    """

    def __init__(self, turn: Turn, sessions: Sessions) -> None:
        self._turn = turn
        self._sessions = sessions
        self._holds: dict[bytes, HoldUp] = {}  # by client id
        self._round: list[bytes] = []  # those still to be looked at
        self._next_round = 0  # its tick
        self._logged = 0
        self.count = 0

    def configure(self, seconds: float) -> None:
        """A session is stuck after these seconds."""
        self._ticks = max(1, round(seconds * TICKS_PER_SECOND))

    def tick(self) -> None:
        """A quarter of a second has passed."""
        now = self._turn.tick
        if not self._round and now >= self._next_round:
            self._next_round = now + min(ROUND_TICKS, self._ticks)
            for client_id in self._turn.take_held_up():
                self._holds.setdefault(client_id, HoldUp((0, 0), now))
            self._round = list(self._holds)
        for client_id in self._round[-LOOKS:]:
            self._look(client_id, now)
        del self._round[-LOOKS:]

    def _look(self, client_id: bytes, now: int) -> None:
        hold, session = self._holds[client_id], self._sessions.get(client_id)
        oldest = session_view.hold_up(session) if session is not None else None
        if session is None or oldest is None:
            self._end(client_id, hold)
            del self._holds[client_id]
        elif hold.message != (session.session_id, oldest[0]):
            self._end(client_id, hold)
            self._holds[client_id] = HoldUp((session.session_id, oldest[0]), now)
        elif not hold.is_stuck and now - hold.since >= self._ticks:
            self._begin(session, hold)

    def _begin(self, session: Session, hold: HoldUp) -> None:
        hold.is_stuck, hold.is_logged = True, self._logged < MAX_EPISODES
        self.count += 1
        self._logged += hold.is_logged
        if hold.is_logged:
            log.warning(
                "messages wait behind one that the client does not acknowledge",
                client_id=logs.as_text(session.client_id),
                **(self.described(session) or {}),
            )

    def _end(self, client_id: bytes, hold: HoldUp) -> None:
        self.count -= hold.is_stuck
        self._logged -= hold.is_logged
        if hold.is_logged:
            log.warning(
                "no message waits any more behind one that the client did not acknowledge",
                client_id=logs.as_text(client_id),
                seconds=self._seconds(hold),
            )

    def described(self, session: Session) -> dict[str, Any] | None:
        """The message that others wait for in a stuck session; None: it is not stuck."""
        hold, oldest = self._holds.get(session.client_id), session_view.hold_up(session)
        if hold is None or not hold.is_stuck or oldest is None or hold.message != (session.session_id, oldest[0]):
            return None
        _, packet_id, topic, waiting = oldest
        return {
            "packet_id": packet_id,
            "topic": logs.as_text(topic or b""),
            "seconds": self._seconds(hold),
            "waiting": waiting,
        }

    def ages(self) -> Iterator[tuple[int, bytes]]:
        """Of each session in which messages wait behind one: seconds since a round has seen that one, and client id."""
        return ((self._seconds(hold), client_id) for client_id, hold in list(self._holds.items()) if hold.message[0])

    def age_of(self, client_id: bytes) -> int | None:
        """The seconds of one session; None: nothing waits."""
        hold = self._holds.get(client_id)
        return self._seconds(hold) if hold is not None and hold.message[0] else None

    def longest(self) -> dict[str, Any] | None:
        """The message that others have waited behind for the longest time, with its client; None: there is none."""
        holds = sorted((hold.since, client_id) for client_id, hold in self._holds.items() if hold.is_stuck)
        for _, client_id in holds:
            session = self._sessions.get(client_id)
            if session is not None and (found := self.described(session)) is not None:
                return {"client_id": logs.as_text(client_id), **found}
        return None

    def _seconds(self, hold: HoldUp) -> int:
        return int((self._turn.tick - hold.since) / TICKS_PER_SECOND)
