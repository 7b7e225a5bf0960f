"""The users of the open connections of a node: connections per user, expiry of credentials, present rights.

A changed rule, a removed user, a changed password and an expired token take effect on connected clients at once. Rights
are replaced where they are looked up; subscriptions stay, and deliver the messages that may be read.
"""

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator

from ..._speedups.codec.topics import without_tenant
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.session.tenant import Tenant
from .. import logs
from ..config.limits_config import QuotasConfig
from ..core.data_plane import DataPlane, report
from ..core.tenants import prefix_of
from .authenticator import NO_RIGHTS, Identity
from .roles import Concerned

Renewed = Callable[[Identity, str], Identity | CloseReason]  # of an identity and a client id
User = tuple[str, str]  # tenant and user name: users of the same name in two tenants are two users
Claimant = tuple[User | None, bytes]  # user, client id
Expiring = tuple[float, int, Connection]  # seconds since 1970, a number for the order, the connection
FULL = "its user has too many connections"
MANY_CONNECTIONS = "too many connections"
MANY_SESSIONS = "too many sessions"
SLICE_SECONDS = 0.002  # of a walk over all connections
LOOK = 16  # connections between two looks at the time
CLOSE_BATCH = 500
STALE_FREE = 1024  # entries of connections that have ended
EVERYBODY = Concerned(everyone=True)

log = logs.get("flockmq.auth")


class ConnectedUsers:
    """The users of the open connections.

    Args:
        data_plane: of the node.
        quotas: of a listener, by its name.
    """

    def __init__(self, data_plane: DataPlane, quotas: Callable[[str], QuotasConfig]) -> None:
        self._data_plane = data_plane
        self._quotas = quotas
        self._connections: Counter[User] = Counter()  # by user, also of clients that claim their sessions
        self._claiming: dict[Connection, Claimant] = {}  # accepted by the authenticator, not admitted yet
        self._claimants: Counter[Claimant] = Counter()  # the values of `_claiming`
        self._expiring: list[Expiring] = []  # a heap; also of connections that have ended, or authenticated again
        self._numbers = itertools.count()
        self._expiries = 0  # of connections that are open
        self._is_renewing = False
        self._concerned: Concerned | None = None  # by changes that no walk has taken up yet

    def __getitem__(self, username: str) -> int:
        """The number of connections of a user without a tenant."""
        return self._connections["", username]

    def names(self) -> set[str]:
        """The names of the users that have a connection, or claim a session."""
        return {name for _, name in self._connections}

    def most_connected(self) -> tuple[str, int]:
        """The user with the most connections, with the prefix of its tenant, and their number."""
        if not self._connections:
            return "", 0
        tenant, name = max(self._connections, key=self._connections.__getitem__)
        return prefix_of(tenant) + name, self._connections[tenant, name]

    # ---- connections open and close ----

    def lacks_room(self, identity: Identity, client_id: bytes) -> str:
        """The reason why user or tenant may not have one more connection; empty: they may, or it replaces another."""
        user, tenant = _user(identity), self._tenant(identity)
        sessions = self._data_plane.sessions
        session = sessions.get(client_id)
        if tenant is not None and 0 < tenant.max_sessions <= tenant.sessions and not sessions.knows(client_id):
            return MANY_SESSIONS
        limit = self._quotas(identity.listener).max_connections_per_user
        many = FULL if limit and user is not None and self._connections[user] >= limit else ""
        if not many and tenant is not None and tenant.max_connections:
            many = MANY_CONNECTIONS if tenant.connections >= tenant.max_connections else ""
        if not many or (user, client_id) in self._claimants:
            return ""
        owner = None if session is None else session.owner
        return "" if owner is not None and _user(owner.identity) == user else many

    def _tenant(self, identity: Identity) -> Tenant | None:
        """The tenant of a client; None: it has none."""
        return self._data_plane.turn.tenants.at(prefix_of(identity.tenant).encode()) if identity.tenant else None

    def _count(self, identity: Identity, number: int) -> None:
        """Add to the connections of a client's user and tenant."""
        user, tenant = _user(identity), self._tenant(identity)
        if tenant is not None:
            tenant.connections += number
        if user is not None:
            self._connections[user] += number
            if self._connections[user] <= 0:
                del self._connections[user]

    def on_claiming(self, connection: Connection, client_id: bytes) -> None:
        """A connection claims its session: it counts from now on, as others may come before it is admitted.

        In a cluster that takes as long as the node that had the session until now, or Redis, takes to reply.
        """
        user = _user(connection.identity)
        claimant = self._claiming[connection] = user, client_id
        self._claimants[claimant] += 1
        self._count(connection.identity, 1)

    def claims(self, connection: Connection) -> bytes | None:
        """The client id whose session a connection claims; None: it does not, or is admitted."""
        claimant = self._claiming.get(connection)
        return None if claimant is None else claimant[1]

    def on_connected(self, connection: Connection) -> None:
        """A connection was admitted."""
        identity: Identity = connection.identity
        if not self._end_claim(connection):
            self._count(identity, 1)
        self._expect_expiry(connection, identity)

    def on_not_admitted(self, connection: Connection) -> None:
        """A connection has closed that was not admitted."""
        if self._end_claim(connection):
            self._count(connection.identity, -1)

    def _end_claim(self, connection: Connection) -> bool:
        """Whether the connection is counted because it claimed its session."""
        claimant = self._claiming.pop(connection, None)
        if claimant is None:
            return False
        self._claimants[claimant] -= 1
        if not self._claimants[claimant]:
            del self._claimants[claimant]
        return True

    def _expect_expiry(self, connection: Connection, identity: Identity) -> None:
        if identity.expires is None:
            return
        self._expiries += 1
        heapq.heappush(self._expiring, (identity.expires, next(self._numbers), connection))
        if len(self._expiring) > 2 * self._expiries + STALE_FREE:
            current = {entry[2]: entry for entry in self._expiring if _is_current(entry)}
            self._expiring = list(current.values())
            heapq.heapify(self._expiring)

    def on_authenticated_again(self, connection: Connection, identity: Identity) -> bool:
        """Replace rights and expiry of a connected client; False: it is another user now, and nothing was replaced."""
        before: Identity = connection.identity
        if (identity.username, identity.tenant) != (before.username, before.tenant):
            return False
        connection.identity = identity
        if identity.expires != before.expires:
            self._expiries -= before.expires is not None
            self._expect_expiry(connection, identity)
        if _set_rights(connection, identity):
            self._data_plane.router.filters.forget_plans()
        return True

    def on_disconnected(self, connection: Connection) -> None:
        """An admitted connection has closed."""
        identity: Identity = connection.identity
        self._expiries -= identity.expires is not None
        self._count(identity, -1)

    # ---- changes while they are connected ----

    def tick(self) -> None:
        """Close the connections whose credentials have expired, in batches."""
        if self._expiring and self._expiring[0][0] <= time.time():
            work = self._ending()
            if next(work, None) is not None:
                self._data_plane.run(_continue(work))

    def _ending(self) -> Iterator[int]:
        now = time.time()
        ended = 0
        while self._expiring and self._expiring[0][0] <= now:
            entry = heapq.heappop(self._expiring)
            connection = entry[2]
            if not _is_current(entry):
                continue
            connection.close(close_reasons.CREDENTIALS_EXPIRED)
            ended += 1
            if ended % CLOSE_BATCH == 0:
                self._data_plane.end_turn()
                yield ended
        self._data_plane.end_turn()

    def renew(self, renewing: Callable[[], Renewed], concerned: Concerned = EVERYBODY) -> None:
        """Look up identity and rights of connected clients again, in slices, so that packets are served between.

        Clients that connect during the walk get their present rights anyway. One walk is under way at a time; changes
        that come during a walk have the next one together.

        Args:
            renewing: makes the function that looks up a client.
            concerned: the clients.
        """
        self._concerned = concerned if self._concerned is None else self._concerned | concerned
        if not self._is_renewing:
            self._is_renewing = True
            work = self._renewing(renewing)
            if next(work, None) is not None:
                self._data_plane.run(_continue(work))

    def _renewing(self, renewing: Callable[[], Renewed]) -> Iterator[int]:
        try:
            while (concerned := self._concerned) is not None:
                self._concerned = None
                yield from self._walk(renewing(), concerned)
        finally:
            self._is_renewing = False

    def _walk(self, renewed: Renewed, concerned: Concerned) -> Iterator[int]:
        ends = time.perf_counter() + SLICE_SECONDS
        changed = False
        connections = list(self._data_plane.reactor)
        for number, connection in enumerate(connections, 1):
            identity = connection.identity
            if identity is not None and not connection.closed and identity in concerned:
                changed = self._renew(connection, identity, renewed) or changed
            if number % LOOK == 0 and time.perf_counter() >= ends and number < len(connections):
                self._end_slice(changed)
                yield number
                ends, changed = time.perf_counter() + SLICE_SECONDS, False
        self._end_slice(changed)

    def _end_slice(self, changed: bool) -> None:
        if changed:
            self._data_plane.router.filters.forget_plans()
        self._data_plane.end_turn()

    def _renew(self, connection: Connection, identity: Identity, renewed: Renewed) -> bool:
        """Whether delivery plans have to be forgotten for this."""
        try:
            found = renewed(identity, _client_id_of(connection))
        except Exception as error:  # one client must not keep its rights, nor let all others keep theirs
            report(error, address=connection.address)
            found = close_reasons.INTERNAL_ERROR
        if isinstance(found, CloseReason):
            if found is not close_reasons.PASSWORD_CHANGED:
                connection.identity = identity.having(NO_RIGHTS)  # its will is not published either
            connection.close(found)
            return False
        connection.identity = found
        return _set_rights(connection, found)


def _set_rights(connection: Connection, identity: Identity) -> bool:
    """Whether delivery plans have to be forgotten for this."""
    session = connection.claimed  # None while it waits for one, which gets the rights with it
    return session is not None and session.set_rights(identity.rights) and session.subscriptions_held > 0


def _user(identity: Identity) -> User | None:
    """The user that a connection counts for; None: it is anonymous."""
    return None if identity.username is None else (identity.tenant, identity.username)


def _client_id_of(connection: Connection) -> str:
    """The client id of an authenticated client, as the client has it."""
    if connection.claimed is not None:
        return without_tenant(connection.claimed.client_id)
    assert connection.connect is not None  # its CONNECT is not answered yet
    return without_tenant(connection.connect.client_id.encode())


def _is_current(entry: Expiring) -> bool:
    """Whether the credentials of an open connection expire then: it may have authenticated again."""
    return not entry[2].closed and entry[2].identity.expires == entry[0]


async def _continue(work: Iterator[int]) -> None:
    for _ in work:
        await asyncio.sleep(0)
