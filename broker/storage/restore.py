"""Restore: from the blocks of a store to the state of the node."""

from collections.abc import Callable, Iterable

from ..._speedups.routing.router import Router
from ..._speedups.session import session_store
from ..._speedups.session.group_journal import GroupJournal
from ..._speedups.session.journal import AS_CONFIGURED, DamagedBlock, records
from ..._speedups.session.session import Session
from ..._speedups.session.session_store import Restored
from ..core.group_settings import settings_of
from ..core.sessions import Sessions
from ..core.will import Will
from ..errors import StoreError


class Restorer:
    """Applies records, oldest first. The journal must not have been started, or it would record them again."""

    def __init__(self, router: Router, sessions: Sessions) -> None:
        self._filters = router.filters
        self._retained = router.retained
        self._turn = router.turn
        self._journal = router.turn.journal
        self._sessions = sessions
        self._by_number: dict[int, Session] = {}
        self._connected: set[int] = set()
        self._messages: dict[int, Restored] = {}
        self._groups: dict[int, GroupJournal] = {}
        self._deadlines: dict[int, int] = {}  # of sessions, by number
        self._expiring: dict[int, int] = {}  # deadlines of messages, by number
        self.clock: tuple[int, int] | None = None  # the last record of the store's clock and the wall clock
        self.wills: dict[bytes, Will] = {}
        self._delayed: dict[int, tuple[int, bytes]] = {}  # message -> when it is due, client id of its publisher
        self.committed: dict[str, int] = {}  # number of the last transaction of each key
        self.due_wills: dict[bytes, int] = {}  # deadlines of the wills of ended connections
        self._apply: dict[str, Callable[..., object]] = {
            "MESSAGE": self._message,
            "QUEUED": lambda s, n, m, flags, ids: session_store.restore_queued(
                self._by_number[s], n, self._messages[m], flags, ids
            ),
            "DONE": lambda s, n: session_store.restore_done(self._by_number[s], n),
            "RECEIVED": lambda s, n: session_store.restore_received(self._by_number[s], n),
            "AWAITING": lambda s, packet_id, m: session_store.restore_awaiting(
                self._by_number[s], packet_id, self._messages[m]
            ),
            "RELEASED": lambda s, packet_id: session_store.restore_released(self._by_number[s], packet_id),
            "SESSION": self._session,
            "SESSION_USER": lambda s, user: setattr(self._by_number[s], "user", user),
            "SESSION_GONE": self._session_gone,
            "SUBSCRIBED": lambda s, options, i, name: self._filters.subscribe(self._by_number[s], name, options, i),
            "UNSUBSCRIBED": lambda s, name: self._filters.unsubscribe(self._by_number[s], name),
            "RETAINED": lambda m: self._retained.keep(self._messages[m]),
            "RETAINED_GONE": lambda topic: self._retained.set(topic, b""),
            "WILL": self._will,
            "WILL_AUTHOR": self._will_author,
            "WILL_DELAY": self._will_delay,
            "WILL_DUE": lambda due, client_id: self.due_wills.__setitem__(client_id, due),
            "WILL_GONE": self._will_gone,
            "SESSION_EXPIRY": self._session_expiry,
            "CLOCK": lambda clock, wall: setattr(self, "clock", (clock, wall)),
            "DELAYED": lambda m, due, publisher: self._delayed.__setitem__(m, (due, publisher)),
            "DELAYED_GONE": lambda m: self._delayed.pop(m, None),
            "COMMITTED": lambda number, name: self.committed.__setitem__(name.decode(), number),
            "GROUP": self._group,
            "GROUP_DECLARED": self._group_declared,
            "GROUP_GONE": lambda g: self._groups[g].restore_gone(),
            "GROUP_QUEUED": lambda g, place, m: self._groups[g].restore_queued(place, self._messages[m]),
            "GROUP_DONE": lambda g, place: self._groups[g].restore_done(place),
            "GROUP_FAILED": lambda g, place, failures: self._groups[g].restore_failed(place, failures),
            "GROUP_KEY": lambda g, place, key: self._groups[g].restore_key(place, key),
            "GIVEN": lambda g, place, s, n: self._groups[g].restore_given(place, self._by_number[s], n),
        }

    def read(self, blocks: Iterable[bytes]) -> None:
        """Apply all blocks.

        Raises:
            StoreError: a block is damaged, or of another version.
        """
        for block in blocks:
            try:
                for kind, *fields in records(block):
                    self._apply[kind](*fields)
            except (DamagedBlock, KeyError, OverflowError, ValueError) as error:
                raise StoreError(
                    f"the store can't be read: {error!r}",
                    "use the version of FlockMQ that wrote it, or restore a backup",
                ) from error
        self._journal.continue_after(max(self._messages, default=0))

    def finish(self) -> dict[bytes, int]:
        """After the journal was started: sessions learn which messages may have been sent before.

        Returns:
            Client id -> deadline of its session, for sessions that had no connection.
        """
        for number, deadline in self._expiring.items():
            message = self._messages[number]
            message.expires = self._journal.clock_of(deadline)
            self._retained.watch(message)
        for number, session in self._by_number.items():
            session_store.end_restore(session, number in self._connected)
        self._filters.restored()
        deadlines = {self._by_number[number].client_id: deadline for number, deadline in self._deadlines.items()}
        self._by_number.clear()  # `_apply` makes a cycle of this object, which would keep ended sessions alive
        self._messages.clear()
        self._groups.clear()
        return deadlines

    def delayed(self) -> list[tuple[Restored, int, bytes]]:
        """The messages that wait, when they are due, and the client ids of their publishers; to be called first."""
        found = sorted((due, number, publisher) for number, (due, publisher) in self._delayed.items())
        return [(self._messages[number], due, publisher) for due, number, publisher in found]

    def _message(
        self, number: int, qos: int, retain: int, topic: bytes, payload: bytes, properties: bytes, deadline: int
    ) -> None:
        if number in self._messages:  # a compaction has written it again; queues hold the first, which gets the expiry
            return
        self._messages[number] = Restored(number, qos, bool(retain), topic, payload, properties)
        if deadline:
            self._expiring[number] = deadline

    def _session(self, number: int, level: int, connected: int, first: int, sent: int, client_id: bytes) -> None:
        if number not in self._by_number:
            if self._sessions.get(client_id) is not None:  # it would be dropped, and its subscriptions not
                raise DamagedBlock(f"two sessions of one client identifier: {client_id!r}")
            self._by_number[number] = self._sessions.restore(number, client_id, level=level)
        session_store.restore(self._by_number[number], first, sent)
        if connected:
            self._connected.add(number)
        else:
            self._connected.discard(number)

    def _group(self, number: int, name: bytes) -> None:
        backing = self._filters.restore_group(self._turn, number, name).backing
        assert isinstance(backing, GroupJournal)
        self._groups[number] = backing

    def _group_declared(self, number: int, text: bytes) -> None:
        group = self._groups[number].group
        if text:
            self._filters.declare(self._turn, group.name, settings_of(text, self._turn.shared))
        else:  # `restored` ends it, unless it has subscribers before
            group.configure(None)

    def _session_gone(self, number: int) -> None:
        session = self._by_number.pop(number)
        self._deadlines.pop(number, None)
        self._connected.discard(number)
        self._sessions.end(session)

    def _will(self, message: int, client_id: bytes) -> None:
        found = self._messages[message]
        self.due_wills.pop(client_id, None)
        self.wills[client_id] = Will(found.topic, found.payload, found.qos, found.retain, found.properties)

    def _will_author(self, size: int, names: bytes) -> None:
        client_id, author = names[:size], names[size:]
        if client_id in self.wills:
            self.wills[client_id] = self.wills[client_id]._replace(author=author)

    def _will_gone(self, client_id: bytes) -> None:
        self.wills.pop(client_id, None)
        self.due_wills.pop(client_id, None)

    def _will_delay(self, delay: int, client_id: bytes) -> None:
        if client_id in self.wills:
            self.wills[client_id] = self.wills[client_id]._replace(delay=delay)

    def _session_expiry(self, number: int, interval: int, deadline: int) -> None:
        self._by_number[number].expiry = None if interval == AS_CONFIGURED else interval
        self._deadlines[number] = deadline
