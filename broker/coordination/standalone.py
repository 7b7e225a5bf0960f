"""One node with its own store: it shares nothing with others. With the embedded store it can log messages."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ..._speedups.log.journal import LoggedJournal
from ..._speedups.protocol import close_reasons
from .. import logs
from ..config.schema import Config
from ..core.calls import RpcMethods
from ..core.data_plane import DataPlane
from ..storage.compaction import MIN_BYTES, Compaction
from ..storage.restore import Restorer
from ..storage.sqlite import SqliteStore
from ..storage.store import Store
from ..streams.file_log import FileLog
from ..streams.logged_messages import LoggedMessages
from ..streams.message_log import MessageLog
from .coordinator import Coordinator, Foundation, NodeLife
from .delayed import CallLater, LocalDelayed
from .expiry import Expiry
from .local_access import LocalAccess
from .local_groups import LocalGroups
from .local_sessions import LocalOwner, LocalSessions, LocalSubscribing, LocalWills
from .local_transactions import LocalTransactions
from .one_node import OneNode

STOP_SECONDS = 10.0  # that a store may take for the last blocks
CHECK_SECONDS = 0.25  # between looks whether it has failed

log = logs.get("flockmq.node")


class StandaloneFoundation(Foundation):
    """The store of a node alone.

    Args:
        store: of the journal.
        call: calls a function with arguments on the loop's thread, from any thread.
        call_later: calls a function after seconds; None: messages are delayed by whole ticks.
        fail: called with the reason when the store has failed: the node must end.
    """

    journal: LoggedJournal

    def __init__(
        self,
        store: Store,
        call: Callable[..., object],
        call_later: CallLater | None = None,
        *,
        fail: Callable[[Exception], object],
    ) -> None:
        self.store = store
        self.journal = LoggedJournal()
        self.access = self._access = LocalAccess(store)
        self._call = call
        self._call_later = call_later
        self._fail = fail

    def build(self, data_plane: DataPlane, methods: RpcMethods) -> Coordinator:
        expiry = Expiry(data_plane, self.journal)
        delayed = LocalDelayed(data_plane, self.journal, self._call_later)
        transactions = LocalTransactions(data_plane, self.journal)
        groups = LocalGroups(data_plane)
        return Coordinator(
            life=StandaloneLife(
                data_plane,
                self.journal,
                self.store,
                self._call,
                expiry=expiry,
                delayed=delayed,
                transactions=transactions,
                groups=groups,
                access=self._access,
                fail=self._fail,
            ),
            nodes=OneNode(methods),
            owner=LocalOwner(data_plane, self.journal, expiry),
            subscribing=LocalSubscribing(data_plane),
            sessions=LocalSessions(data_plane, expiry),
            groups=groups,
            wills=LocalWills(data_plane, expiry),
            delayed=delayed,
            transactions=transactions,
        )


class StandaloneLife(NodeLife):
    """Reads the store at the start, and ends with it.

    Args:
        data_plane: of the node.
        journal: of the node.
        store: of the node.
        call: calls a function with arguments on the loop's thread, from any thread.
        expiry: of the node.
        delayed: the delayed messages of the node.
        transactions: of the node.
        groups: of the node.
        access: of the node.
        fail: called with the reason when the store has failed.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        journal: LoggedJournal,
        store: Store,
        call: Callable[..., object],
        *,
        expiry: Expiry,
        delayed: LocalDelayed,
        transactions: LocalTransactions,
        groups: LocalGroups,
        access: LocalAccess,
        fail: Callable[[Exception], object],
    ) -> None:
        self._data_plane = data_plane
        self._journal = journal
        self._store = store
        self._call = call
        self._expiry = expiry
        self._delayed = delayed
        self._transactions = transactions
        self._groups = groups
        self._access = access
        self._fail = fail
        self._logged: LoggedMessages | None = None
        self._message_log: FileLog | None = None

    async def start(self) -> None:
        self.restore()
        await self._expiry.settled()

    def restore(self, *, smallest: int = MIN_BYTES) -> None:
        """Read the store, and publish the wills of clients that were connected when the node died.

        Args:
            smallest: bytes of blocks below which they are not compacted.
        """
        plane = self._data_plane
        self.compaction = Compaction(
            self._store,
            plane.router,
            plane.sessions,
            plane.will_rights,
            smallest=smallest,
            record_more=self._record_more,
        )
        restorer = Restorer(plane.router, plane.sessions)
        began = time.monotonic()
        restorer.read(self._store.open())
        self._access.load()  # wills need the roles
        self._open_log()
        self._store.start(self._confirm, self._call)
        self._expiry.start_clock(restorer.clock)
        if self._store.durable:
            self._journal.start()
        delayed = restorer.delayed()
        deadlines = restorer.finish()
        self.wills = restorer.wills
        self._delayed.start(delayed)
        self._transactions.start(restorer.committed)
        self._expiry.restore(deadlines, restorer.wills, restorer.due_wills)
        if self._store.size:
            log.info(
                "store read",
                sessions=plane.sessions.count,
                subscriptions=plane.router.filters.count,
                retained=plane.router.retained.count,
                wills=len(restorer.wills),
                delayed=len(delayed),
                seconds=round(time.monotonic() - began, 2),
            )
        self._groups.declare_configured(plane.config)
        plane.end_turn()

    def _open_log(self) -> None:
        """Go on with the log of messages of the store."""
        if isinstance(self._store, SqliteStore):
            self._message_log = FileLog(self._store)
            self._logged = LoggedMessages(self._data_plane, self._store, lambda: self._data_plane.config.analytics)
            self._journal.attach(self._logged.log)
            self._logged.start()

    def _record_more(self) -> None:
        """Write deadlines, wills and the numbers of transactions again, for a compaction."""
        self._expiry.record_all()
        self._transactions.record_all()

    def _confirm(self, blocks: int) -> None:
        """The store has stored the next blocks."""
        self._data_plane.turn.confirm(blocks)
        self.compaction.step()
        self._data_plane.end_turn()

    def configure(self, config: Config) -> None:
        self._expiry.configure()
        self._groups.declare_configured(config)
        if self._logged is not None:
            self._logged.configure()
        self._data_plane.end_turn()

    def tick(self) -> None:
        self._check_store()
        self._expiry.tick()
        self._delayed.tick()
        self._transactions.tick()

    async def drain(self, references: tuple[str, ...]) -> None:
        await self._stored()  # acknowledgements that wait for the store still leave
        reason = close_reasons.BROKER_STOPS.leading_to(references)
        for connection in self._data_plane.reactor:
            connection.close(reason)  # MQTT 3 has no other way; a will is published [MQTT-3.1.2-8]
        self._data_plane.end_turn()

    async def stop(self) -> None:
        self._delayed.stop()
        self._expiry.record_clock()
        if self._logged is not None:
            self._logged.log.close()
        await self._stored()
        self._store.close()
        self._check_store()

    def _check_store(self) -> None:
        if self._store.failure is not None:
            self._fail(self._store.failure)

    async def _stored(self) -> None:
        """Wait until the store has all that was recorded, or has failed."""
        done = asyncio.Event()
        self._data_plane.turn.seal()
        self._data_plane.turn.after_commit(done.set)
        waits_until = time.monotonic() + STOP_SECONDS
        while not done.is_set() and self._store.failure is None and time.monotonic() < waits_until:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), CHECK_SECONDS)
        if not done.is_set() and self._store.failure is None:
            log.error("the store doesn't respond: unconfirmed messages were not acknowledged and may be lost")
        self._data_plane.end_turn()

    def describe(self) -> str:
        return self._store.describe()

    def ready(self) -> tuple[bool, str]:
        trouble = self._store.trouble
        return not trouble, trouble or "ready"

    @property
    def message_log(self) -> MessageLog | None:
        return self._message_log if self._data_plane.config.analytics.topics else None
