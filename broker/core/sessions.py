"""The sessions that the node knows: one per client id, whether its client is connected or not.

In a cluster most sessions of clients that are not connected here are records, without a Session object.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..._speedups.routing.router import Router
from ..._speedups.session import session_store
from ..._speedups.session.session import Session
from ..._speedups.session.subscriber import SessionKind
from ..._speedups.session.turn import Turn

LEVELS = (3, 4, 5)

Removed = Callable[[list[tuple[bytes, int]]], object]  # topic filters and options


@dataclass(frozen=True, slots=True)
class Record:
    """A persistent session whose client is not connected here, without a Session object."""

    client_id: bytes
    subscriptions: list[tuple[bytes, int]]  # topic filters and options
    owner: Any = None
    level: int = 0
    persistent: bool = True
    expiry: None = None
    queue_length: int = 0
    queue_bytes: int = 0

    @property
    def subscriptions_held(self) -> int:
        """Number of subscriptions."""
        return len(self.subscriptions)


class Sessions:
    """Creates, finds and ends sessions. A session's `owner` is the connection that has it, or None."""

    def __init__(self, turn: Turn, router: Router) -> None:
        self._turn = turn
        self._filters = router.filters
        self._foreign = router.foreign
        self._by_client_id: dict[bytes, Session] = {}
        self._last_number = 0
        self.connected = 0
        self.connected_at = dict.fromkeys(LEVELS, 0)  # clients that got CONNACK, by protocol level
        self.max_connected = 0
        self._ended: Callable[[bytes], None] | None = None
        self._follow_end: Callable[[bytes, bool], object] = lambda client_id, everywhere: None
        self._over: set[Session] = set()  # they end here with their connections

    def __iter__(self) -> Iterator[Session]:
        """The sessions that are no records."""
        return iter(list(self._by_client_id.values()))

    @property
    def count(self) -> int:
        """The number of sessions."""
        return len(self._by_client_id) + len(self._foreign)

    def knows(self, client_id: bytes) -> bool:
        """Whether there is a session of a client id."""
        return client_id in self._by_client_id or client_id in self._foreign

    def get(self, client_id: bytes) -> Session | None:
        """The session of a client id, if there is one that is no record."""
        return self._by_client_id.get(client_id)

    @property
    def here(self) -> dict[bytes, Session]:
        """The sessions that are no records, by client id."""
        return self._by_client_id

    def find(self, client_id: bytes) -> Session | Record | None:
        """The session of a client id, if there is one."""
        session = self._by_client_id.get(client_id)
        if session is None and client_id in self._foreign:
            return Record(client_id, self._foreign.subscriptions_of(client_id))
        return session

    def all(self) -> Iterator[Session | Record]:
        """All sessions; one whose client connects or goes while they are read may be missing."""
        seen = set(self._by_client_id)
        yield from self
        for client_id, _, subscriptions in self._foreign:
            if client_id not in seen:
                yield Record(client_id, subscriptions)

    def subscriptions_of(self, session: Session | Record) -> list[tuple[bytes, int, int]]:
        """The subscriptions of a session: topic filters, options, and identifiers or 0."""
        if isinstance(session, Record):
            return [(name, options, 0) for name, options in session.subscriptions]
        return self._filters.all_of(session)

    def create(self, client_id: bytes, *, persistent: bool, level: int) -> Session:
        """A new, empty session; there must be none with this client id that is no record: a record ends."""
        self._end_earlier(client_id, 0)
        self._last_number += 1
        return self._add(Session(self._turn, self._last_number, client_id, persistent=persistent, level=level))

    def share(self, client_id: bytes, number: int) -> Session:
        """A persistent session of the cluster, whose queue is elsewhere, with the subscriptions of its record.

        There must be none with this client id that is no record. A record of another incarnation ends.
        """
        self._end_earlier(client_id, number)
        return self._add(self._foreign.come(client_id, number))

    def put_away(self, session: Session) -> None:
        """The connection of a session of the cluster has ended: it becomes a record, if it can be one."""
        if self._foreign.go(session):
            self._remove(session)

    def restore(self, number: int, client_id: bytes, *, level: int) -> Session:
        """A session from the store, still empty; its records follow."""
        self._last_number = max(self._last_number, number)
        return self._add(Session(self._turn, number, client_id, persistent=True, level=level, restoring=True))

    def _add(self, session: Session) -> Session:
        self._by_client_id[session.client_id] = session
        if session.tenant is not None:
            session.tenant.sessions += 1
        return session

    def leave_records(self, most: int) -> bool:
        """Let the tree have the subscriptions and routes of all records, about `most` at a call. False: not yet."""
        self._foreign.close()
        return self._foreign.leave(self.share, most)

    def end_with_connection(self, session: Session) -> None:
        """A session of the cluster has ended; its connection here is still to be closed."""
        self._over.add(session)

    def outlives_connection(self, session: Session) -> bool:
        """Whether a session of the cluster goes on when its connection has ended."""
        return session not in self._over and (session.subscriptions_held > 0 or session.expiry != 0)

    def end(self, session: Session, removed: Removed | None = None) -> None:
        """End a session: its subscriptions, queue and handshakes.

        `removed` is called with its subscriptions as they leave the tree: many take more than this turn.
        """
        self._over.discard(session)
        self._filters.unsubscribe_all(session, removed)
        session_store.record_gone(session)
        self._remove(session)
        self._report_end(session.client_id)
        if session.kind == SessionKind.LOCAL:  # else all nodes call `shared_ended`
            self._follow_end(session.client_id, False)

    def shared_ended(self, client_id: bytes) -> None:
        """A persistent session of the cluster has ended, which every node learns."""
        self._follow_end(client_id, True)

    def _remove(self, session: Session) -> None:
        del self._by_client_id[session.client_id]
        if session.tenant is not None:
            session.tenant.sessions -= 1

    def _end_earlier(self, client_id: bytes, number: int) -> None:
        """End the record of a client id, if it is of another incarnation."""
        known = self._foreign.incarnation_of(client_id)
        if known is not None and known != number:
            self.end_record(client_id, known)

    def end_record(self, client_id: bytes, number: int) -> None:
        """A session has ended that is a record; an earlier or later one of its client id goes on."""
        if self._foreign.end(client_id, number):
            self._report_end(client_id)

    def _report_end(self, client_id: bytes) -> None:
        if self._ended is not None:
            self._ended(client_id)

    def attach(self, ended: Callable[[bytes], None] | None) -> None:
        """Call `ended` with the client id of each session that ends."""
        self._ended = ended

    def follow_ends(self, ended: Callable[[bytes, bool], object]) -> None:
        """Call `ended` with the client id of each session that ends, and whether all nodes of the cluster do so."""
        self._follow_end = ended

    def on_connected(self) -> None:
        """A client has connected."""
        self.connected += 1
        self.max_connected = max(self.max_connected, self.connected)

    def on_accepted(self, level: int) -> None:
        """A client of this protocol level got its CONNACK."""
        self.connected_at[level] += 1

    def on_disconnected(self, level: int | None) -> None:
        """A client of this protocol level has disconnected; None: it had not got its CONNACK."""
        self.connected -= 1
        if level is not None:
            self.connected_at[level] -= 1
