"""Subscriptions in a cluster: of persistent sessions they are changes for all nodes, of clean ones routes."""

from collections.abc import Callable, Iterable
from functools import partial

from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.codec.topics import filter_weight, is_shared
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ..._speedups.session.subscriber import SessionKind
from ...broker.coordination.coordinator import Done, Subscribing
from ...broker.core.data_plane import DataPlane
from ...broker.core.subscription_options import STORED_OPTIONS
from ..replication.barrier import Barrier
from ..replication.flush import Flush
from ..replication.group_memberships import GroupMemberships
from ..replication.routes import Routes
from .claim import Claim, Claims


class ClusterSubscribing(Subscribing):
    """Records the changes that SUBSCRIBE and UNSUBSCRIBE of this node's clients make.

    Args:
        plane: of this node.
        journal: of this node.
        claims: of this node.
        routes: of this node.
        barrier: of this node.
        memberships: of this node.
        touched: returns the shards, as bits, in which a subscription of some names makes changes: client id, groups.
        late: called with shards, as bits, session, filters and identifier of a subscription that may lack what is
            retained there.
    """

    def __init__(
        self,
        plane: DataPlane,
        journal: ClusterJournal,
        claims: Claims,
        routes: Routes,
        barrier: Barrier | Flush,
        memberships: GroupMemberships,
        touched: Callable[..., int],
        late: Callable[..., object],
    ) -> None:
        self._filters = plane.router.filters
        self._journal = journal
        self._claims = claims
        self._routes = routes
        self._barrier = barrier
        self._memberships = memberships
        self._touched = touched
        self._late = late

    def weight_of(self, connection: Connection, session: Session) -> int:
        claim = self._claim_of(connection, session)
        return claim.weight if claim is not None else session.subscription_weight

    def has(self, connection: Connection, session: Session, topic_filter: bytes) -> bool:
        claim = self._claim_of(connection, session)
        return topic_filter in claim.filters if claim is not None else self._filters.has(session, topic_filter)

    def _claim_of(self, connection: Connection, session: Session) -> Claim | None:
        """The claim with the subscriptions of a persistent session; None: changes take effect at once."""
        return self._claims.get(connection) if session.kind == SessionKind.SHARED else None

    def subscribe(
        self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], identifier: int, done: Done
    ) -> None:
        claim = self._claim_of(connection, session)
        for name, options in filters:
            options &= STORED_OPTIONS
            if claim is not None:
                self._record(claim, session, name, (options, identifier))
            elif self._filters.subscribe(session, name, options, identifier):
                self._routes.add(name, options, clean=True)
            else:
                self._routes.change(name, options, options, clean=True)
        late = partial(self._late, session=session, filters=filters, identifier=identifier)
        self._barrier.when_applied(done, self._shards_of(claim, [name for name, _ in filters]), late)

    def _shards_of(self, claim: Claim | None, filters: Iterable[bytes]) -> int:
        """The shards in which changes of these filters are, as bits."""
        names = [name for name in filters if is_shared(name)]
        return self._touched(*names) if claim is None else self._touched(claim.client_id, *names)

    def _record(self, claim: Claim, session: Session, name: bytes, wanted: tuple[int, int]) -> None:
        """Record a subscription of a persistent session, unless the session has it: many clients always subscribe."""
        before = claim.filters.get(name)
        if before == wanted and not is_shared(name):
            return
        options, identifier = claim.filters[name] = wanted
        elsewhere = self._memberships.join(self._journal, name, session.client_id)
        fields = (session.client_id, session.session_id, name, options, identifier)
        self._journal.change(("subscribed", *fields, *elsewhere))
        if before is not None:
            self._routes.change(name, before[0], options, clean=False)
        else:
            self._routes.add(name, options, clean=False)
            claim.weight += filter_weight(name)

    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        claim = self._claim_of(connection, session)
        for name in filters:
            if claim is not None:
                if (before := claim.filters.pop(name, None)) is not None:
                    claim.weight -= filter_weight(name)
                    elsewhere = self._memberships.part(self._journal, name, session.client_id)
                    self._journal.change(("unsubscribed", session.client_id, session.session_id, name, *elsewhere))
                    self._routes.remove([(name, before[0])], clean=False)
            elif self._filters.unsubscribe(session, name):
                self._routes.remove([(name, 0)], clean=True)
        self._barrier.when_applied(done, self._shards_of(claim, filters))
