"""The state in a SQLite store: from the records of its blocks, and to such records.

A record states a value, and later ones replace it. So all blocks are read before the first session is known to be
complete; `broker/storage/restore.py` gives the same records the same meaning.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from ..._speedups.cluster.message_codec import topic_key
from ..._speedups.codec.topics import is_shared
from ..._speedups.session.journal import AS_CONFIGURED, DamagedBlock, block_of, records
from ...broker.core.will import Will
from ...broker.errors import StoreError
from .state import (
    Moved,
    Queued,
    Share,
    State,
    StoredDelayed,
    StoredGroup,
    StoredMessage,
    StoredSession,
    StoredWill,
    Waiting,
    wall_clock,
)

Record = tuple[Any, ...]
BLOCK_BYTES = 1 << 20
NEVER = 2**63 - 1  # when a staged chunk of a transaction is due
KNOWN_MESSAGES = 10_000  # that later records may name again: a message to many sessions is written once
RETAINED_MESSAGE, AS_PUBLISHED = 4, 8  # flags of QUEUED
SEPARATOR = b"\0"  # no client id has it: after it is the number of a will that is not of the client's last connection


class SqliteState(State):
    """The state in the blocks of a store.

    Args:
        blocks: oldest first.

    Raises:
        StoreError: a block is damaged, or of another version.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._sessions: dict[int, StoredSession] = {}
        self._connected: set[int] = set()
        self._messages: dict[int, StoredMessage] = {}
        self._groups: dict[int, StoredGroup] = {}
        self._waiting: dict[int, dict[int, int]] = {}  # group -> place -> message
        self._failures: dict[tuple[int, int], int] = {}  # group, place
        self._keys: dict[tuple[int, int], int] = {}
        self._given: dict[tuple[int, int], tuple[int, int]] = {}  # session, queue number -> group, place
        self._retained: dict[bytes, StoredMessage] = {}
        self._wills: dict[bytes, tuple[Will, int | None]] = {}
        self._delayed: dict[int, tuple[int, bytes]] = {}  # message -> when it is due, client id of its publisher
        self._committed: dict[str, int] = {}
        self._clock: tuple[int, int] | None = None
        self._apply: dict[str, Callable[..., object]] = {
            "MESSAGE": self._message,
            "QUEUED": self._queued,
            "DONE": self._done,
            "RECEIVED": self._received,
            "AWAITING": self._awaiting,
            "RELEASED": lambda s, packet_id: self._sessions[s].awaiting.pop(packet_id, None),
            "SESSION": self._session,
            "SESSION_USER": lambda s, user: setattr(self._sessions[s], "user", user),
            "SESSION_GONE": self._session_gone,
            "SUBSCRIBED": self._subscribed,
            "UNSUBSCRIBED": lambda s, name: self._sessions[s].subscriptions.pop(name, None),
            "RETAINED": self._retain,
            "RETAINED_GONE": lambda topic: self._retained.pop(topic, None),
            "WILL": self._will,
            "WILL_GONE": lambda client_id: self._wills.pop(client_id, None),
            "WILL_AUTHOR": self._will_author,
            "WILL_DELAY": self._will_delay,
            "WILL_DUE": self._will_due,
            "SESSION_EXPIRY": self._session_expiry,
            "CLOCK": lambda clock, wall: setattr(self, "_clock", (clock, wall)),
            "GROUP": lambda g, name: self._groups.setdefault(g, StoredGroup(name)),
            "GROUP_DECLARED": lambda g, text: setattr(self._groups[g], "declaration", text),
            "GROUP_GONE": self._group_gone,
            "GROUP_QUEUED": self._group_queued,
            "GROUP_DONE": self._group_done,
            "GROUP_FAILED": lambda g, place, failures: self._failures.__setitem__((g, place), failures),
            "GROUP_KEY": lambda g, place, key: self._keys.__setitem__((g, place), key),
            "GIVEN": self._give,
            "DELAYED": lambda m, due, publisher: self._delayed.__setitem__(m, (due, publisher)),
            "DELAYED_GONE": lambda m: self._delayed.pop(m, None),
            "COMMITTED": lambda number, name: self._committed.__setitem__(name.decode(), number),
        }
        for block in blocks:
            try:
                for kind, *fields in records(block):
                    self._apply[kind](*fields)
            except (DamagedBlock, KeyError, ValueError) as error:
                raise StoreError(
                    f"the store can't be read: {error!r}",
                    "use the version of FlockMQ that wrote it, or restore a backup",
                ) from error
        wall = wall_clock()
        self._offset = 0 if self._clock is None else self._clock[0] + max(0, wall - self._clock[1]) - wall
        self._by_client = {session.client_id: session for session in self._sessions.values()}
        self._strategies = {number: strategy_of(group.declaration) for number, group in self._groups.items()}

    # ---- records ----

    def _message(
        self, number: int, qos: int, retain: int, topic: bytes, payload: bytes, properties: bytes, deadline: int
    ) -> None:
        self._messages.setdefault(number, StoredMessage(topic, payload, qos, bool(retain), properties, deadline))

    def _session(self, number: int, level: int, connected: int, first: int, sent: int, client_id: bytes) -> None:
        session = self._sessions.get(number)
        if session is None:
            session = self._sessions[number] = StoredSession(client_id, number, level)
        session.head = max(session.head, first)
        session.tail = max(session.tail, first, sent)
        session.sent = max(session.sent, sent)
        for n in [n for n in session.queue if n < session.head]:
            del session.queue[n]
        (self._connected.add if connected else self._connected.discard)(number)

    def _session_gone(self, number: int) -> None:
        del self._sessions[number]
        self._connected.discard(number)

    def _session_expiry(self, number: int, interval: int, deadline: int) -> None:
        self._sessions[number].interval = None if interval == AS_CONFIGURED else interval
        self._sessions[number].deadline = deadline

    def _subscribed(self, number: int, options: int, identifier: int, name: bytes) -> None:
        self._sessions[number].subscriptions[name] = (options, identifier)

    def _queued(self, number: int, n: int, message: int, flags: int, identifiers: bytes) -> None:
        session = self._sessions[number]
        session.tail = max(session.tail, n + 1)
        if n >= session.head and n not in session.queue:
            sent = self._messages[message]._replace(qos=flags & 3, retain=bool(flags & RETAINED_MESSAGE))
            session.queue[n] = Queued(sent, bool(flags & AS_PUBLISHED), identifiers)

    def _done(self, number: int, n: int) -> None:
        session = self._sessions[number]
        session.tail = max(session.tail, n + 1)
        session.queue.pop(n, None)

    def _received(self, number: int, n: int) -> None:
        session = self._sessions[number]
        session.tail = max(session.tail, n + 1)
        if n >= session.head:
            session.queue[n] = Queued(None)

    def _awaiting(self, number: int, packet_id: int, message: int) -> None:
        self._sessions[number].awaiting.setdefault(packet_id, self._messages[message]._replace(qos=2))

    def _retain(self, message: int) -> None:
        found = self._messages[message]._replace(retain=True)
        self._retained[found.topic] = found

    def _will(self, message: int, client_id: bytes) -> None:
        found = self._messages[message]
        will = Will(found.topic, found.payload, found.qos, found.retain, found.properties)
        self._wills[client_id] = (will, None)

    def _will_author(self, size: int, names: bytes) -> None:
        client_id, author = names[:size], names[size:]
        if client_id in self._wills:
            will, due = self._wills[client_id]
            self._wills[client_id] = (will._replace(author=author), due)

    def _will_delay(self, delay: int, client_id: bytes) -> None:
        if client_id in self._wills:
            will, due = self._wills[client_id]
            self._wills[client_id] = (will._replace(delay=delay), due)

    def _will_due(self, due: int, client_id: bytes) -> None:
        if client_id in self._wills:
            self._wills[client_id] = (self._wills[client_id][0], due)

    def _group_gone(self, number: int) -> None:
        self._waiting.pop(number, None)
        for kept in (self._failures, self._keys):
            for group, place in [key for key in kept if key[0] == number]:
                del kept[group, place]

    def _group_queued(self, number: int, place: int, message: int) -> None:
        self._waiting.setdefault(number, {})[place] = message
        self._groups[number].last = max(self._groups[number].last, place)

    def _group_done(self, number: int, place: int) -> None:
        self._waiting.get(number, {}).pop(place, None)
        self._failures.pop((number, place), None)

    def _give(self, number: int, place: int, session: int, n: int) -> None:
        self._waiting.get(number, {}).pop(place, None)
        self._groups[number].last = max(self._groups[number].last, place)
        self._given[session, n] = (number, place)

    # ---- what a migration moves ----

    @property
    def clock(self) -> int:
        return wall_clock() + self._offset

    @property
    def is_empty(self) -> bool:
        some = self._sessions or self._retained or self._wills or self._delayed or self._committed
        return not (some or any(self._declared()))

    def _declared(self) -> Iterator[StoredGroup]:
        return (group for group in self._groups.values() if group.declaration)

    def declarations(self) -> dict[bytes, bytes]:
        return {group.name: group.declaration for group in self._declared()}

    def sessions(self) -> Iterator[StoredSession]:
        given: dict[int, list[tuple[int, int, int]]] = {}
        for (number, n), (group, place) in self._given.items():
            given.setdefault(number, []).append((n, group, place))
        for number, session in self._sessions.items():
            for n, group, place in given.get(number, ()):
                entry = session.queue.get(n)
                if entry is not None and self._groups[group].name in session.subscriptions:
                    session.queue[n] = entry._replace(share=self._share(group, place, entry.message))
            while session.head < session.tail and session.head not in session.queue:
                session.head += 1
            if number in self._connected:  # any may have been sent: acknowledgements are written late
                session.sent = session.tail
            yield session

    def groups(self) -> Iterator[StoredGroup]:
        joined = {name for session in self._sessions.values() for name in session.subscriptions}
        for number, group in self._groups.items():
            if group.declaration or group.name in joined:
                for place, message in sorted(self._waiting.get(number, {}).items()):
                    found = self._messages[message]
                    group.waiting.append(Waiting(self._share(number, place, found), found))
                yield group

    def _share(self, group: int, place: int, message: StoredMessage | None) -> Share:
        key = self._keys.get((group, place), -1)
        if self._strategies[group] == "topic":
            key = -1 if message is None else topic_key(message.topic)
        return Share(self._groups[group].name, place, key, self._failures.get((group, place), 0))

    def retained(self) -> Iterator[StoredMessage]:
        return iter(self._retained.values())

    def wills(self) -> Iterator[StoredWill]:
        for stored, (will, due) in self._wills.items():
            client_id, separator, _ = stored.partition(SEPARATOR)
            yield StoredWill(client_id, will, due, not separator and client_id in self._by_client)

    def delayed(self) -> Iterator[StoredDelayed]:
        for due, message, publisher in sorted((due, m, publisher) for m, (due, publisher) in self._delayed.items()):
            yield StoredDelayed(publisher, self._messages[message], None if due == NEVER else due)

    def committed(self) -> dict[str, int]:
        return self._committed


class RecordWriter:
    """Writes a state as blocks of records.

    Args:
        state: to be written.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._records: list[Record] = []
        self._size = 0
        self._messages: dict[StoredMessage, int] = {}
        self._last_message = 0
        self._groups: dict[bytes, int] = {}
        self._strategies: dict[bytes, str] = {}
        self._clients: set[bytes] = set()
        self.moved = Moved()

    def blocks(self) -> Iterator[bytes]:
        """The blocks. Heads of groups and sessions are before the records that refer to them."""
        self._add(("CLOCK", self._state.clock, wall_clock()))
        for name, declaration in self._state.declarations().items():
            self._strategies[name] = strategy_of(declaration)
            self._add(("GROUP_DECLARED", self._group(name), declaration))
        steps = (
            self._write_sessions,
            self._write_groups,
            self._write_retained,
            self._write_wills,
            self._write_delayed,
        )
        for step in steps:
            for _ in step():
                if self._size >= BLOCK_BYTES:
                    yield self._take()
        yield self._take()

    def _take(self) -> bytes:
        block = block_of(self._records)
        self._records, self._size = [], 0
        return block

    def _add(self, record: Record) -> None:
        self._records.append(record)
        self._size += 40

    def _message(self, message: StoredMessage) -> int:
        number = self._messages.get(message)
        if number is None:
            if len(self._messages) >= KNOWN_MESSAGES:
                self._messages.clear()
            self._last_message += 1
            number = self._messages[message] = self._last_message
            topic, payload, qos, retain, properties, deadline = message
            self._add(("MESSAGE", number, qos, int(retain), topic, payload, properties, deadline))
            self._size += len(topic) + len(payload) + len(properties)
        return number

    def _group(self, name: bytes) -> int:
        number = self._groups.get(name)
        if number is None:
            number = self._groups[name] = len(self._groups) + 1
            self._add(("GROUP", number, name))
        return number

    def _write_sessions(self) -> Iterator[None]:
        for session in self._state.sessions():
            number = session.number
            self._clients.add(session.client_id)
            self._add(("SESSION", number, session.level, 0, session.head, session.sent, session.client_id))
            if session.user:
                self._add(("SESSION_USER", number, session.user))
            if session.interval is not None or session.deadline:
                interval = AS_CONFIGURED if session.interval is None else session.interval
                self._add(("SESSION_EXPIRY", number, interval, session.deadline))
            for name, (options, identifier) in session.subscriptions.items():
                if is_shared(name):
                    self._group(name)
                self._add(("SUBSCRIBED", number, options, identifier, name))
            for n, entry in session.queue.items():
                self._write_queued(number, n, entry)
                yield
            if session.tail > session.head and session.tail - 1 not in session.queue:
                self._add(("DONE", number, session.tail - 1))  # the number is not used again
            for packet_id, message in session.awaiting.items():
                self._add(("AWAITING", number, packet_id, self._message(message)))
            self.moved.sessions += 1
            self.moved.subscriptions += len(session.subscriptions)
            self.moved.queued += len(session.queue)
            yield

    def _write_queued(self, number: int, n: int, entry: Queued) -> None:
        message = entry.message
        if message is None:
            self._add(("RECEIVED", number, n))
        else:
            flags = message.qos | RETAINED_MESSAGE * message.retain | AS_PUBLISHED * entry.as_published
            self._add(("QUEUED", number, n, self._message(message), flags, entry.identifiers))
        if entry.share is not None:
            self._add(("GIVEN", self._group(entry.share.group), entry.share.place, number, n))
            self._write_share(entry.share)

    def _write_share(self, share: Share) -> None:
        """The record of a group on one of its messages."""
        group = self._group(share.group)
        if share.key >= 0 and self._strategies.get(share.group) == "publisher":
            self._add(("GROUP_KEY", group, share.place, share.key))
        if share.failures:
            self._add(("GROUP_FAILED", group, share.place, share.failures))

    def _write_groups(self) -> Iterator[None]:
        for group in self._state.groups():
            for waiting in group.waiting:
                self._write_share(waiting.share)
                number = self._group(group.name)
                self._add(("GROUP_QUEUED", number, waiting.share.place, self._message(waiting.message)))
                yield
            self.moved.groups += 1
            self.moved.waiting += len(group.waiting)

    def _write_retained(self) -> Iterator[None]:
        for message in self._state.retained():
            self._add(("RETAINED", self._message(message)))
            self.moved.retained += 1
            yield

    def _write_wills(self) -> Iterator[None]:
        names: set[bytes] = set()
        for stored in sorted(self._state.wills(), key=lambda stored: not stored.is_current):
            name, will = stored.client_id, stored.will
            if name in names or (name in self._clients and not stored.is_current):
                name += SEPARATOR + b"%d" % len(names)
            names.add(name)
            message = StoredMessage(will.topic, will.payload, will.qos, will.retain, will.properties)
            self._add(("WILL", self._message(message), name))
            if will.author:
                self._add(("WILL_AUTHOR", len(name), name + will.author))
            if will.delay:
                self._add(("WILL_DELAY", will.delay, name))
            if stored.due is not None:
                self._add(("WILL_DUE", stored.due, name))
            self.moved.wills += 1
            yield

    def _write_delayed(self) -> Iterator[None]:
        for stored in self._state.delayed():
            self._messages.pop(stored.message, None)  # its number is its own: it is the name of a waiting message
            due = NEVER if stored.due is None else stored.due
            self._add(("DELAYED", self._message(stored.message), due, stored.publisher))
            self.moved.delayed += stored.due is not None
            yield
        for name, number in self._state.committed().items():
            self._add(("COMMITTED", number, name.encode()))


def strategy_of(declaration: bytes) -> str:
    """The strategy of a group that is declared with these settings."""
    return str(json.loads(declaration).get("strategy", "")) if declaration else ""
