"""Deadlines of a node alone: it ends sessions, publishes delayed wills, and drops expired retained messages.

Deadlines in memory are times of the turn's clock, which no step of the wall clock moves. In the store they are times of
the store's clock: it goes on while the node is off, by the wall clock, and else with the turn's clock.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable

from ..._speedups.base.tick import MS_PER_TICK, TICKS_PER_SECOND
from ..._speedups.session import session_store
from ..._speedups.session.group import give_back_sent
from ..._speedups.session.group_subscriber import has_given
from ..._speedups.session.journal import Journal
from ..._speedups.session.session import Session
from .. import logs
from ..core import will
from ..core.data_plane import DataPlane
from ..core.deadline_heap import Deadlines
from ..core.session_expiry import NEVER, clock_after, deadline_after
from ..core.will import Will

CLOCK_SECONDS = 60  # between two records of the store's clock
# Due sessions per tick: other clients must not wait for all of them.
WILLS_AT_ONCE = 7000
SESSIONS_AT_ONCE = 5000
RETURNS_AT_ONCE = 20_000  # messages of shared subscriptions

log = logs.get("flockmq.node")


class Expiry:
    """The deadlines of sessions without a connection, and of their wills.

    Args:
        data_plane: of the node.
        journal: of the node.
    """

    def __init__(self, data_plane: DataPlane, journal: Journal) -> None:
        self._data_plane = data_plane
        self._turn = data_plane.turn
        self._journal = journal
        self._sessions = Deadlines()
        self._wills: dict[bytes, Will] = {}  # of ended connections
        self._due_wills = Deadlines()
        self._redispatch = Deadlines()  # of sessions with messages of shared subscriptions
        self._looked_up: dict[bytes, Will] = {}  # wills whose authors are looked up
        self._settled = asyncio.Event()
        self._default = data_plane.config.mqtt.session_expiry
        self._recorded = 0  # time of the last record of the store's clock

    # ---- the store ----

    def start_clock(self, last: tuple[int, int] | None) -> None:
        """Set the store's clock, from the last record of it and of the wall clock in the store, in milliseconds."""
        wall = _wall()
        now = wall if last is None else last[0] + max(0, wall - last[1])
        # The turn's clock has whole ticks, and the present one may end at once: nothing must expire early.
        self._journal.set_time(now - MS_PER_TICK)

    def record_clock(self) -> None:
        """Record the store's clock."""
        self._journal.record_clock(_wall())
        self._recorded = self._turn.clock

    def restore(self, deadlines: dict[bytes, int], wills: dict[bytes, Will], due: dict[bytes, int]) -> None:
        """Take what the store had.

        Args:
            deadlines: of sessions whose connections had ended, in milliseconds of the store's clock.
            wills: of clients; those without delay are published.
            due: when delayed wills are due whose connections had ended, likewise.
        """
        now = self._turn.clock
        for session in list(self._data_plane.sessions):
            if not self.outlives(session):  # its connection ended with the node
                self._end(session)
                continue
            session.away_since = now
            self._watch_given(session)
            deadline = deadlines.get(session.client_id, 0)
            self._set(session, self._journal.clock_of(deadline) if deadline else self._deadline(session))
        for client_id, found in wills.items():
            deadline = due.get(client_id, 0)
            if deadline:
                self._wills[client_id] = found
                self._due_wills.set(client_id, self._journal.clock_of(deadline))
            else:  # the node died while the client was connected: the delay begins now
                self._will_of_ended(client_id, found, self._data_plane.sessions.get(client_id))
        self._take_due()  # before the first client connects

    def record_all(self) -> None:
        """Write all to the journal again."""
        self.record_clock()
        for session in self._data_plane.sessions:
            if session.expiry is not None and session.persistent:
                deadline = self._sessions.get(session.client_id) or 0
                self._journal.record_session_expiry(session.session_id, session.expiry, deadline)
        for client_id, found in self._wills.items():
            self._journal.record_will(client_id, *found)
            self._journal.record_will_due(client_id, self._due_wills.get(client_id) or 0)
        for client_id, found in self._looked_up.items():
            self._journal.record_will(client_id, *found)

    # ---- connections ----

    def connected(self, session: Session, interval: int | None) -> None:
        """A connection has the session now, with this Session Expiry Interval."""
        self._sessions.remove(session.client_id)
        self._redispatch.remove(session.client_id)
        known, session.expiry = session.expiry, interval
        if session.persistent and (interval is not None or known is not None):
            self._journal.record_session_expiry(session.session_id, interval, 0)

    def outlives(self, session: Session) -> bool:
        """Whether the session goes on without a connection."""
        return session.persistent and session.expiry != 0

    def ended(self, session: Session, found: Will | None, had_will: bool) -> None:
        """The connection of the session has ended: settle its will, and end the session now or later."""
        if had_will:
            self._will_of_ended(session.client_id, found, session)
        if not self.outlives(session):
            self._end(session)
            return
        session_store.record(session, connected=False)
        session.away_since = self._turn.clock
        self._watch_given(session)
        self._set(session, self._deadline(session))

    def _will_of_ended(self, client_id: bytes, found: Will | None, session: Session | None) -> None:
        if found is not None and found.delay and session is not None and self.outlives(session):
            interval = NEVER if session.expiry is None else session.expiry
            due = clock_after(min(found.delay, interval), self._turn.clock)
            self._wills[client_id] = found
            self._due_wills.set(client_id, due)
            self._journal.record_will_due(client_id, due)
            return
        if found is not None:
            self._publish(client_id, found)
        else:
            self._journal.record_will_gone(client_id)

    def cancel_will(self, client_id: bytes) -> None:
        """The client is back, and goes on with its session: its will is not published [5: 3.1.3.2.2]."""
        self._due_wills.remove(client_id)
        if self._wills.pop(client_id, None) is not None or self._looked_up.pop(client_id, None) is not None:
            self._journal.record_will_gone(client_id)

    def publish_will(self, client_id: bytes) -> None:
        """The session ends, or the delay has passed: publish the will that waits, if there is one."""
        self._due_wills.remove(client_id)
        found = self._wills.pop(client_id, None)
        if found is not None:
            self._publish(client_id, found)

    def _publish(self, client_id: bytes, found: Will) -> None:
        """Publish a will, at once unless its author has to be looked up; record that it is settled."""
        rights = self._data_plane.will_rights
        answer = rights.look_up_author(found.author) if found.author else None
        if answer is None:
            will.publish_later(self._data_plane.router, rights, client_id, found)
            self._journal.record_will_gone(client_id)
        else:
            self._looked_up[client_id] = found
            self._data_plane.run(self._publish_after(answer, client_id, found))

    async def _publish_after(self, answer: Awaitable[object], client_id: bytes, found: Will) -> None:
        try:
            await answer
        except Exception as error:  # the store fails, or the user is unreadable: then it may not publish
            log.error("the user of a will can't be looked up", client_id=client_id.decode(), error=error)
        will.publish_later(self._data_plane.router, self._data_plane.will_rights, client_id, found)
        if self._looked_up.get(client_id) is found:  # else its client is back, perhaps with another will
            del self._looked_up[client_id]
            self._journal.record_will_gone(client_id)
        self._data_plane.end_turn()
        if not self._looked_up:
            self._settled.set()

    async def settled(self) -> None:
        """Wait until the authors of the wills of a start are looked up."""
        if self._looked_up:
            self._settled.clear()
            await self._settled.wait()

    def end_if_due(self, session: Session) -> bool:
        """End a session whose time is over, but that no tick has ended yet; whether it was one [5: MQTT-4.1.0-2]."""
        deadline = self._sessions.get(session.client_id)
        if deadline is None or deadline > self._turn.clock or session.owner is not None:
            return False
        self.end(session)
        return True

    def end(self, session: Session) -> None:
        """End a session that has no connection."""
        self.publish_will(session.client_id)
        self._end(session)

    def _end(self, session: Session) -> None:
        self._sessions.remove(session.client_id)
        self._redispatch.remove(session.client_id)
        self._data_plane.sessions.end(session)

    def _watch_given(self, session: Session) -> None:
        """Messages that the session has from shared subscriptions go to others if its client stays away."""
        if not has_given(session):
            return
        seconds = self._data_plane.config.shared.redispatch
        if seconds:
            self._redispatch.set(session.client_id, clock_after(seconds, self._turn.clock))
        else:
            give_back_sent(session)

    # ---- for the operator ----

    def deadline_of(self, client_id: bytes) -> int | None:
        """Seconds until a session without a connection ends; None: never, or it has a connection."""
        return self._seconds_to(self._sessions.get(client_id))

    def waiting_wills(self) -> list[tuple[bytes, Will, int]]:
        """The delayed wills of ended connections: client id, will, seconds until it is published."""
        return [
            (client_id, found, self._seconds_to(self._due_wills.get(client_id)) or 0)
            for client_id, found in self._wills.items()
        ]

    def has_will(self, client_id: bytes) -> bool:
        """Whether a delayed will of this client waits."""
        return client_id in self._wills

    def _seconds_to(self, deadline: int | None) -> int | None:
        return None if deadline is None else max(0, deadline - self._turn.clock) // TICKS_PER_SECOND

    # ---- time ----

    def _deadline(self, session: Session) -> int | None:
        return deadline_after(session.expiry, session.away_since, self._data_plane.config.mqtt)

    def _set(self, session: Session, deadline: int | None) -> None:
        if deadline is None:
            self._sessions.remove(session.client_id)
        else:
            self._sessions.set(session.client_id, deadline)
        if session.expiry is not None:
            self._journal.record_session_expiry(session.session_id, session.expiry, deadline or 0)

    def configure(self) -> None:
        """The configuration was read again: sessions of levels 3 and 4 have its expiry."""
        if self._default == self._data_plane.config.mqtt.session_expiry:
            return
        self._default = self._data_plane.config.mqtt.session_expiry
        for session in self._data_plane.sessions:
            if session.owner is None and session.expiry is None and self.outlives(session):
                self._set(session, self._deadline(session))

    def tick(self) -> None:
        """A quarter of a second has passed."""
        if self._take_due():
            self._data_plane.end_turn()
        if self._turn.clock - self._recorded >= CLOCK_SECONDS * TICKS_PER_SECOND:
            self.record_clock()

    def _take_due(self) -> bool:
        """Act on deadlines that have come, on some of them if they are many; whether there were any."""
        now = self._turn.clock
        changed = self._data_plane.router.expire_retained() != []
        for client_id in itertools.islice(self._due_wills.due(now), WILLS_AT_ONCE):
            self.publish_will(client_id)
            changed = True
        returned = 0
        for client_id in self._redispatch.due(now):
            session = self._data_plane.sessions.get(client_id)
            returned += 0 if session is None else give_back_sent(session)
            if returned >= RETURNS_AT_ONCE:
                break
        changed = changed or returned > 0
        for client_id in itertools.islice(self._sessions.due(now), SESSIONS_AT_ONCE):
            session = self._data_plane.sessions.get(client_id)
            if session is not None and session.owner is None:
                self.end(session)
                changed = True
                log.debug("session expired", client_id=client_id.decode())
        return changed


def _wall() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
