"""Random commands, for the model of Redis and for a real one: the same key may have any type."""

from collections.abc import Callable
from random import Random

KEYS = [b"a", b"b", b"c", b"d"]
WORDS = [b"", b"x", b"y", b"zz", b"1", b"2", b"10", b"-3", b"\x00\xff"]


class Commands:
    """Makes commands.

    Args:
        rng: chooses.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._makers: list[Callable[[], list[bytes]]] = [
            getattr(self, name) for name in dir(self) if name.startswith("make_")
        ]

    def next(self) -> list[bytes]:
        """A command."""
        return self._rng.choice(self._makers)()

    def _key(self) -> bytes:
        return self._rng.choice(KEYS)

    def _word(self) -> bytes:
        return self._rng.choice(WORDS)

    def _words(self, most: int = 3) -> list[bytes]:
        return [self._word() for _ in range(self._rng.randrange(1, most + 1))]

    def _number(self, low: int = -4, high: int = 6) -> bytes:
        return b"%d" % self._rng.randrange(low, high)

    def make_key(self) -> list[bytes]:
        """Of a key."""
        return [self._rng.choice([b"DEL", b"EXISTS", b"TYPE", b"UNLINK"]), self._key()]

    def make_string(self) -> list[bytes]:
        """Of strings."""
        kind = self._rng.choice([b"GET", b"SET", b"SETNX", b"INCR"])
        return [kind, self._key(), *([self._word()] if kind in (b"SET", b"SETNX") else [])]

    def make_hash(self) -> list[bytes]:
        """Of hashes."""
        kind = self._rng.choice(
            [b"HGETALL", b"HKEYS", b"HVALS", b"HLEN", b"HGET", b"HEXISTS", b"HSTRLEN", b"HMGET", b"HDEL"]
        )
        if kind in (b"HGETALL", b"HKEYS", b"HVALS", b"HLEN"):
            return [kind, self._key()]
        return [kind, self._key(), *(self._words() if kind in (b"HMGET", b"HDEL") else [self._word()])]

    def make_hash_write(self) -> list[bytes]:
        """Of hashes."""
        kind = self._rng.choice([b"HSET", b"HSET", b"HSETNX", b"HINCRBY"])
        if kind == b"HINCRBY":
            return [kind, self._key(), self._word(), self._number()]
        pairs = self._rng.randrange(1, 3) if kind == b"HSET" else 1
        return [kind, self._key(), *(self._word() for _ in range(2 * pairs))]

    def make_list(self) -> list[bytes]:
        """Of lists."""
        kind = self._rng.choice([b"LLEN", b"LINDEX", b"LRANGE", b"LPOP", b"RPOP", b"LTRIM", b"LSET", b"LREM"])
        arguments = {
            b"LLEN": list,
            b"LINDEX": lambda: [self._number()],
            b"LRANGE": lambda: [self._number(), self._number()],
            b"LPOP": lambda: [self._number(1, 5)] if self._rng.random() < 0.5 else [],
            b"RPOP": lambda: [self._number(1, 5)] if self._rng.random() < 0.5 else [],
            b"LTRIM": lambda: [self._number(), self._number()],
            b"LSET": lambda: [self._number(), self._word()],
            b"LREM": lambda: [self._number(-2, 3), self._word()],
        }
        return [kind, self._key(), *arguments[kind]()]

    def make_push(self) -> list[bytes]:
        """Of lists."""
        return [b"RPUSH", self._key(), *self._words()]

    def make_set(self) -> list[bytes]:
        """Of sets."""
        kinds = b"SADD SADD SREM SMEMBERS SCARD SISMEMBER SUNION SUNIONSTORE".split()
        kind = self._rng.choice(kinds)
        if kind.startswith(b"SUNION"):
            return [kind, self._key(), self._key()]
        if kind in (b"SMEMBERS", b"SCARD"):
            return [kind, self._key()]
        return [kind, self._key(), *(self._words() if kind in (b"SADD", b"SREM") else [self._word()])]

    def make_sorted_set(self) -> list[bytes]:
        """Of sorted sets."""
        kinds = b"ZADD ZADD ZREM ZCARD ZSCORE ZRANGE ZRANGEBYSCORE ZREMRANGEBYSCORE ZPOPMIN".split()
        kind = self._rng.choice(kinds)
        scores = [b"0", b"1", b"-2", b"3", b"1800000000123", b"2.5", b"x"]
        arguments = {
            b"ZADD": lambda: [self._rng.choice(scores), self._word()] * self._rng.randrange(1, 3),
            b"ZREM": self._words,
            b"ZCARD": list,
            b"ZSCORE": lambda: [self._word()],
            b"ZRANGE": lambda: [self._number(), self._number(), *([b"WITHSCORES"] * self._rng.randrange(2))],
            b"ZRANGEBYSCORE": lambda: [
                *(self._rng.choice((b"-inf", b"(" + self._number())), self._number()),
                *(b"LIMIT", b"0", self._number(1, 4)),
            ],
            b"ZREMRANGEBYSCORE": lambda: [b"-inf", self._rng.choice(scores)],
            b"ZPOPMIN": lambda: [self._number(1, 4)] * self._rng.randrange(2),
        }
        return [kind, self._key(), *arguments[kind]()]

    def make_stream(self) -> list[bytes]:
        """Of streams."""
        kind = self._rng.choice([b"XADD", b"XADD", b"XADD", b"XLEN", b"XRANGE", b"XTRIM", b"XRANGE"])
        number = self._rng.randrange(1, 30)
        limit = self._rng.choice([[], [b"MAXLEN", b"=", b"5"], [b"MINID", b"%d" % max(1, number - 3)]])
        count = [b"COUNT", self._number(1, 4)] if self._rng.random() < 0.5 else []
        arguments = {
            b"XADD": lambda: [*limit, b"%d-%d" % (number, self._rng.randrange(3)), self._word(), self._word()],
            b"XLEN": list,
            b"XRANGE": lambda: [b"%d-0" % number, self._rng.choice([b"+", b"%d" % (number + 5)]), *count],
            b"XTRIM": lambda: [b"MINID", b"%d" % number],
        }
        return [kind, self._key(), *arguments[kind]()]
