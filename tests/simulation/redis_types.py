"""A model of Redis' data types: the commands that the cluster uses, on one keyspace.

Values are bytes; a reply is None, an int, bytes, a Status, or a list of replies. Errors are raised. Expiry is by the
time of the process's clock. `test_redis_model.py` holds it against a real Redis.
"""

import copy
import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from zlib import crc32

Reply = Any


class RedisError(Exception):
    """A command is refused; the text is Redis' own."""


class UnknownCommand(RedisError):
    """The model has no such command."""


class Status(bytes):
    """A simple string, as OK."""


OK = Status(b"OK")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NODE_ENTRIES = 100  # of a stream: entries that are trimmed together, where ~ allows it


class Hash(dict[bytes, bytes]):
    """A hash."""


class List(list[bytes]):
    """A list."""


class Set(dict[bytes, None]):
    """A set, in the order of arrival."""


class SortedSet:
    """Members by score, then by bytes."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, member: bytes, score: float) -> bool:
        """Set a score. Returns whether the member is new."""
        old = self.scores.get(member)
        if old is not None:
            if old == score:
                return False
            self._unlink(old, member)
        self.scores[member] = score
        insort(self.order, (score, member))
        return old is None

    def remove(self, member: bytes) -> bool:
        """Returns whether the member was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._unlink(score, member)
        return True

    def _unlink(self, score: float, member: bytes) -> None:
        del self.order[bisect_left(self.order, (score, member))]


StreamId = tuple[int, int]


class Stream:
    """Entries by id."""

    def __init__(self) -> None:
        self.entries: list[tuple[StreamId, list[bytes]]] = []
        self.last: StreamId = (0, 0)

    def __len__(self) -> int:
        return len(self.entries)

    def trim(self, count: int, *, approximately: bool) -> int:
        """Drop the oldest. Returns the number of dropped entries."""
        if approximately:
            count -= count % NODE_ENTRIES
        count = max(0, min(count, len(self.entries)))
        del self.entries[:count]
        return count

    def before(self, oldest: StreamId) -> int:
        """The number of entries before an id."""
        return bisect_left(self.entries, oldest, key=lambda entry: entry[0])


class Keyspace:
    """All keys.

    Args:
        rng: chooses where Redis chooses.
    """

    def __init__(self, rng: Random) -> None:
        self.keys: dict[bytes, Any] = {}
        self.expires: dict[bytes, float] = {}
        self._rng = rng
        self.commands: dict[bytes, Callable[..., Reply]] = {
            name.removeprefix("do_").upper().encode(): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def execute(self, name: bytes, arguments: list[bytes]) -> Reply:
        """Run a command. Raises RedisError."""
        command = self.commands.get(name)
        if command is None:
            command = self.commands.get(name.upper())
            if command is None:
                raise UnknownCommand(f"ERR unknown command '{name.decode()}'")
        if self.expires:
            self._expire()
        try:
            return command(*arguments)
        except TypeError as error:
            if "positional argument" in str(error):
                raise RedisError(f"ERR wrong number of arguments for '{name.decode().lower()}' command") from None
            raise

    def copied(self) -> tuple[dict[bytes, Any], dict[bytes, float]]:
        """All keys as they are now, for `restore`."""
        return copy.deepcopy(self.keys), dict(self.expires)

    def restore(self, kept: tuple[dict[bytes, Any], dict[bytes, float]]) -> None:
        """Have the keys of an earlier time, and nothing of later."""
        self.keys, self.expires = kept

    def _expire(self) -> None:
        now = time.time()
        for key in [key for key, due in self.expires.items() if due <= now]:
            del self.expires[key]
            self.keys.pop(key, None)

    def _find(self, key: bytes, kind: type) -> Any:
        """The value of this kind; None if there is no key. Raises RedisError."""
        value = self.keys.get(key)
        if value is not None and type(value) is not kind:
            raise RedisError(WRONG_TYPE)
        return value

    def _make(self, key: bytes, kind: type) -> Any:
        value = self._find(key, kind)
        if value is None:
            value = self.keys[key] = kind()
        return value

    def _drop_if_empty(self, key: bytes, value: Any) -> None:
        if not len(value):
            del self.keys[key]
            self.expires.pop(key, None)

    # ---- keys ----

    def do_del(self, *keys: bytes) -> Reply:
        for key in keys:
            self.expires.pop(key, None)
        return sum(self.keys.pop(key, None) is not None for key in keys)

    do_unlink = do_del

    def do_exists(self, *keys: bytes) -> Reply:
        return sum(key in self.keys for key in keys)

    def do_expire(self, key: bytes, seconds: bytes) -> Reply:
        if key not in self.keys:
            return 0
        self.expires[key] = time.time() + _integer(seconds)
        return 1

    def do_type(self, key: bytes) -> Reply:
        names = {Hash: b"hash", List: b"list", Set: b"set", SortedSet: b"zset", Stream: b"stream", bytes: b"string"}
        value = self.keys.get(key)
        return Status(b"none" if value is None else names[type(value)])

    def do_time(self) -> Reply:
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        return [b"%d" % seconds, b"%d" % (rest // 1000)]

    # ---- strings ----

    def do_get(self, key: bytes) -> Reply:
        return self._find(key, bytes)

    def do_set(self, key: bytes, value: bytes) -> Reply:
        self.expires.pop(key, None)
        self.keys[key] = value
        return OK

    def do_mget(self, *keys: bytes) -> Reply:
        values = [self.keys.get(key) for key in keys]
        return [value if type(value) is bytes else None for value in values]

    def do_mset(self, *items: bytes) -> Reply:
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.do_set(key, value)
        return OK

    def do_setnx(self, key: bytes, value: bytes) -> Reply:
        if key in self.keys:
            return 0
        self.keys[key] = value
        return 1

    def do_incr(self, key: bytes) -> Reply:
        return self.do_incrby(key, b"1")

    def do_incrby(self, key: bytes, by: bytes) -> Reply:
        found = self._find(key, bytes)
        value = _integer(b"0" if found is None else found) + _integer(by)
        self.keys[key] = b"%d" % value
        return value

    # ---- hashes ----

    def do_hget(self, key: bytes, field: bytes) -> Reply:
        found = self._find(key, Hash)
        return None if found is None else found.get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> Reply:
        found = self._find(key, Hash)
        return [None] * len(fields) if found is None else [found.get(field) for field in fields]

    def do_hgetall(self, key: bytes) -> Reply:
        return [part for item in (self._find(key, Hash) or {}).items() for part in item]

    def do_hvals(self, key: bytes) -> Reply:
        return list((self._find(key, Hash) or {}).values())

    def do_hkeys(self, key: bytes) -> Reply:
        return list(self._find(key, Hash) or ())

    def do_hlen(self, key: bytes) -> Reply:
        return len(self._find(key, Hash) or ())

    def do_hstrlen(self, key: bytes, field: bytes) -> Reply:
        return len((self._find(key, Hash) or {}).get(field, b""))

    def do_hexists(self, key: bytes, field: bytes) -> Reply:
        return int(field in (self._find(key, Hash) or ()))

    def do_hset(self, key: bytes, *items: bytes) -> Reply:
        if not items or len(items) % 2:
            raise RedisError("ERR wrong number of arguments for 'hset' command")
        value = self._make(key, Hash)
        before = len(value)
        for i in range(0, len(items), 2):
            value[items[i]] = items[i + 1]
        return len(value) - before

    def do_hsetnx(self, key: bytes, field: bytes, content: bytes) -> Reply:
        value = self._make(key, Hash)
        if field in value:
            return 0
        value[field] = content
        return 1

    def do_hdel(self, key: bytes, *fields: bytes) -> Reply:
        value = self._find(key, Hash)
        if value is None:
            return 0
        count = sum(value.pop(field, None) is not None for field in fields)
        self._drop_if_empty(key, value)
        return count

    def do_hincrby(self, key: bytes, field: bytes, by: bytes) -> Reply:
        amount = _integer(by)
        found = self._find(key, Hash)
        try:
            value = int((found or {}).get(field, b"0")) + amount
        except ValueError:
            raise RedisError("ERR hash value is not an integer") from None
        self._make(key, Hash)[field] = b"%d" % value
        return value

    def do_hscan(self, key: bytes, cursor: bytes, *options: bytes) -> Reply:
        found = self._find(key, Hash) or {}
        following, some = _scan(found, cursor, options)
        return [following, [part for field in some for part in (field, found[field])]]

    # ---- lists ----

    def do_llen(self, key: bytes) -> Reply:
        return len(self._find(key, List) or ())

    def do_lindex(self, key: bytes, index: bytes) -> Reply:
        found, at = self._find(key, List) or (), _integer(index)
        return found[at] if -len(found) <= at < len(found) else None

    def do_lrange(self, key: bytes, start: bytes, stop: bytes) -> Reply:
        found = self._find(key, List) or []
        return list(found[_span(_integer(start), _integer(stop), len(found))])

    def do_rpush(self, key: bytes, *values: bytes) -> Reply:
        value = self._make(key, List)
        value.extend(values)
        return len(value)

    def _pop(self, key: bytes, count: tuple[bytes, ...], *, left: bool) -> Reply:
        value = self._find(key, List)
        if value is None:
            return None
        number = min(_integer(count[0]) if count else 1, len(value))
        if left:
            found = value[:number]
            del value[:number]
        else:
            found = value[len(value) - number :][::-1]
            del value[len(value) - number :]
        self._drop_if_empty(key, value)
        return found if count else found[0]

    def do_lpop(self, key: bytes, *count: bytes) -> Reply:
        return self._pop(key, count, left=True)

    def do_rpop(self, key: bytes, *count: bytes) -> Reply:
        return self._pop(key, count, left=False)

    def do_ltrim(self, key: bytes, start: bytes, stop: bytes) -> Reply:
        value = self._find(key, List)
        if value is not None:
            value[:] = value[_span(_integer(start), _integer(stop), len(value))]
            self._drop_if_empty(key, value)
        return OK

    def do_lset(self, key: bytes, index: bytes, content: bytes) -> Reply:
        value, at = self._find(key, List), _integer(index)
        if value is None:
            raise RedisError("ERR no such key")
        if not -len(value) <= at < len(value):
            raise RedisError("ERR index out of range")
        value[at] = content
        return OK

    def do_lrem(self, key: bytes, count: bytes, content: bytes) -> Reply:
        value, number = self._find(key, List), _integer(count)
        if value is None:
            return 0
        places = [i for i, each in enumerate(value) if each == content]
        if number:
            places = places[:number] if number > 0 else places[number:]
        for i in reversed(places):
            del value[i]
        self._drop_if_empty(key, value)
        return len(places)

    # ---- sets ----

    def do_sadd(self, key: bytes, *members: bytes) -> Reply:
        value = self._make(key, Set)
        before = len(value)
        for member in members:
            value[member] = None
        return len(value) - before

    def do_srem(self, key: bytes, *members: bytes) -> Reply:
        value = self._find(key, Set)
        if value is None:
            return 0
        before = len(value)
        for member in members:
            value.pop(member, None)
        count = before - len(value)
        self._drop_if_empty(key, value)
        return count

    def do_scard(self, key: bytes) -> Reply:
        return len(self._find(key, Set) or ())

    def do_smembers(self, key: bytes) -> Reply:
        return list(self._find(key, Set) or ())

    def do_sismember(self, key: bytes, member: bytes) -> Reply:
        return int(member in (self._find(key, Set) or ()))

    def do_srandmember(self, key: bytes, *count: bytes) -> Reply:
        found = list(self._find(key, Set) or ())
        if count:
            return self._rng.sample(found, min(_integer(count[0]), len(found)))
        return self._rng.choice(found) if found else None

    def do_spop(self, key: bytes, *count: bytes) -> Reply:
        value = self._find(key, Set)
        if value is None:
            return [] if count else None
        found = self._rng.sample(list(value), min(_integer(count[0]) if count else 1, len(value)))
        for member in found:
            del value[member]
        self._drop_if_empty(key, value)
        return found if count else found[0]

    def do_sunionstore(self, destination: bytes, *keys: bytes) -> Reply:
        found = self.do_sunion(*keys)
        self.do_del(destination)
        return self.do_sadd(destination, *found) if found else 0

    def do_sunion(self, *keys: bytes) -> Reply:
        return list(dict.fromkeys(member for key in keys for member in self._find(key, Set) or ()))

    def do_sscan(self, key: bytes, cursor: bytes, *options: bytes) -> Reply:
        following, some = _scan(self._find(key, Set) or {}, cursor, options)
        return [following, some]

    # ---- sorted sets ----

    def do_zadd(self, key: bytes, *items: bytes) -> Reply:
        scores = [_score(each) for each in items[::2]]
        if not items or len(items) % 2:
            raise RedisError("ERR syntax error")
        value = self._make(key, SortedSet)
        return sum(value.add(member, score) for score, member in zip(scores, items[1::2], strict=True))

    def do_zrem(self, key: bytes, *members: bytes) -> Reply:
        value = self._find(key, SortedSet)
        if value is None:
            return 0
        count = sum(value.remove(member) for member in members)
        self._drop_if_empty(key, value)
        return count

    def do_zcard(self, key: bytes) -> Reply:
        return len(self._find(key, SortedSet) or ())

    def do_zscore(self, key: bytes, member: bytes) -> Reply:
        found = self._find(key, SortedSet)
        score = None if found is None else found.scores.get(member)
        return None if score is None else _text(score)

    def do_zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        if found is None:
            return []
        some = found.order[_span(_integer(start), _integer(stop), len(found))]
        return _ranked(some, with_scores=b"WITHSCORES" in options)

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        if found is None:
            return []
        bottom, top = _score(low.removeprefix(b"(")), _score(high)
        some = [item for item in found.order if bottom <= item[0] <= top]
        if low.startswith(b"("):  # without the bound itself
            some = [item for item in some if item[0] != bottom]
        if options and options[0].upper() == b"LIMIT":
            offset, count = _integer(options[1]), _integer(options[2])
            some = some[offset : offset + count] if count >= 0 else some[offset:]
        return _ranked(some, with_scores=False)

    def do_zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> Reply:
        bottom, top = _score(low), _score(high)
        value = self._find(key, SortedSet)
        if value is None:
            return 0
        return self.do_zrem(key, *(member for score, member in value.order if bottom <= score <= top))

    def do_zpopmin(self, key: bytes, *count: bytes) -> Reply:
        value = self._find(key, SortedSet)
        if value is None:
            return []
        some = value.order[: _integer(count[0]) if count else 1]
        for _, member in some:
            value.remove(member)
        self._drop_if_empty(key, value)
        return _ranked(some, with_scores=True)

    def do_zscan(self, key: bytes, cursor: bytes, *options: bytes) -> Reply:
        found = self._find(key, SortedSet)
        scores = found.scores if found is not None else {}
        following, some = _scan(scores, cursor, options)
        return [following, [part for member in some for part in (member, _text(scores[member]))]]

    # ---- streams ----

    def do_xadd(self, key: bytes, *arguments: bytes) -> Reply:
        rest, limit = list(arguments), None
        if rest[0] in (b"MAXLEN", b"MINID"):
            limit = rest[0], rest[1] == b"~", rest[2] if rest[1] in (b"~", b"=") else rest[1]
            rest = rest[3 if rest[1] in (b"~", b"=") else 2 :]
        stream = self._find(key, Stream)
        entry_id = _stream_id(rest[0])
        if entry_id <= (stream.last if stream is not None else (0, 0)):
            raise RedisError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        stream = self._make(key, Stream)
        stream.entries.append((entry_id, rest[1:]))
        stream.last = entry_id
        if limit is not None:
            self._trim(stream, *limit)
        return _id_text(entry_id)

    def _trim(self, stream: Stream, kind: bytes, approximately: bool, value: bytes) -> int:
        count = len(stream) - _integer(value) if kind == b"MAXLEN" else stream.before(_stream_id(value))
        return stream.trim(count, approximately=approximately)

    def do_xtrim(self, key: bytes, kind: bytes, *arguments: bytes) -> Reply:
        stream = self._find(key, Stream)
        if stream is None:
            return 0
        return self._trim(stream, kind, arguments[0] == b"~", arguments[-1])

    def do_xlen(self, key: bytes) -> Reply:
        return len(self._find(key, Stream) or ())

    def do_xrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> Reply:
        stream = self._find(key, Stream)
        if stream is None:
            return []
        first = (0, 0) if start == b"-" else _stream_id(start)
        last = (2**64, 0) if end == b"+" else _stream_id(end, missing=2**64)
        some = [entry for entry in stream.entries[stream.before(first) :] if entry[0] <= last]
        if options:
            some = some[: _integer(options[1])]
        return [[_id_text(entry_id), list(fields)] for entry_id, fields in some]

    def do_xinfo(self, part: bytes, key: bytes) -> Reply:
        stream = self._find(key, Stream)
        if stream is None:
            raise RedisError("ERR no such key")
        return [b"length", len(stream), b"last-generated-id", _id_text(stream.last)]


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise RedisError("ERR value is not an integer or out of range") from None


def _score(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        raise RedisError("ERR value is not a valid float") from None
    if math.isnan(value):
        raise RedisError("ERR value is not a valid float")
    return value


def _text(score: float) -> bytes:
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % int(score) if score == int(score) else repr(score).encode()


def _ranked(items: list[tuple[float, bytes]], *, with_scores: bool) -> list[bytes]:
    if with_scores:
        return [part for score, member in items for part in (member, _text(score))]
    return [member for _, member in items]


def _span(start: int, stop: int, length: int) -> slice:
    first = max(0, start + length if start < 0 else start)
    last = stop + length if stop < 0 else stop
    return slice(first, max(first, last + 1))


def _stream_id(text: bytes, missing: int = 0) -> StreamId:
    first, _, second = text.partition(b"-")
    try:
        return int(first), int(second) if second else missing
    except ValueError:
        raise RedisError("ERR Invalid stream ID specified as stream command argument") from None


def _id_text(entry_id: StreamId) -> bytes:
    return b"%d-%d" % entry_id


def _scan(items: dict[bytes, Any], cursor: bytes, options: tuple[bytes, ...]) -> tuple[bytes, list[bytes]]:
    """Some of the items, by a checksum: items that stay are found once, whatever comes and goes between the calls."""
    count = _integer(options[1]) if options else 10
    places: Iterator[tuple[int, bytes]] = iter(
        sorted((place, item) for item in items if (place := crc32(item)) >= _integer(cursor))
    )
    found: list[bytes] = []
    last = -1
    for place, item in places:
        if len(found) >= count and place != last:
            return b"%d" % place, found
        found.append(item)
        last = place
    return b"0", found
