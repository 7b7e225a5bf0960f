"""The state in Redis: from the keys of a cluster whose nodes have ended, and to them (deploy/docs/internals/KEYS.md).

Nodes that were killed leave claims, assignments and wills of open connections. They are read as what they become when
another node declares the owner dead: sessions without a connection whose messages may all have been sent, messages
that wait again, wills that are due.
"""

import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..._speedups.cluster.message_codec import (
    decode_entry,
    decode_message,
    encode_entry,
    encode_message,
    split_heads,
)
from ..._speedups.codec.topics import is_shared, split_tenant
from ...broker.config.schema import Config
from ...broker.core.session_expiry import NEVER
from ...broker.core.transactions import split_topic
from ...broker.core.will import Will
from ..redis.keys import Keys
from ..redis.packed_session import (
    AWAITED,
    GROUPED,
    LISTED,
    NO_MESSAGE,
    PERSISTENT,
    RARE_BIT,
    PackedSession,
    is_short,
    size_of,
)
from ..sessions.wills import decode_will, encode_will
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

Client = Any  # a redis.Redis whose replies are bytes: its types also allow text
AT_ONCE = 200  # sessions in one pipeline
PIPELINE_BYTES = 4 << 20
ENTRIES = 500  # of a queue or a hash in one reply
STAGED_SECONDS = 3600  # in which a staged part is to be committed, from the migration on
MINUTE = 60  # seconds of a set of sessions that have no interval, and of one that ends much later
EXACT = 3600  # seconds: a longer interval ends with a minute
DONE, RECEIVED = b"d", b"r"


class RedisState(State):
    """The state of a cluster without nodes that live.

    Args:
        client: replies are bytes.
        keys: of the cluster.
        config: of its nodes.
    """

    def __init__(self, client: Client, keys: Keys, config: Config) -> None:
        self._client = client
        self._keys = keys
        self._config = config
        time = redis_milliseconds(client)
        last, wall = (int(float(value)) if value else None for value in self._client.hmget(keys.clock, "t", "w"))
        now = time if last is None or wall is None else last + max(0, time - wall)
        self._offset = now - wall_clock()
        self._declared: dict[bytes, bytes] = self._client.hgetall(keys.declared_groups)
        self._groups: dict[bytes, None] = dict.fromkeys(self._declared)  # in the order in which they are found
        self._epochs: dict[bytes, bytes] = {}  # of wills that are the session's own -> client id
        self._dead: list[bytes] = self._client.hkeys(keys.nodes)

    @property
    def clock(self) -> int:
        return wall_clock() + self._offset

    @property
    def is_empty(self) -> bool:
        keys = self._keys
        wills = [keys.delayed_wills, keys.later, *map(keys.wills, self._dead)]
        return not self._client.exists(keys.sessions, keys.retained, keys.declared_groups, *wills)

    def declarations(self) -> dict[bytes, bytes]:
        return self._declared

    # ---- sessions ----

    def sessions(self) -> Iterator[StoredSession]:
        found = self._client.sscan_iter(self._keys.sessions, count=AT_ONCE)
        while some := list(islice(found, AT_ONCE)):
            yield from self._some_sessions(some)

    def _some_sessions(self, found: list[bytes]) -> Iterator[StoredSession]:
        keys, pipe = self._keys, self._client.pipeline(transaction=False)
        for client_id in found:
            pipe.get(keys.session(client_id))
            pipe.hget(keys.rare(client_id), "d")
            pipe.llen(keys.queue(client_id))
            pipe.hgetall(keys.states(client_id))
            pipe.hgetall(keys.awaiting(client_id))
            pipe.hgetall(keys.subscriptions(client_id))
        replies = pieces(pipe.execute(), 6)
        for client_id, reply in zip(found, replies, strict=True):
            text, delayed, length, states, awaiting, subscriptions = reply
            packed = PackedSession.decode(text) if text else None
            if packed is not None and packed.incarnation and packed.persistent:
                session = self._session(client_id, packed, length, delayed)
                if packed.listed:
                    self._read_queue(session, states)
                else:
                    self._add_entries(session, packed.entries, states)
                self._drop_done(session)
                for packet_id, message in awaiting.items():
                    session.awaiting[int(packet_id)] = message_of(split_heads(message)[2])
                for name, stored in subscriptions.items():
                    options, identifier = map(int, stored.split(b";"))
                    session.subscriptions[name] = (options, identifier)
                    if is_shared(name):
                        self._groups[name] = None
                yield session

    def _session(self, client_id: bytes, packed: PackedSession, length: int, delayed: bytes | None) -> StoredSession:
        session = StoredSession(client_id, packed.incarnation, packed.level, packed.user)
        session.head = packed.head
        session.tail = session.head + (length if packed.listed else len(packed.entries))
        session.sent = packed.sent
        if packed.owner or packed.waits:  # its connection has not been released
            session.sent = max(session.sent, session.tail)
        session.tail = max(session.tail, session.sent)
        self._epochs[b"%d" % packed.epoch] = client_id
        if delayed:
            self._epochs[delayed] = client_id
        configured, seconds = int(self._config.mqtt.session_expiry), None
        if packed.interval:
            session.interval = seconds = int(packed.interval)
        if session.interval is None and configured:
            seconds = configured
        if seconds is not None and seconds != NEVER and not packed.owner:
            session.deadline = (packed.since + seconds) * 1000
        return session

    def _read_queue(self, session: StoredSession, states: dict[bytes, bytes]) -> None:
        start = 0
        while found := self._client.lrange(self._keys.queue(session.client_id), start, start + ENTRIES - 1):
            self._add_entries(session, found, states, start)
            start += len(found)
            if len(found) < ENTRIES:
                break

    def _add_entries(
        self, session: StoredSession, entries: list[bytes], states: dict[bytes, bytes], start: int = 0
    ) -> None:
        for n, value in enumerate(entries, session.head + start):
            state = states.get(b"%d" % n)
            if state != DONE:
                session.queue[n] = queued_of(value, state == RECEIVED)

    def _drop_done(self, session: StoredSession) -> None:
        while session.head < session.tail and session.head not in session.queue:
            session.head += 1

    # ---- groups ----

    def groups(self) -> Iterator[StoredGroup]:
        keys, client = self._keys, self._client
        assignments: dict[bytes, list[bytes]] = {}
        for node in self._dead:
            for name in client.smembers(keys.assigned_groups(node)):
                assignments.setdefault(name, []).append(node)
        for name in self._groups:
            group = StoredGroup(name, self._declared.get(name, b""), int(client.hget(keys.group(name), "n") or 0))
            found = {int(place): value for place, value in client.hscan_iter(keys.group_messages(name), count=ENTRIES)}
            for node in assignments.get(name, ()):
                for place, value in client.hscan_iter(keys.assignments(node, name), count=ENTRIES):
                    found[int(place)] = value
            first = group.last - client.llen(keys.group_list(name)) + 1
            start = 0
            while values := client.lrange(keys.group_list(name), start, start + ENTRIES - 1):
                found.update((place, value) for place, value in enumerate(values, first + start) if value)
                start += len(values)
            group.waiting = [waiting_of(name, place, found[place]) for place in sorted(found)]
            yield group

    # ---- the rest ----

    def retained(self) -> Iterator[StoredMessage]:
        for _, message in self._client.hscan_iter(self._keys.retained, count=ENTRIES):
            yield message_of(message)._replace(retain=True)

    def wills(self) -> Iterator[StoredWill]:
        client, keys = self._client, self._keys
        due = {epoch: max(int(score), 1) for epoch, score in client.zscan_iter(keys.delayed, count=ENTRIES)}
        for epoch, stored in client.hscan_iter(keys.delayed_wills, count=ENTRIES):
            if epoch in due:
                yield self._will(epoch, stored, due[epoch])
        for node in self._dead:
            for epoch, stored in client.hscan_iter(keys.wills(node), count=ENTRIES):
                yield self._will(epoch, stored, None)

    def delayed(self) -> Iterator[StoredDelayed]:
        client, keys, start = self._client, self._keys, 0
        while found := client.zrange(keys.later, start, start + ENTRIES - 1, withscores=True):
            start += len(found)
            stored = client.hmget(keys.later_messages, [number for number, _ in found])
            for value, (_, due) in zip(stored, found, strict=True):
                if value is not None:
                    publisher, kept = decode_will(value)
                    topic, payload, qos, retain, properties, *_ = kept
                    message = StoredMessage(topic, payload, qos, retain, properties)
                    yield StoredDelayed(publisher, message, int(due) if math.isfinite(due) else None)

    def committed(self) -> dict[str, int]:
        beginning = self._keys.committed
        return {
            f"{key[len(beginning) :].decode()}/{name.decode()}": int(value.split()[0])
            for key in self._client.scan_iter(beginning + b"*", count=ENTRIES)
            for name, value in self._client.hgetall(key).items()
        }

    def _will(self, epoch: bytes, stored: bytes, due: int | None) -> StoredWill:
        client_id, will = decode_will(stored)
        return StoredWill(client_id, will, due, self._epochs.get(epoch) == client_id)


class KeyWriter:
    """Writes a state to the keys of a cluster.

    Args:
        client, keys, config: as for RedisState.
        state: to be written.
    """

    def __init__(self, client: Client, keys: Keys, config: Config, state: State) -> None:
        self._client = client
        self._pipe: Any = client.pipeline(transaction=False)
        self._size = 0  # bytes of messages in the pipeline, about
        self._keys = keys
        self._config = config
        self._state = state
        self._declared = state.declarations()
        self._intervals: dict[bytes, int | None] = {}  # of the sessions
        self._bindings: dict[bytes, dict[int, tuple[int, bytes]]] = {}  # group -> key -> place, client id
        self._epoch = 0
        self.moved = Moved()

    def write(self) -> None:
        """Write all."""
        steps = (
            self._write_sessions,
            self._write_groups,
            self._write_retained,
            self._write_wills,
            self._write_delayed,
        )
        for step in steps:
            for _ in step():
                if len(self._pipe) >= 10 * AT_ONCE or self._size >= PIPELINE_BYTES:
                    self._execute()
        self._pipe.set(self._keys.epoch, self._epoch)
        clock = {"t": self._state.clock, "w": redis_milliseconds(self._client)}
        self._pipe.hset(self._keys.clock, mapping=clock)
        self._execute()

    def _execute(self) -> None:
        self._pipe.execute()
        self._size = 0

    # ---- sessions ----

    def _write_sessions(self) -> Iterator[None]:
        for session in self._state.sessions():
            self._epoch = max(self._epoch, session.number)
            self._intervals[session.client_id] = session.interval
            self._write_session(session)
            for name, (options, identifier) in session.subscriptions.items():
                self._join(session.client_id, name)
                self._pipe.hset(self._keys.subscriptions(session.client_id), name, b"%d;%d" % (options, identifier))
            for packet_id, message in session.awaiting.items():
                self._pipe.hset(self._keys.awaiting(session.client_id), str(packet_id), encode_message(*message))
            self.moved.sessions += 1
            self.moved.subscriptions += len(session.subscriptions)
            self.moved.queued += len(session.queue)
            yield

    def _write_session(self, session: StoredSession) -> None:
        keys, client_id = self._keys, session.client_id
        entries, states = entries_of(session)
        shares = [entry.share for entry in session.queue.values() if entry.share is not None]
        listed = not is_short(entries)
        packed = PackedSession(
            session.number,
            session.number,
            head=session.head,
            marks=len(states),
            done=[*states.values()].count(DONE),
            flags=PERSISTENT
            | (GROUPED if shares else 0)
            | (AWAITED if session.awaiting else 0)
            | (LISTED if listed else 0),
            sent=session.sent,
            since=self._begin_expiry(session),
            level=session.level,
            user=session.user,
            interval=b"" if session.interval is None else b"%d" % session.interval,
            entries=[] if listed else entries,
            listed_bytes=size_of(entries),
        )
        self._pipe.set(keys.session(client_id), packed.encode())
        self._pipe.sadd(keys.sessions, client_id)
        self._count_bytes(client_id, packed.queued_bytes)
        if listed:
            self._write_list(client_id, entries)
        if states:
            self._pipe.hset(keys.states(client_id), mapping=states)
        if shares:
            due = self._state.clock + round(self._config.shared.redispatch * 1000)
            self._pipe.zadd(keys.grace, {client_id: due})
        for share in shares:
            bound = self._bindings.setdefault(share.group, {})
            if share.key >= 0 and bound.get(share.key, (0, b""))[0] <= share.place:
                bound[share.key] = (share.place, client_id)

    def _count_bytes(self, name: bytes, size: int) -> None:
        """Add the bytes of a queue to the sum of its tenant, if its name has one."""
        if prefix := split_tenant(name)[0]:
            self._pipe.hincrby(self._keys.queued_tenants, prefix, size)

    def _begin_expiry(self, session: StoredSession) -> int:
        """Put the session where it waits for its end; returns the second since which it is offline."""
        client_id, interval, now = session.client_id, session.interval, self._state.clock // 1000
        if interval is None:
            since = now
            if session.deadline and self._config.mqtt.session_expiry:
                since = max(0, since - max(0, round(self._config.mqtt.session_expiry + now - session.deadline / 1000)))
            second = since - since % MINUTE
            index, key = self._keys.offline, self._keys.offline_since(second)
        elif interval != NEVER:
            since = max(0, session.deadline // 1000 - interval) if session.deadline else now
            second = since + interval + 1
            if interval >= EXACT:
                second += -second % MINUTE
            index, key = self._keys.ending, self._keys.ending_at(second)
        else:
            return now
        self._pipe.sadd(key, client_id)
        self._pipe.zadd(index, {b"%d" % second: second * 1000})
        return since

    def _write_list(self, client_id: bytes, entries: list[bytes]) -> None:
        for some in pieces(entries, ENTRIES):
            self._pipe.rpush(self._keys.queue(client_id), *some)
            self._size += sum(map(len, some))
            if self._size >= PIPELINE_BYTES:
                self._execute()

    # ---- groups ----

    def _join(self, client_id: bytes, name: bytes) -> None:
        if is_shared(name):
            self._pipe.sadd(self._keys.group_subscribers(name), b"c:" + client_id)

    def _write_groups(self) -> Iterator[None]:
        keys, pipe = self._keys, self._pipe
        pipe.hset(keys.shared, "redispatch", round(self._config.shared.redispatch * 1000))
        for group in self._state.groups():
            settings = json.loads(group.declaration) if group.declaration else {}
            size = 0
            for share, message in group.waiting:
                value = encode_entry(encode_message(*message), key=share.key, failures=share.failures)
                size += len(value)
                self._size += len(value)
                pipe.hset(keys.group_messages(group.name), str(share.place), value)
                pipe.zadd(keys.group_places(group.name), {str(share.place): share.place})
                if settings.get("last_value"):
                    pipe.hset(keys.group_topics(group.name), message.topic, f"{share.place} {share.place}")
                yield
            self._count_bytes(group.name.split(b"/", 2)[2], size)
            pipe.hset(keys.group(group.name), mapping={"n": group.last, "b": size, **options_of(settings)})
            if group.declaration:
                pipe.hset(keys.declared_groups, group.name, group.declaration)
                pipe.sadd(keys.group_subscribers(group.name), b"d:")
            for key, (_, client_id) in self._bindings.get(group.name, {}).items():
                pipe.hset(keys.group_keys(group.name), key.to_bytes(4, "little"), b"0 0  " + client_id)
            self.moved.groups += 1
            self.moved.waiting += len(group.waiting)
            yield

    # ---- the rest ----

    def _write_retained(self) -> Iterator[None]:
        for message in self._state.retained():
            self._pipe.hset(self._keys.retained, message.topic, encode_message(*message))
            self._size += len(message.payload)
            self.moved.retained += 1
            yield

    def _write_wills(self) -> Iterator[None]:
        """No node has the wills: each is due at some time, or at once, for the first node that looks."""
        for stored in self._state.wills():
            self._epoch += 1
            due, will = stored.due, stored.will
            interval = self._intervals.get(stored.client_id, 0)
            if due is None and will.delay and stored.is_current and interval != 0:
                due = self._state.clock + 1000 * (will.delay if interval is None else min(will.delay, interval))
            self._pipe.hset(self._keys.delayed_wills, str(self._epoch), encode_will(stored.client_id, will))
            self._pipe.zadd(self._keys.delayed, {str(self._epoch): due or 0})
            is_known = stored.is_current and stored.client_id in self._intervals
            if is_known and due is not None:  # the client may come back before
                self._pipe.hset(self._keys.rare(stored.client_id), "d", self._epoch)
                self._pipe.setbit(self._keys.session(stored.client_id), RARE_BIT, 1)
            self.moved.wills += 1
            yield

    def _write_delayed(self) -> Iterator[None]:
        keys, size = self._keys, 0
        for stored in self._state.delayed():
            self._epoch += 1
            topic, payload, qos, retain, properties, _ = stored.message
            value = encode_will(stored.publisher, Will(topic, payload, qos, retain, properties))
            size += len(value)
            self._size += len(value)
            self._pipe.hset(keys.later_messages, f"{self._epoch:016}", value)
            self._pipe.zadd(keys.later, {f"{self._epoch:016}": math.inf if stored.due is None else stored.due})
            self._pipe.hset(keys.later_state, mapping={"b": size, "t": "0"})  # all are counted by tenant
            if prefix := split_tenant(topic)[0]:
                self._pipe.hincrby(keys.later_tenants, prefix, 1)
            if stored.due is None:
                transaction, name, _ = split_topic(topic)
                part = f"{transaction.key}/{transaction.number}/{name}"
                self._pipe.rpush(keys.staged_part(part), f"{self._epoch:016}")
                self._pipe.sadd(keys.staged_parts_of(transaction.key), f"{transaction.number}/{name}")
                self._pipe.zadd(keys.staged_parts, {part: self._state.clock + STAGED_SECONDS * 1000})
            self.moved.delayed += stored.due is not None
            yield
        for key, number in self._state.committed().items():
            user, _, name = key.rpartition("/")
            self._pipe.hset(keys.committed + user.encode(), name, f"{number} {self._state.clock}")


# ---- values ----


def message_of(value: bytes) -> StoredMessage:
    """A message in Redis."""
    topic, payload, qos, retain, properties, deadline = decode_message(value)
    return StoredMessage(topic, payload, qos, retain, properties, deadline)


def queued_of(value: bytes, received: bool) -> Queued:
    """An entry of a queue in Redis."""
    message, as_published, identifiers, group, place, key, failures = decode_entry(value)
    share = Share(group, place, key, failures) if group else None
    if received:
        return Queued(None, share=share)
    return Queued(message_of(message), as_published, identifiers, share)


def entries_of(session: StoredSession) -> tuple[list[bytes], dict[str, bytes]]:
    """The queue of a session without gaps, and its states by number."""
    entries, states = [], {}
    for number in range(session.head, session.tail):
        entry = session.queue.get(number)
        if entry is None:
            states[str(number)] = DONE
        elif entry.message is None:
            states[str(number)] = RECEIVED
        entries.append(value_of(entry))
    return entries, states


def value_of(entry: Queued | None) -> bytes:
    """The inverse of `queued_of`; None: the entry is done."""
    if entry is None:
        return NO_MESSAGE
    if entry.message is None and entry.share is None:
        return NO_MESSAGE
    message = NO_MESSAGE if entry.message is None else encode_message(*entry.message)
    share = entry.share or Share(b"", 0)
    return encode_entry(message, entry.as_published, entry.identifiers, *share)


def waiting_of(group: bytes, place: int, value: bytes) -> Waiting:
    """A message that waits in a group, or is assigned to a node."""
    message, _, _, _, _, key, failures = decode_entry(value)
    return Waiting(Share(group, place, key, failures), message_of(message))


def options_of(settings: dict[str, Any]) -> dict[str, str]:
    """The settings of a declared group as fields of its hash: as `declare` in groups.lua writes them."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "1" if value else "0"
        return f"{value:.14g}" if isinstance(value, int | float) else str(value)

    return {f"o:{name}": text(value) for name, value in settings.items()}


def redis_milliseconds(client: Client) -> int:
    """The wall clock of Redis."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def pieces(items: list[Any], count: int) -> Iterator[list[Any]]:
    """The items, up to so many at a time."""
    return (items[start : start + count] for start in range(0, len(items), count))
