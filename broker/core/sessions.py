"""The sessions of the node: one per client id, whether its client is connected or not."""

from collections.abc import Callable, Iterator

from ..._speedups.routing.subscriptions import SubscriptionTree
from ..._speedups.session import session_store
from ..._speedups.session.session import Session
from ..._speedups.session.turn import Turn

LEVELS = (3, 4, 5)

Removed = Callable[[list[tuple[bytes, int]]], object]  # topic filters and options


class Sessions:
    """Creates, finds and ends sessions. A session's `owner` is the connection that has it, or None."""

    def __init__(self, turn: Turn, filters: SubscriptionTree) -> None:
        self._turn = turn
        self._filters = filters
        self._by_client_id: dict[bytes, Session] = {}
        self._last_number = 0
        self.connected = 0
        self.connected_at = dict.fromkeys(LEVELS, 0)  # clients that got CONNACK, by protocol level
        self.max_connected = 0
        self._ended: Callable[[Session], None] | None = None
        self._over: set[Session] = set()  # they end here with their connections

    def __len__(self) -> int:
        return len(self._by_client_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_client_id.values()))

    def get(self, client_id: bytes) -> Session | None:
        """The session of a client id, if there is one."""
        return self._by_client_id.get(client_id)

    def create(self, client_id: bytes, *, persistent: bool, level: int) -> Session:
        """A new, empty session; there must be none with this client id."""
        self._last_number += 1
        return self._add(Session(self._turn, self._last_number, client_id, persistent=persistent, level=level))

    def share(self, client_id: bytes, number: int) -> Session:
        """A persistent session of the cluster, whose queue is elsewhere; there must be none with this client id."""
        return self._add(Session(self._turn, number, client_id, persistent=True, shared=True))

    def restore(self, number: int, client_id: bytes, *, level: int) -> Session:
        """A session from the store, still empty; its records follow."""
        self._last_number = max(self._last_number, number)
        return self._add(Session(self._turn, number, client_id, persistent=True, level=level, restoring=True))

    def _add(self, session: Session) -> Session:
        self._by_client_id[session.client_id] = session
        if session.tenant is not None:
            session.tenant.sessions += 1
        return session

    def end_with_connection(self, session: Session) -> None:
        """A session of the cluster has ended; its connection here is still to be closed."""
        self._over.add(session)

    def outlives_connection(self, session: Session) -> bool:
        """Whether a session of the cluster stays here when its connection has ended: for its subscriptions."""
        return session.subscriptions_held > 0 and session not in self._over

    def end(self, session: Session, removed: Removed | None = None) -> None:
        """End a session: its subscriptions, queue and handshakes.

        `removed` is called with its subscriptions as they leave the tree: many take more than this turn.
        """
        self._over.discard(session)
        self._filters.unsubscribe_all(session, removed)
        session_store.record_gone(session)
        del self._by_client_id[session.client_id]
        if session.tenant is not None:
            session.tenant.sessions -= 1
        if self._ended is not None:
            self._ended(session)

    def attach(self, ended: Callable[[Session], None] | None) -> None:
        """Call `ended` for each session that ends."""
        self._ended = ended

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
