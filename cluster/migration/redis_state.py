"""The state in Redis: from the keys of a cluster whose nodes have ended, and to them (deploy/docs/internals/KEYS.md).

Nodes that were killed leave claims, assignments and wills of open connections. They are read as what they become when
another node declares the owner dead: sessions without a connection whose messages may all have been sent, messages
that wait again, wills that are due.
"""

import json
from collections.abc import Iterator
from typing import Any

from ..._speedups.cluster.message_codec import (
    decode_entry,
    decode_message,
    encode_entry,
    encode_message,
    split_progress,
)
from ..._speedups.codec.topics import is_shared, split_tenant
from ...broker.config.schema import Config
from ...broker.core.session_expiry import NEVER
from ...broker.core.will import Will
from ..redis.keys import Keys
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
SESSION_FIELDS = ("o", "x", "p", "l", "h", "n", "w", "u", "i", "d", "e")
LATE = 2**53 - 1  # in `sessions`: the session has its own interval
DONE, RECEIVED = b"d", b"r"
NO_MESSAGE = encode_message(b"", b"", 2, False)  # of an entry whose message no client needs any more


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
        start = 0
        while found := self._client.zrange(self._keys.sessions, start, start + AT_ONCE - 1, withscores=True):
            yield from self._some_sessions(found)
            start += len(found)

    def _some_sessions(self, found: list[tuple[bytes, float]]) -> Iterator[StoredSession]:
        keys, pipe = self._keys, self._client.pipeline(transaction=False)
        for client_id, _ in found:
            pipe.hmget(keys.session(client_id), *SESSION_FIELDS)
            pipe.llen(keys.queue(client_id))
            pipe.hgetall(keys.states(client_id))
            pipe.hgetall(keys.awaiting(client_id))
            pipe.hgetall(keys.subscriptions(client_id))
            pipe.zscore(keys.expiring, client_id)
        replies = pieces(pipe.execute(), 6)
        for (client_id, since), reply in zip(found, replies, strict=True):
            fields, length, states, awaiting, subscriptions, deadline = reply
            if fields[1] is not None and fields[2] == b"1":
                session = self._session(client_id, since, fields, length)
                if session.interval is not None and not fields[0]:
                    session.deadline = int(deadline or 0)
                if length:
                    self._read_queue(session, states)
                for packet_id, message in awaiting.items():
                    session.awaiting[int(packet_id)] = message_of(split_progress(message)[1])
                for name, stored in subscriptions.items():
                    options, identifier = map(int, stored.split(b";"))
                    session.subscriptions[name] = (options, identifier)
                    if is_shared(name):
                        self._groups[name] = None
                yield session

    def _session(self, client_id: bytes, since: float, fields: list[bytes | None], length: int) -> StoredSession:
        owner, number, _, level, head, sent, waits, user, interval, delayed, epoch = fields
        session = StoredSession(client_id, int(number or 0), int(level or 4), user or b"")
        session.head = int(head or 1)
        session.tail = session.head + length
        session.sent = int(sent or 1)
        if owner or waits:  # its connection has not been released
            session.sent = max(session.sent, session.tail)
        session.tail = max(session.tail, session.sent)
        for own in (delayed, epoch):
            if own:
                self._epochs[own] = client_id
        if interval:
            session.interval = int(interval)
        elif self._config.mqtt.session_expiry and not owner:
            session.deadline = int(since) * 1000 + int(self._config.mqtt.session_expiry * 1000)
        return session

    def _read_queue(self, session: StoredSession, states: dict[bytes, bytes]) -> None:
        start = 0
        while found := self._client.lrange(self._keys.queue(session.client_id), start, start + ENTRIES - 1):
            for n, value in enumerate(found, session.head + start):
                state = states.get(b"%d" % n)
                if state != DONE:
                    session.queue[n] = queued_of(value, state == RECEIVED)
            start += len(found)
            if len(found) < ENTRIES:
                break
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
                    yield StoredDelayed(publisher, StoredMessage(topic, payload, qos, retain, properties), int(due))

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
        size, states = self._write_queue(session)
        acked = [*states.values()].count(DONE)
        shares = [entry.share for entry in session.queue.values() if entry.share is not None]
        self._pipe.hset(
            keys.session(client_id),
            mapping={
                "o": "",
                "e": session.number,
                "x": session.number,
                "p": 1,
                "l": session.level,
                "h": session.head,
                "n": session.sent,
                "z": len(states),
                "w": "",
                "f": 0,
                "t": 0,
                "u": session.user,
                "i": "" if session.interval is None else session.interval,
                **({"g": 1} if shares else {}),
                **({"a": acked} if acked else {}),
                **self._queued_bytes(client_id, size),
            },
        )
        self._begin_expiry(session)
        if shares:
            due = self._state.clock + round(self._config.shared.redispatch * 1000)
            self._pipe.zadd(keys.grace, {client_id: due})
        for share in shares:
            bound = self._bindings.setdefault(share.group, {})
            if share.key >= 0 and bound.get(share.key, (0, b""))[0] <= share.place:
                bound[share.key] = (share.place, client_id)

    def _queued_bytes(self, name: bytes, size: int) -> dict[str, int]:
        """The field with the bytes of a queue. They are added to the sum of its tenant, if its name has one."""
        if prefix := split_tenant(name)[0]:
            self._pipe.hincrby(self._keys.queued_tenants, prefix, size)
        return {"b": size}

    def _begin_expiry(self, session: StoredSession) -> None:
        client_id, interval, deadline = session.client_id, session.interval, session.deadline
        since = LATE
        if interval is None:
            since = self._state.clock // 1000
            if deadline and self._config.mqtt.session_expiry:
                left = (deadline - self._state.clock) / 1000
                since -= max(0, round(self._config.mqtt.session_expiry - left))
        elif interval != NEVER:
            self._pipe.zadd(self._keys.expiring, {client_id: deadline or self._state.clock + interval * 1000})
        self._pipe.zadd(self._keys.sessions, {client_id: since})

    def _write_queue(self, session: StoredSession) -> tuple[int, dict[str, bytes]]:
        """Write the queue without gaps; returns its bytes, and its states by number."""
        values, states = [], {}
        for n in range(session.head, session.tail):
            entry = session.queue.get(n)
            if entry is None:
                states[str(n)] = DONE
            elif entry.message is None:
                states[str(n)] = RECEIVED
            values.append(value_of(entry))
        queue = self._keys.queue(session.client_id)
        for some in pieces(values, ENTRIES):
            self._pipe.rpush(queue, *some)
            self._size += sum(map(len, some))
            if self._size >= PIPELINE_BYTES:
                self._execute()
        if states:
            self._pipe.hset(self._keys.states(session.client_id), mapping=states)
        return sum(len(value) for value in values if value != NO_MESSAGE), states

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
            counted = self._queued_bytes(group.name.split(b"/", 2)[2], size)
            pipe.hset(keys.group(group.name), mapping={"n": group.last, **counted, **options_of(settings)})
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
            if stored.is_current and due is not None:  # the client may come back before
                self._pipe.hset(self._keys.session(stored.client_id), "d", self._epoch)
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
            self._pipe.zadd(keys.later, {f"{self._epoch:016}": stored.due})
            self._pipe.hset(keys.later_state, mapping={"b": size, "t": "0"})  # all are counted by tenant
            if prefix := split_tenant(topic)[0]:
                self._pipe.hincrby(keys.later_tenants, prefix, 1)
            self.moved.delayed += 1
            yield


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
