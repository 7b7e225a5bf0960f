"""Compaction: writes all live state once more, a slice at a time, then drops the older blocks.

The node serves during the compaction. A record sets state from then on, so writing it again does no harm, and changes
made during a compaction are in the new blocks anyway. The heads of all sessions and groups are first, in one piece,
since any later record may refer to them. Compaction starts when the log is much larger than the live state of the last
time, so that its work is in proportion to the blocks written, whatever the size of the state.
"""

from collections.abc import Callable, Iterator

from ..._speedups.routing.router import Router
from ..._speedups.session import session_store
from ..._speedups.session.session import Session
from .. import logs
from ..core import will
from ..core.sessions import Sessions
from .store import Store

MIN_BYTES = 64 * 1024 * 1024  # bytes of blocks below which it isn't worthwhile
GROWTH = 3  # times the live state of the last time
SLICE = 1024 * 1024  # bytes of records that one step adds
RETAINED_BATCH = 1000
DELAYED_BATCH = 1000

log = logs.get("flockmq.store")


class Compaction:
    """Watches the size of a store, and compacts it.

    Args:
        store: whose blocks are dropped.
        router, sessions: the live state.
        rights: of wills.
        smallest: bytes of blocks below which they are not compacted.
        record_more: writes the deadlines of sessions and wills again, after the heads of the sessions.
    """

    def __init__(
        self,
        store: Store,
        router: Router,
        sessions: Sessions,
        rights: will.WillRights,
        *,
        smallest: int = MIN_BYTES,
        record_more: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._router = router
        self._sessions = sessions
        self._rights = rights
        self._smallest = smallest
        self._record_more = record_more
        self._live = 0
        self._work: Iterator[None] | None = None

    def step(self) -> None:
        """Write a slice, if a compaction is due. To be called within a turn, when the store is not behind."""
        if self._work is None:
            if self._store.size <= max(self._smallest, GROWTH * self._live):
                return
            self._work = self._rewrite()
        if next(self._work, self) is self:
            self._work = None

    def _rewrite(self) -> Iterator[None]:
        journal = self._router.turn.journal
        self._router.turn.seal()  # records of this turn rely on the blocks that will be dropped
        before, position = self._store.size, self._store.position
        journal.start()
        sessions = [self._record_head(session) for session in self._sessions]
        groups = list(self._router.filters.groups.values())
        for group in groups:
            group.backing.record()
        self._record_more()
        full = len(journal) + SLICE
        for client_id, number in sessions:
            self._record_messages(client_id, number)
            if len(journal) > full:
                yield
                full = len(journal) + SLICE
        for group in groups:
            group.backing.record_messages()
            if len(journal) > full:
                yield
                full = len(journal) + SLICE
        while self._router.delayed.record_some(DELAYED_BATCH):
            if len(journal) > full:
                yield
                full = len(journal) + SLICE
        # Topics that begin with $ are not found by `#`; topics of $SYS are never stored.
        for topic_filter in (b"#", *(first + b"/#" for first in self._router.retained.hidden() if first != b"$SYS")):
            search = self._router.retained.search(topic_filter)
            while search is not None and self._router.record_retained(search, RETAINED_BATCH):
                if len(journal) > full:
                    yield
                    full = len(journal) + SLICE
        self._router.turn.seal()
        self._store.forget_before(position)
        self._live = max(0, self._store.size - before)
        log.debug("store compacted", before=before, live=self._live)

    def _record_head(self, session: Session) -> tuple[bytes, int]:
        """Write a session without its messages; returns its client id and its number.

        A reference would keep a session that ends, with its messages, until the compaction is done.
        """
        session_store.record(session, connected=session.owner is not None)
        owner = session.owner
        if owner is not None and owner.connect is not None:
            will.record(self._router.turn.journal, session.client_id, owner.connect, self._rights, owner.identity)
        return session.client_id, session.session_id

    def _record_messages(self, client_id: bytes, number: int) -> None:
        """Write the subscriptions and messages of a session, unless it has ended."""
        session = self._sessions.get(client_id)
        if session is not None and session.session_id == number:
            self._router.filters.record(session)
            session_store.record_messages(session)
