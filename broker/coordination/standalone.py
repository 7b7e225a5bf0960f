"""One node with its own store: sessions are assigned at once, and are as durable as the store."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from functools import partial

from ..._speedups.codec.packets import Connect
from ..._speedups.log.journal import LoggedJournal
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.session import session_store
from ..._speedups.session.counters import TAKEOVERS
from ..._speedups.session.session import Session
from .. import logs
from ..auth.authenticator import ReasonCode
from ..config.declared_group import DeclaredGroup
from ..config.schema import Config
from ..core import will
from ..core.calls import RpcMethods
from ..core.data_plane import DataPlane
from ..core.group_settings import settings_of
from ..core.session_expiry import interval_of
from ..storage.compaction import MIN_BYTES, Compaction
from ..storage.restore import Restorer
from ..storage.sqlite import SqliteStore
from ..storage.store import Store
from ..streams.file_log import FileLog
from ..streams.logged_messages import LoggedMessages
from ..streams.message_log import MessageLog
from .admission import Admission
from .coordinator import Coordinator, Delayed, Done
from .delayed import CallLater, DelayedTimer
from .expiry import Expiry

STOP_SECONDS = 10.0  # that a store may take for the last blocks
CHECK_SECONDS = 0.25  # between looks whether it has failed

log = logs.get("flockmq.node")


class StandaloneCoordinator(Coordinator):
    """A node that shares nothing. With the embedded store it can log messages.

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
        self._fail = fail
        self.journal = LoggedJournal()
        self._logged: LoggedMessages | None = None
        self._message_log: FileLog | None = None
        self._run = secrets.token_hex(4)  # before the numbers of delayed messages, which begin at 1 with each start
        self._call = call
        self._call_later = call_later

    # ---- life ----

    def attach(self, data_plane: DataPlane, methods: RpcMethods) -> None:
        super().attach(data_plane, methods)
        self._expiry = Expiry(data_plane, self.journal)
        self._delayed = DelayedTimer(data_plane, self.journal, self._call_later)

    async def start(self) -> None:
        self.restore()

    def restore(self, *, smallest: int = MIN_BYTES) -> None:
        """Read the store, and publish the wills of clients that were connected when the node died.

        Args:
            smallest: bytes of blocks below which they are not compacted.
        """
        plane = self.data_plane
        self.compaction = Compaction(
            self.store,
            plane.router,
            plane.sessions,
            plane.will_rights,
            smallest=smallest,
            record_more=self._expiry.record_all,
        )
        restorer = Restorer(plane.router, plane.sessions)
        began = time.monotonic()
        restorer.read(self.store.open())
        self._open_log()
        self.store.start(self._confirm, self._call)
        self._expiry.start_clock(restorer.clock)
        if self.store.durable:
            self.journal.start()
        delayed = restorer.delayed()
        deadlines = restorer.finish()
        self.wills = restorer.wills
        self._delayed.start(delayed)
        self._expiry.restore(deadlines, restorer.wills, restorer.due_wills)
        if self.store.size:
            log.info(
                "store read",
                sessions=len(plane.sessions),
                subscriptions=plane.router.filters.count,
                retained=plane.router.retained.count,
                wills=len(restorer.wills),
                delayed=len(delayed),
                seconds=round(time.monotonic() - began, 2),
            )
        self._declare_configured(plane.config)
        plane.end_turn()

    def _open_log(self) -> None:
        """Go on with the log of messages of the store."""
        if isinstance(self.store, SqliteStore):
            self._message_log = FileLog(self.store)
            self._logged = LoggedMessages(self.data_plane, self.store, lambda: self.data_plane.config.analytics)
            self.journal.attach(self._logged.log)
            self._logged.start()

    def _confirm(self, blocks: int) -> None:
        """The store has stored the next blocks."""
        self.data_plane.turn.confirm(blocks)
        self.compaction.step()
        self.data_plane.end_turn()

    def configure(self, config: Config) -> None:
        self._expiry.configure()
        self._declare_configured(config)
        if self._logged is not None:
            self._logged.configure()
        self.data_plane.end_turn()

    def _declare_configured(self, config: Config) -> None:
        for group in config.shared.groups:
            self._declare(group)

    def _declare(self, group: DeclaredGroup) -> None:
        filters, turn, name = self.data_plane.router.filters, self.data_plane.turn, group.name.encode()
        known = filters.groups.get(name)
        if known is None or known.settings.declaration != group.stored:
            filters.declare(turn, name, settings_of(group.stored, turn.shared))

    async def declare_group(self, group: DeclaredGroup) -> None:
        self._declare(group)
        await self._recorded()

    async def remove_group(self, name: bytes) -> int | None:
        dropped = self.data_plane.router.filters.undeclare(name)
        await self._recorded()
        return dropped

    def tick(self) -> None:
        self._check_store()
        self._expiry.tick()
        self._delayed.tick()

    async def drain(self, references: tuple[str, ...]) -> None:
        await self._stored()  # acknowledgements that wait for the store still leave
        reason = close_reasons.BROKER_STOPS.leading_to(references)
        for connection in self.data_plane.reactor:
            connection.close(reason)  # MQTT 3 has no other way; a will is published [MQTT-3.1.2-8]
        self.data_plane.end_turn()

    async def stop(self) -> None:
        self._delayed.stop()
        self._expiry.record_clock()
        if self._logged is not None:
            self._logged.log.close()
        await self._stored()
        self.store.close()
        self._check_store()

    def _check_store(self) -> None:
        if self.store.failure is not None:
            self._fail(self.store.failure)

    async def _stored(self) -> None:
        """Wait until the store has all that was recorded, or has failed."""
        done = asyncio.Event()
        self.data_plane.turn.seal()
        self.data_plane.turn.after_commit(done.set)
        waits_until = time.monotonic() + STOP_SECONDS
        while not done.is_set() and self.store.failure is None and time.monotonic() < waits_until:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), CHECK_SECONDS)
        if not done.is_set() and self.store.failure is None:
            log.error("the store doesn't respond: unconfirmed messages were not acknowledged and may be lost")
        self.data_plane.end_turn()

    def describe(self) -> str:
        return self.store.describe()

    def ready(self) -> tuple[bool, str]:
        trouble = self.store.trouble
        return not trouble, trouble or "ready"

    @property
    def message_log(self) -> MessageLog | None:
        return self._message_log if self.data_plane.config.analytics.topics else None

    # ---- connections and sessions ----

    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        plane = self.data_plane
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
        if not known and len(plane.sessions) >= plane.config.limits.max_sessions:
            admission.refuse(connection, ReasonCode.QUOTA_EXCEEDED, packet.client_id, "too many sessions")
            return
        interval = interval_of(packet, plane.config.mqtt)
        recorded = len(self.journal)
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
        will.record(self.journal, client_id, packet, plane.will_rights, connection.identity)
        session_store.record(session, connected=True)
        self._expiry.connected(session, interval)
        admitted = session

        def welcome() -> None:
            admission.welcome(connection, packet, admitted, present=present)

        if known or len(self.journal) > recorded:
            plane.turn.after_commit(welcome)
        else:  # clean sessions without a will are admitted while the store can't write
            welcome()

    def ended(self, connection: Connection, session: Session | None) -> None:
        if session is None:
            return
        had_will, found = will.take(connection, self.data_plane.router, self.data_plane.will_rights)
        self._expiry.ended(session, found, had_will)

    def discard_will(self, connection: Connection) -> None:
        if connection.session is not None:
            self.journal.record_will_gone(connection.session.client_id)

    def subscribe(
        self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], identifier: int, done: Done
    ) -> None:
        for name, options in filters:
            self.data_plane.router.filters.subscribe(session, name, options, identifier)
        self.data_plane.when_stored(connection, session, done)

    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        for name in filters:
            self.data_plane.router.filters.unsubscribe(session, name)
        self.data_plane.when_stored(connection, session, done)

    async def end_session(self, client_id: bytes) -> bool:
        session = self.data_plane.sessions.get(client_id)
        if session is None:
            return False
        if session.owner is not None:
            session.owner.close(close_reasons.ENDED_BY_OPERATOR)
        if self.data_plane.sessions.get(client_id) is session:  # else it was a clean one, and ended with its connection
            self._expiry.end(session)
        await self._recorded()
        return True

    def session_deadline(self, client_id: bytes) -> int | None:
        return self._expiry.deadline_of(client_id)

    async def waiting_wills(self) -> list[tuple[bytes, will.Will, int]]:
        return self._expiry.waiting_wills()

    async def cancel_will(self, client_id: bytes) -> bool:
        if not self._expiry.has_will(client_id):
            return False
        self._expiry.cancel_will(client_id)
        await self._recorded()
        return True

    async def delayed_messages(self, prefix: bytes, without: bytes, after: str, limit: int) -> list[Delayed]:
        due, _, number = after.partition("-")
        now = self._delayed.now()
        found = self.data_plane.router.delayed.find(prefix, without, int(due or -1), int(number or 0), limit)
        return [
            Delayed(f"{self._run}-{number}", f"{due}-{number}", due - now, publisher, topic, qos, retain, size)
            for due, number, publisher, topic, qos, retain, size in found
        ]

    async def cancel_delayed(self, message: str, prefix: bytes) -> bool:
        run, _, number = message.partition("-")
        if run != self._run or not self.data_plane.router.delayed.cancel(int(number), prefix):
            return False
        await self._recorded()
        return True

    async def _recorded(self) -> None:
        """Wait until the store has the records of this turn."""
        stored = asyncio.Event()
        self.data_plane.turn.after_commit(stored.set)
        self.data_plane.end_turn()
        await stored.wait()
