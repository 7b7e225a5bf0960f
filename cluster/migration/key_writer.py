"""Writes a state to the keys of a cluster (deploy/docs/internals/KEYS.md), each record to the shard of its name."""

import json
import math
from collections.abc import Callable
from itertools import count
from random import getrandbits
from typing import Any

from ..._speedups.cluster.message_codec import encode_entry, encode_message
from ..._speedups.cluster.sharded_journal import shard_of, topic_shard
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
from ..sessions.wills import encode_will
from .redis_state import AT_ONCE, DONE, ENTRIES, RECEIVED, Client, pieces, redis_milliseconds
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
)

PIPELINE_BYTES = 4 << 20
STAGED_SECONDS = 3600  # in which a staged part is to be committed, from the migration on
MINUTE = 60  # seconds of a set of sessions that have no interval, and of one that ends much later
EXACT = 3600  # seconds: a longer interval ends with a minute
FOREIGN = b"\xff"  # before the client id of a session of another shard
NUMBERED = b"\x70"  # before the number of a message that awaits PUBREL


class StateWriter:
    """Writes a state to all shards of a cluster.

    Args:
        shards: a writer for each.
        state: to be written.
    """

    def __init__(self, shards: "list[KeyWriter]", state: State) -> None:
        self._shards = shards
        self._state = state
        self._bindings: dict[bytes, dict[int, tuple[int, bytes]]] = {}  # group -> key -> place, client id
        self.moved = Moved()

    def write(self) -> None:
        """Write all."""
        for session in self._state.sessions():
            self._write_session(session)
        for group in self._state.groups():
            self._of(group.name).write_group(group, self._bindings.get(group.name, {}))
            self.moved.groups += 1
            self.moved.waiting += len(group.waiting)
        for message in self._state.retained():
            self._shards[topic_shard(message.topic, len(self._shards))].write_retained(message)
            self.moved.retained += 1
        for will in self._state.wills():
            self._of(will.client_id).write_will(will)
            self.moved.wills += 1
        first = self._shards[0]
        for delayed in self._state.delayed():
            first.write_delayed(delayed)
            self.moved.delayed += delayed.due is not None
        for name, number in self._state.committed().items():
            first.write_committed(name, number)
        for shard in self._shards:
            shard.end()

    def _of(self, name: bytes) -> "KeyWriter":
        return self._shards[shard_of(name, len(self._shards))]

    def _write_session(self, session: StoredSession) -> None:
        self._of(session.client_id).write_session(session)
        for entry in session.queue.values():
            share = entry.share
            if share is not None and share.key >= 0:
                bound = self._bindings.setdefault(share.group, {})
                if bound.get(share.key, (0, b""))[0] <= share.place:
                    bound[share.key] = (share.place, session.client_id)
        for name in session.subscriptions:
            if is_shared(name):
                self._of(name).join(session.client_id, name)
        self.moved.sessions += 1
        self.moved.subscriptions += len(session.subscriptions)
        self.moved.queued += len(session.queue)


class KeyWriter:
    """Writes to the keys of a cluster with one shard, or of one of several.

    Args:
        client, keys, config: as for RedisState.
        state: has the clock.
        shard, shards: place of the shard from 0 on, and the number of shards.
    """

    def __init__(
        self, client: Client, keys: Keys, config: Config, state: State, *, shard: int = 0, shards: int = 1
    ) -> None:
        self._client = client
        self._pipe: Any = client.pipeline(transaction=False)
        self._size = 0  # bytes of messages in the pipeline, about
        # A command costs more than its arguments, so those that all sessions need are collected. They are sent first.
        self._texts: dict[Any, Any] = {}
        self._members: dict[bytes, list[bytes]] = {}  # of sets
        self._keys = keys
        self._config = config
        self._state = state
        self._intervals: dict[bytes, int | None] = {}  # of the sessions
        self._shard, self._shards = shard, shards
        self._epoch = 0
        self._later_bytes = 0
        self._numbers = count(getrandbits(63) + 1) if shards > 1 else None  # of messages that await PUBREL
        self._pipe.hset(keys.shared, "redispatch", round(config.shared.redispatch * 1000))

    def end(self) -> None:
        """Write what is left."""
        self._pipe.set(self._keys.epoch, self._epoch)
        clock = {"t": self._state.clock, "w": redis_milliseconds(self._client)}
        self._pipe.hset(self._keys.clock, mapping=clock)
        self._execute()

    def _send(self) -> None:
        if max(len(self._pipe), len(self._texts)) >= 10 * AT_ONCE or self._size >= PIPELINE_BYTES:
            self._execute()

    def _execute(self) -> None:
        first: Any = self._client.pipeline(transaction=False)
        if self._texts:
            first.mset(self._texts)
        for key, members in self._members.items():
            first.sadd(key, *members)
        first.execute()
        self._pipe.execute()
        self._texts, self._members = {}, {}
        self._size = 0

    def _add(self, key: bytes, member: bytes) -> None:
        """Add a member to a set."""
        self._members.setdefault(key, []).append(member)

    # ---- sessions ----

    def write_session(self, session: StoredSession) -> None:
        """A session, but not its membership in groups."""
        self._epoch = max(self._epoch, session.number)
        self._intervals[session.client_id] = session.interval
        self._write_session(session)
        for name, (options, identifier) in session.subscriptions.items():
            self._pipe.hset(self._keys.subscriptions(session.client_id), name, b"%d;%d" % (options, identifier))
        for packet_id, message in session.awaiting.items():
            number = b"" if self._numbers is None else NUMBERED + next(self._numbers).to_bytes(8, "little")
            stored = number + encode_message(*message)
            self._pipe.hset(self._keys.awaiting(session.client_id), str(packet_id), stored)
        self._send()

    def _write_session(self, session: StoredSession) -> None:
        keys, client_id = self._keys, session.client_id
        entries, states = entries_of(session, self._has)
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
        text = packed.encode()
        self._texts[keys.session(client_id)] = text
        self._size += len(text)
        self._add(keys.sessions, client_id)
        self._count_bytes(client_id, packed.queued_bytes)
        if listed:
            self._write_list(client_id, entries)
        if states:
            self._pipe.hset(keys.states(client_id), mapping=states)
        if shares:
            due = self._state.clock + round(self._config.shared.redispatch * 1000)
            self._pipe.zadd(keys.grace, {client_id: due})

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
        if key not in self._members:
            self._pipe.zadd(index, {b"%d" % second: second * 1000})
        self._add(key, client_id)
        return since

    def _write_list(self, client_id: bytes, entries: list[bytes]) -> None:
        for some in pieces(entries, ENTRIES):
            self._pipe.rpush(self._keys.queue(client_id), *some)
            self._size += sum(map(len, some))
            if self._size >= PIPELINE_BYTES:
                self._execute()

    # ---- groups ----

    def join(self, client_id: bytes, name: bytes) -> None:
        """A session, perhaps of another shard, is a subscriber of a group."""
        self._add(self._keys.group_subscribers(name), b"c:" + client_id)

    def _has(self, name: bytes) -> bool:
        """Whether this shard has a group, or a session."""
        return shard_of(name, self._shards) == self._shard

    def write_group(self, group: StoredGroup, bindings: dict[int, tuple[int, bytes]]) -> None:
        """A group; all sessions come before.

        Args:
            group: without the messages in queues.
            bindings: by key, the last place with it in a queue, and the client id of the session.
        """
        keys, pipe = self._keys, self._pipe
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
            self._send()
        self._count_bytes(group.name.split(b"/", 2)[2], size)
        pipe.hset(keys.group(group.name), mapping={"n": group.last, "b": size, **options_of(settings)})
        if group.declaration:
            pipe.hset(keys.declared_groups, group.name, group.declaration)
            pipe.sadd(keys.group_subscribers(group.name), b"d:")
        for key, (_, client_id) in bindings.items():
            there = b"" if self._has(client_id) else FOREIGN
            pipe.hset(keys.group_keys(group.name), key.to_bytes(4, "little"), b"0 0  " + there + client_id)
        self._send()

    # ---- the rest ----

    def write_retained(self, message: StoredMessage) -> None:
        """A retained message."""
        self._pipe.hset(self._keys.retained, message.topic, encode_message(*message))
        self._size += len(message.payload)
        self._send()

    def write_will(self, stored: StoredWill) -> None:
        """A will, after all sessions. No node has it: it is due at some time, or at once, for the node that looks."""
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
        self._send()

    def write_delayed(self, stored: StoredDelayed) -> None:
        """A delayed message, or a staged chunk, in their order."""
        keys = self._keys
        self._epoch += 1
        topic, payload, qos, retain, properties, _ = stored.message
        value = encode_will(stored.publisher, Will(topic, payload, qos, retain, properties))
        self._later_bytes += len(value)
        self._size += len(value)
        self._pipe.hset(keys.later_messages, f"{self._epoch:016}", value)
        self._pipe.zadd(keys.later, {f"{self._epoch:016}": math.inf if stored.due is None else stored.due})
        state = {"b": self._later_bytes, "t": "0"}  # all are counted by tenant
        self._pipe.hset(keys.later_state, mapping=state)
        if prefix := split_tenant(topic)[0]:
            self._pipe.hincrby(keys.later_tenants, prefix, 1)
        if stored.due is None:
            transaction, name, _ = split_topic(topic)
            part = f"{transaction.key}/{transaction.number}/{name}"
            self._pipe.rpush(keys.staged_part(part), f"{self._epoch:016}")
            self._pipe.sadd(keys.staged_parts_of(transaction.key), f"{transaction.number}/{name}")
            self._pipe.zadd(keys.staged_parts, {part: self._state.clock + STAGED_SECONDS * 1000})
        self._send()

    def write_committed(self, key: str, number: int) -> None:
        """The last transaction of a name that was committed."""
        user, _, name = key.rpartition("/")
        self._pipe.hset(self._keys.committed + user.encode(), name, f"{number} {self._state.clock}")


# ---- values ----


def entries_of(session: StoredSession, has: Callable[[bytes], bool]) -> tuple[list[bytes], dict[str, bytes]]:
    """The queue of a session without gaps, and its states by number. `has`: whether the shard has a group."""
    entries, states = [], {}
    for number in range(session.head, session.tail):
        entry = session.queue.get(number)
        if entry is None:
            states[str(number)] = DONE
        elif entry.message is None:
            states[str(number)] = RECEIVED
        entries.append(value_of(entry, has))
    return entries, states


def value_of(entry: Queued | None, has: Callable[[bytes], bool]) -> bytes:
    """An entry of a queue; None: it is done. `has`: whether the shard has a group."""
    if entry is None:
        return NO_MESSAGE
    if entry.message is None and entry.share is None:
        return NO_MESSAGE
    message = NO_MESSAGE if entry.message is None else encode_message(*entry.message)
    share = entry.share or Share(b"", 0)
    foreign = bool(share.group) and not has(share.group)
    return encode_entry(message, entry.as_published, entry.identifiers, *share, foreign)


def options_of(settings: dict[str, Any]) -> dict[str, str]:
    """The settings of a declared group as fields of its hash: as `declare` in groups.lua writes them."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "1" if value else "0"
        return f"{value:.14g}" if isinstance(value, int | float) else str(value)

    return {f"o:{name}": text(value) for name, value in settings.items()}
