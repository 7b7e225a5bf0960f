"""The state in Redis, from the keys of a cluster whose nodes have ended (deploy/docs/internals/KEYS.md).

Nodes that were killed leave claims, assignments and wills of open connections. They are read as what they become when
another node declares the owner dead: sessions without a connection whose messages may all have been sent, messages
that wait again, wills that are due.
"""

import hashlib
import math
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

from ..._speedups.cluster.hand_over import open_number
from ..._speedups.cluster.message_codec import (
    decode_entry,
    decode_message,
    split_heads,
)
from ..._speedups.codec.topics import is_shared
from ...broker.config.schema import Config
from ...broker.core.session_expiry import NEVER
from ..redis.keys import Keys
from ..redis.packed_session import AWAITED, RARE, PackedSession
from ..sessions.wills import decode_will, way_back_of
from .state import (
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
ENTRIES = 500  # of a queue or a hash in one reply
SAME_CLOCK = 1000  # milliseconds: less is the time that reading two clocks takes, or as little
DONE, RECEIVED = b"d", b"r"
OFFER = b"g"  # the first byte of the number of a message of a group for a session of another shard


class RedisState(State):
    """The state of a cluster without nodes that live, or of one of its shards.

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
        self._dead: list[bytes] = [*self._client.hkeys(keys.nodes), *self._client.smembers(keys.in_doubt)]
        self._shift = 0  # milliseconds: this clock is so much behind the clock of the deadlines that are read

    def follow(self, other: "RedisState") -> None:
        """Read deadlines by the clock of another shard."""
        shift = other._offset - self._offset
        self._shift = shift if abs(shift) >= SAME_CLOCK else 0

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
        """The sessions of these clients. A command costs more than its reply, so only keys that exist are read."""
        keys, pipe = self._keys, self._client.pipeline(transaction=False)
        texts = self._client.mget([keys.session(client_id) for client_id in found])
        decoded = [
            (client_id, PackedSession.decode(text)) for client_id, text in zip(found, texts, strict=True) if text
        ]
        some = [(client_id, packed) for client_id, packed in decoded if packed.incarnation and packed.persistent]
        for client_id, packed in some:
            pipe.hgetall(keys.subscriptions(client_id))
            if packed.flags & RARE:
                pipe.hget(keys.rare(client_id), "d")
            if packed.listed:
                pipe.llen(keys.queue(client_id))
            if packed.marks:
                pipe.hgetall(keys.states(client_id))
            if packed.flags & AWAITED:
                pipe.hgetall(keys.awaiting(client_id))
        replies = iter(pipe.execute())
        for client_id, packed in some:
            subscriptions = next(replies)
            delayed = next(replies) if packed.flags & RARE else None
            length = next(replies) if packed.listed else len(packed.entries)
            states = next(replies) if packed.marks else {}
            awaiting = next(replies) if packed.flags & AWAITED else {}
            session = self._session(client_id, packed, length, delayed)
            if packed.listed:
                self._read_queue(session, states)
            else:
                self._add_entries(session, packed.entries, states)
            self._drop_done(session)
            for packet_id, message in awaiting.items():
                session.awaiting[int(packet_id)] = self._message(split_heads(message)[2])
            for name, stored in subscriptions.items():
                options, identifier = map(int, stored.split(b";"))
                session.subscriptions[name] = (options, identifier)
                if is_shared(name):
                    self._groups[name] = None
            yield session

    def _session(self, client_id: bytes, packed: PackedSession, length: int, delayed: bytes | None) -> StoredSession:
        session = StoredSession(client_id, packed.incarnation, packed.level, packed.user)
        session.head = packed.head
        session.tail = session.head + length
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
            session.deadline = (packed.since + seconds) * 1000 + self._shift
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
                session.queue[n] = self._queued(value, state == RECEIVED)

    def _drop_done(self, session: StoredSession) -> None:
        while session.head < session.tail and session.head not in session.queue:
            session.head += 1

    # ---- groups ----

    def groups(self) -> Iterator[StoredGroup]:
        return map(self.group, self.group_names)

    @property
    def group_names(self) -> list[bytes]:
        """The groups that are declared here, or have a persistent session of this shard as a subscriber."""
        return list(self._groups)

    @cached_property
    def _assignments(self) -> dict[bytes, list[bytes]]:
        """The nodes that have messages of a group."""
        found: dict[bytes, list[bytes]] = {}
        for node in self._dead:
            for name in self._client.smembers(self._keys.assigned_groups(node)):
                found.setdefault(name, []).append(node)
        return found

    def on_their_way_back(self) -> dict[bytes, list[Waiting]]:
        """Messages that go back to groups of other shards, by group."""
        found: dict[bytes, list[Waiting]] = {}
        for key in (self._keys.delayed_wills, *map(self._keys.wills, self._dead)):
            for _, stored in self._client.hscan_iter(key, count=ENTRIES):
                if (way_back := way_back_of(stored)) is not None:
                    group, place, value = way_back
                    found.setdefault(group, []).append(self._waiting(group, place, value))
        return found

    def handed_over(self) -> set[tuple[bytes, int, bytes]]:
        """Group, place and digest of messages that have come to queues of this shard, perhaps without the end of their
        assignment."""
        numbers = self._client.hscan_iter(self._keys.once, count=ENTRIES)
        return {open_number(number) for number, _ in numbers if number[:1] == OFFER}

    def group(self, name: bytes, without: Collection[tuple[bytes, int, bytes]] = ()) -> StoredGroup:
        """A group of this shard. `without`: as `handed_over` of other shards returns it."""
        keys, client = self._keys, self._client
        group = StoredGroup(name, self._declared.get(name, b""), int(client.hget(keys.group(name), "n") or 0))
        found = {int(place): value for place, value in client.hscan_iter(keys.group_messages(name), count=ENTRIES)}
        for node in self._assignments.get(name, ()):
            for place, value in client.hscan_iter(keys.assignments(node, name), count=ENTRIES):
                if (name, int(place), digest_of(value) if without else b"") not in without:
                    found[int(place)] = value
        first = group.last - client.llen(keys.group_list(name)) + 1
        start = 0
        while values := client.lrange(keys.group_list(name), start, start + ENTRIES - 1):
            found.update((place, value) for place, value in enumerate(values, first + start) if value)
            start += len(values)
        group.waiting = [self._waiting(name, place, found[place]) for place in sorted(found)]
        return group

    # ---- the rest ----

    def retained(self) -> Iterator[StoredMessage]:
        for _, message in self._client.hscan_iter(self._keys.retained, count=ENTRIES):
            yield self._message(message)._replace(retain=True)

    def wills(self) -> Iterator[StoredWill]:
        client, keys = self._client, self._keys
        due = {
            epoch: max(int(score) + self._shift, 1) for epoch, score in client.zscan_iter(keys.delayed, count=ENTRIES)
        }
        for epoch, stored in client.hscan_iter(keys.delayed_wills, count=ENTRIES):
            if epoch in due and way_back_of(stored) is None:
                yield self._will(epoch, stored, due[epoch])
        for node in self._dead:
            for epoch, stored in client.hscan_iter(keys.wills(node), count=ENTRIES):
                if way_back_of(stored) is None:
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
                    yield StoredDelayed(publisher, message, int(due) + self._shift if math.isfinite(due) else None)

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

    # ---- values ----

    def _message(self, value: bytes) -> StoredMessage:
        topic, payload, qos, retain, properties, deadline = decode_message(value)
        return StoredMessage(topic, payload, qos, retain, properties, deadline and deadline + self._shift)

    def _queued(self, value: bytes, received: bool) -> Queued:
        """An entry of a queue."""
        message, as_published, identifiers, group, place, key, failures = decode_entry(value)
        share = Share(group, place, key, failures) if group else None
        if received:
            return Queued(None, share=share)
        return Queued(self._message(message), as_published, identifiers, share)

    def _waiting(self, group: bytes, place: int, value: bytes) -> Waiting:
        """A message that waits in a group, or is assigned to a node."""
        message, _, _, _, _, key, failures = decode_entry(value)
        return Waiting(Share(group, place, key, failures), self._message(message))


def digest_of(value: bytes) -> bytes:
    """Of a message in a group, as returns.lua has it."""
    topic, payload, _, _, properties, _ = decode_message(decode_entry(value)[0])
    return hashlib.sha1(topic + properties + payload, usedforsecurity=False).digest()[:4]


def redis_milliseconds(client: Client) -> int:
    """The wall clock of Redis."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def pieces(items: list[Any], count: int) -> Iterator[list[Any]]:
    """The items, up to so many at a time."""
    return (items[start : start + count] for start in range(0, len(items), count))
