"""Keeps a store small: writes all that is live once more, a slice at a time, then drops the blocks before.

Nothing stops meanwhile. Records say what is from now on, so one that is written again does no harm, and changes made
during a compaction are in the new blocks anyway. Only the heads of all sessions come first, in one piece, because any
later record may name them. Rewriting starts when the log is much larger than what was live last time, so the work is in
proportion to what is written, whatever is kept.
"""

from collections.abc import Iterator

from _speedups.routing.router import Router
from broker import logs
from broker.core import will
from broker.core.sessions import Sessions
from broker.storage.store import Store

SMALLEST = 64 * 1024 * 1024  # bytes of blocks below which it isn't worth the trouble
GROWTH = 3  # times what was live last time
SLICE = 1024 * 1024  # bytes of records that one step adds
RETAINED_AT_ONCE = 1000

log = logs.get("flockmq.store")


class Compaction:
    """Watches the size of a store, and works it down.

    Args:
        store: whose blocks are dropped.
        router, sessions: what is live.
    """

    def __init__(self, store: Store, router: Router, sessions: Sessions, *, smallest: int = SMALLEST) -> None:
        self._store = store
        self._router = router
        self._sessions = sessions
        self._smallest = smallest
        self._live = 0
        self._work: Iterator[None] | None = None

    def step(self) -> None:
        """Do a slice, if there is something to do. To be called when the store has kept up, within a turn."""
        if self._work is None:
            if self._store.size <= max(self._smallest, GROWTH * self._live):
                return
            self._work = self._rewrite()
        if next(self._work, self) is self:
            self._work = None

    def _rewrite(self) -> Iterator[None]:
        journal = self._router.turn.journal
        self._router.turn.seal()  # what has been recorded in this turn relies on the blocks that will go
        before, position = self._store.size, self._store.position
        journal.start()
        sessions = list(self._sessions)
        for session in sessions:
            session.record(connected=session.owner is not None)
            if session.owner is not None and session.owner.connect is not None:
                will.record(journal, session.client_id, session.owner.connect)
        full = len(journal) + SLICE
        for session in sessions:
            if self._sessions.get(session.client_id) is session:  # it may have ended since
                self._router.filters.record(session)
                session.record_messages()
            if len(journal) > full:
                yield
                full = len(journal) + SLICE
        # Topics that begin with $ are not found by `#`; those of $SYS are never kept.
        for topic_filter in (b"#", *(first + b"/#" for first in self._router.retained.hidden() if first != b"$SYS")):
            search = self._router.retained.search(topic_filter)
            while search is not None and self._router.record_retained(search, RETAINED_AT_ONCE):
                if len(journal) > full:
                    yield
                    full = len(journal) + SLICE
        self._router.turn.seal()
        self._store.forget_before(position)
        self._live = max(0, self._store.size - before)
        log.debug("store compacted", before=before, live=self._live)
