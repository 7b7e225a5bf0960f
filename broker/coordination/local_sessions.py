"""The sessions of a node alone: they are assigned at once, and are as durable as the store."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.session import session_store
from ..._speedups.session.counters import TAKEOVERS
from ..._speedups.session.journal import Journal
from ..._speedups.session.session import Session
from ..auth.authenticator import ReasonCode
from ..core import will
from ..core.data_plane import DataPlane
from ..core.session_expiry import interval_of
from .admission import Admission
from .coordinator import DelayedWills, Done, QueueLimits, SessionOwner, StoredSessions, Subscribing
from .expiry import Expiry


class LocalOwner(SessionOwner):
    """Assigns the sessions of the node.

    Args:
        data_plane: of the node.
        journal: of the node.
        expiry: of the node.
    """

    def __init__(self, data_plane: DataPlane, journal: Journal, expiry: Expiry) -> None:
        self._data_plane = data_plane
        self._journal = journal
        self._expiry = expiry
        # Of connections: in microseconds since 1970, so that numbers go on after a restart, and JavaScript has them.
        self._first = time.time_ns() // 1000

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        plane = self._data_plane
        if connection.closed:
            return  # while it waited for an earlier connection
        client_id = packet.client_id.encode()
        session = plane.sessions.get(client_id)
        if session is not None and self._expiry.end_if_due(session):
            session = None
        known = session is not None
        if session is not None and not admission.belongs(session, connection):
            admission.refuse_others(connection, packet)
            return
        if not known and plane.sessions.count >= plane.config.limits.max_sessions:
            admission.refuse(connection, ReasonCode.QUOTA_EXCEEDED, packet.client_id, "too many sessions")
            return
        interval = interval_of(packet, plane.config.mqtt)
        recorded = len(self._journal)
        if session is not None and session.owner is not None:
            # [MQTT-3.1.4-2], after the packets that the client has sent over the earlier connection.
            if not session.owner.give_way(close_reasons.TAKEN_OVER, partial(self.claim, admission, connection, packet)):
                return
            plane.turn.count(TAKEOVERS)
            session = plane.sessions.get(client_id)
        if session is not None and packet.clean_start:  # [MQTT-3.1.2-6]
            self._expiry.end(session)
            session = None
        present = session is not None
        if session is None:
            session = plane.sessions.create(client_id, persistent=interval != 0, level=packet.protocol_level)
        self._expiry.cancel_will(client_id)
        admission.admit(connection, packet, session)
        will.record(self._journal, client_id, packet, plane.will_rights, connection.identity)
        session_store.record(session, connected=True)
        self._expiry.connected(session, interval)
        admitted = session

        def welcome() -> None:
            admission.welcome(connection, packet, admitted, present=present)

        if known or len(self._journal) > recorded:
            plane.turn.after_commit(welcome)
        else:  # clean sessions without a will are admitted while the store can't write
            welcome()

    def number_of(self, connection: Connection) -> int:
        return self._first + connection.connect_number

    def ended(self, connection: Connection, session: Session | None) -> None:
        if session is None:
            return
        had_will, found = will.take(connection, self._data_plane.router, self._data_plane.will_rights)
        self._expiry.ended(session, found, had_will)

    def discard_will(self, connection: Connection) -> None:
        if connection.session is not None:
            self._journal.record_will_gone(connection.session.client_id)


class LocalSubscribing(Subscribing):
    """Changes the subscriptions of the node at once.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._filters = data_plane.router.filters

    def weight_of(self, connection: Connection, session: Session) -> int:
        return session.subscription_weight

    def has(self, connection: Connection, session: Session, topic_filter: bytes) -> bool:
        return self._filters.has(session, topic_filter)

    def subscribe(
        self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], identifier: int, done: Done
    ) -> None:
        for name, options in filters:
            self._filters.subscribe(session, name, options, identifier)
        self._data_plane.when_stored(connection, session, done)

    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        for name in filters:
            self._filters.unsubscribe(session, name)
        self._data_plane.when_stored(connection, session, done)


class LocalSessions(StoredSessions):
    """The sessions of the node, by their client ids; none is stored elsewhere.

    Args:
        data_plane: of the node.
        expiry: of the node.
    """

    def __init__(self, data_plane: DataPlane, expiry: Expiry) -> None:
        self._data_plane = data_plane
        self._expiry = expiry

    async def end(self, client_id: bytes) -> bool:
        sessions = self._data_plane.sessions
        session = sessions.get(client_id)
        if session is None:
            return False
        if session.owner is not None:
            session.owner.close(close_reasons.ENDED_BY_OPERATOR)
        if sessions.get(client_id) is session:  # else it was a clean one, and ended with its connection
            self._expiry.end(session)
        await self._data_plane.stored()
        return True

    def limit_queue(self, client_id: bytes, limits: QueueLimits | None) -> None:
        self._data_plane.turn.limit_queue(client_id, limits)

    async def stored(self, client_ids: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        return {}

    def expires_in(self, client_id: bytes) -> int | None:
        return self._expiry.deadline_of(client_id)


class LocalWills(DelayedWills):
    """The delayed wills of the node.

    Args:
        data_plane: of the node.
        expiry: of the node; has the wills.
    """

    def __init__(self, data_plane: DataPlane, expiry: Expiry) -> None:
        self._data_plane = data_plane
        self._expiry = expiry

    async def waiting(self) -> list[tuple[bytes, will.Will, int]]:
        return self._expiry.waiting_wills()

    async def cancel(self, client_id: bytes) -> bool:
        if not self._expiry.has_will(client_id):
            return False
        self._expiry.cancel_will(client_id)
        await self._data_plane.stored()
        return True
