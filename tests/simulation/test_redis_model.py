"""The model of Redis, held against a real Redis: random commands, and random calls of the function library."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import pytest
import redis

from flockmq._speedups.base.msgpack import pack, unpack
from flockmq.broker.core.will import Will
from flockmq.cluster.peers.wire import LOGGED, batch_header
from flockmq.cluster.redis.calls import CALLS
from flockmq.cluster.redis.connector import function_library
from flockmq.cluster.redis.packed_session import PackedSession
from flockmq.cluster.sessions.wills import encode_will
from tests.harness.commits import commit_arguments
from tests.harness.redis_process import RedisProcess
from tests.simulation.redis_lua import Library
from tests.simulation.redis_random import Commands
from tests.simulation.redis_types import Keyspace, RedisError, Stream

SETS = ("SMEMBERS", "SUNION")  # commands whose reply has no order
NODES = (b"n1", b"n2", b"n3")
CLIENTS = (b"ada", b"bob", b"cy")


@pytest.fixture
def real(redis_server: RedisProcess) -> Iterator[redis.Redis]:
    """A real Redis without a key."""
    with redis_server.client(decode_responses=False, protocol=2) as client:
        client.flushall()
        yield client


def plain(name: str, reply: Any) -> Any:
    """A reply, in a form that both have."""
    if isinstance(reply, (redis.ResponseError, RedisError)):
        return "error WRONGTYPE" if "WRONGTYPE" in str(reply) else "error"
    if isinstance(reply, list):
        found = [plain(name, each) for each in reply]
        return sorted(found) if name in SETS else found
    return reply


def ask(call: Callable[[], Any]) -> Any:
    """The reply of a call, or its error."""
    try:
        return call()
    except (redis.ResponseError, RedisError) as error:
        return error


def raw(real: redis.Redis, command: list[bytes]) -> Any:
    """A command as it is, without redis-py's idea of its reply."""
    connection = real.connection_pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    finally:
        real.connection_pool.release(connection)


@pytest.mark.parametrize("seed", range(4))
def test_commands(real: redis.Redis, seed: int) -> None:
    commands, model = Commands(Random(seed)), Keyspace(Random(seed))
    story = []
    for _ in range(1500):
        command = commands.next()
        name = command[0].decode()
        expected = plain(name, ask(lambda command=command: raw(real, command)))
        found = plain(name, ask(lambda command=command: model.execute(command[0], command[1:])))
        story.append(f"{command}: {expected!r}")
        assert found == expected, "\n".join([*story[-20:], f"the model: {found!r}"])


@pytest.mark.parametrize("kind", ["HSCAN", "SSCAN", "ZSCAN"])
def test_scan_finds_all(kind: str) -> None:
    model = Keyspace(Random(1))
    items = [b"item %d" % i for i in range(500)]
    for item in items:
        command = {"HSCAN": b"HSET", "SSCAN": b"SADD", "ZSCAN": b"ZADD"}[kind]
        model.execute(command, {"HSCAN": [b"k", item, b"v"], "SSCAN": [b"k", item], "ZSCAN": [b"k", b"1", item]}[kind])
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, some = model.execute(kind.encode(), [b"k", cursor, b"COUNT", b"50"])
        found += some if kind == "SSCAN" else some[::2]
        if cursor == b"0":
            break
    assert sorted(found) == sorted(items)


# ---- the library ----


class Calls:
    """Random calls of the library, as nodes make them; both sides get the same.

    Args:
        rng: chooses.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._seq = dict.fromkeys(NODES, 0)
        self._epochs = 0
        self._nodes = list(NODES)
        self._gone: int | None = None  # the place of a node that is to rejoin, which has another name then
        self.commits = self.effective = 0

    def note(self, name: bytes, arguments: list[Any], reply: Any) -> None:
        """Both sides have replied: count commits that take effect, and go on behind the last of a node."""
        if name == b"flockmq_commit":
            self.commits += 1
            self.effective += isinstance(reply, list) and reply[0] == b"ok"
            if reply == [b"gone"]:
                self._gone = self._nodes.index(arguments[0])
            elif isinstance(reply, list) and reply[0] == b"gap":
                self._seq[arguments[0]] = reply[1]

    def next(self) -> tuple[bytes, list[Any]]:
        """The name of a function, and its arguments after the prefix."""
        if self._gone is not None:
            place, self._gone = self._gone, None
            self._nodes[place] += b"+"
            return b"flockmq_join", self.join(self._nodes[place])
        often = ("claims", "claims", *["commit"] * 6, "acks", "acks", "load", "bury")
        seldom = ("join", "ready", "beat", "confirm", "leave", "sessions", "retained", "owned", "logs", "values")
        name = self._rng.choice((*often, "applied", "applied", *seldom))
        return f"flockmq_{name}".encode(), getattr(self, name)(self._rng.choice(self._nodes))

    def join(self, node: bytes) -> list[Any]:
        """A node joins; it has a new number of its commits then."""
        self._seq[node] = 0
        return [node, 1, pack(["name", node]), b"mq:", b""]

    def ready(self, node: bytes) -> list[Any]:
        """A node is ready."""
        return [node]

    confirm = ready

    def applied(self, node: bytes) -> list[Any]:
        """A node has applied changes, and may wait for one of its own."""
        return [node, self._rng.randrange(60), self._rng.choice((0, self._rng.randrange(60)))]

    def beat(self, node: bytes) -> list[Any]:
        """A node lives."""
        return [node, 0, pack(["name", node])]

    def leave(self, node: bytes) -> list[Any]:
        """A node leaves, rarely."""
        return [node if self._rng.random() < 0.2 else b"nobody"]

    def claims(self, node: bytes) -> list[Any]:
        """Clients connect."""
        claims = []
        for client in self._rng.sample(CLIENTS, self._rng.randint(1, 2)):
            will = encode_will(client, Will(b"t", b"bye", 0, False)) if self._rng.random() < 0.5 else b""
            persistent = self._rng.randrange(2)
            clean = self._rng.choice((0, 0, 1))
            claims.append([client, persistent, 4, will, b"", clean, b"" if persistent else 0, 0])
        return [node, 1000, pack(claims)]

    def commit(self, node: bytes) -> list[Any]:
        """A turn: messages, changes, releases."""
        rng = self._rng
        self._seq[node] += rng.choice((1, 1, 1, 1, 1, 1, 0, 2))
        messages = [b"\x01\x01\x00t%d" % rng.randrange(100) for _ in range(rng.randrange(1, 4))]
        incarnation = rng.randrange(1, 12)
        pushes = [[client, incarnation, *range(1, len(messages) + 1)] for client in CLIENTS if rng.random() < 0.5]
        client = rng.choice(CLIENTS)
        changes: list[Any] = rng.choice(
            (
                [["retained", b"t/%d" % rng.randrange(3), rng.choice((b"", b"\x00\x01\x00tx"))]],
                [["subscribed", client, incarnation, rng.choice((b"t/#", b"$share/g/t")), 2, 0]],
                [["unsubscribed", client, incarnation, b"t/#"]],
                [["route", b"t/+", 1, 0, 0, 0]],
                [["unroute", b"t/+"]],
            )
        )
        awaiting = [[client, incarnation, 7, 1]] if rng.random() < 0.3 else []
        released = [[client, incarnation, 7]] if rng.random() < 0.3 else []
        epoch = rng.randrange(1, 12)
        releases = [[client, epoch, rng.randrange(1, 5)]] if rng.random() < 0.4 else []
        packed = pack([*changes, ["mark", rng.randrange(1 << 40)]]) if rng.random() < 0.7 else b""
        targets = [[each, b""] for each in self._nodes if rng.random() < 0.3]
        parts = {"pushes": pushes, "awaiting": awaiting, "released": released, "releases": releases, "targets": targets}
        if targets:
            parts |= {"batch_header": batch_header(LOGGED, node, self._seq[node]), "batch": b"batch"}
        if rng.random() < 0.4:
            parts["shares"] = [b"$share/g/t", [1]]
        return [node, *commit_arguments(self._seq[node], messages=messages, changes=packed, **parts)]

    def acks(self, node: bytes) -> list[Any]:
        """Acknowledgements of a client, and room in a group."""
        numbers = sorted(self._rng.sample(range(1, 9), 3))
        received = [numbers[2], self._rng.choice((0, 10))]
        entry = [self._rng.choice(CLIENTS), self._rng.randrange(1, 12), numbers[:2], received, 20]
        room = [b"$share/g/t", self._rng.randrange(5), 1, 0, self._rng.choice([0, 40])]
        settled = pack([[], room, [], []]) if self._rng.random() < 0.5 else b""
        first = self._rng.randrange(1, 9)
        in_order = [self._rng.choice(CLIENTS), self._rng.randrange(1, 12), first, self._rng.randint(1, 3), 20]
        return [node, pack([in_order, [entry]]), settled]

    def load(self, node: bytes) -> list[Any]:
        """A session is read."""
        return [self._rng.choice(CLIENTS), 1, 100]

    def bury(self, node: bytes) -> list[Any]:
        """A node is declared dead, perhaps with the right count of heartbeats."""
        return [node, self._rng.choice(self._nodes), self._rng.randrange(1, 4), 0]

    def sessions(self, node: bytes) -> list[Any]:
        """All subscriptions are read."""
        return [0, 1000]

    retained = sessions

    def owned(self, node: bytes) -> list[Any]:
        """Claims of a node are read."""
        return [node, 0, 1000]

    def logs(self, node: bytes) -> list[Any]:
        """The logs of two nodes are read."""
        return [node, pack([part for other in self._rng.sample(self._nodes, 2) for part in (other, 1)])]

    def values(self, node: bytes) -> list[Any]:
        """Retained messages are read."""
        return [pack([b"t/0", b"t/1"])]


TIMED_SET = re.compile(rb"(mq:(?:off|ends):)\d+")
MARK = b"mark"  # followed by the time, or a random number of the caller


def without_times(value: Any) -> Any:
    """A reply or a message without times and marks; sets and hashes of Lua in one order."""
    if isinstance(value, list):
        if value[:1] == [MARK]:
            return [MARK]
        return [without_times(each) for each in value]
    if isinstance(value, bytes) and value[:1] in (b"\x92", b"\x93", b"\x94", b"\x95", b"\x96"):
        try:
            return without_times(unpack(value))
        except ValueError:
            return value
    if isinstance(value, int) and value > 1 << 32:
        return "time"
    return value


def state_of_model(keyspace: Keyspace) -> dict[bytes, Any]:
    """All keys and their values, without times."""
    found = {}
    for key, value in keyspace.keys.items():
        if key in keyspace.expires:  # each expires by its own clock
            continue
        kind = bytes(keyspace.execute(b"TYPE", [key]))
        shape = _shape(kind, value.entries if isinstance(value, Stream) else getattr(value, "scores", value))
        found[TIMED_SET.sub(rb"\1time", key)] = _without_since(key, shape)
    return found


def _without_since(key: bytes, value: Any) -> Any:
    """The value of a key; a session without the time of its last change of the owner."""
    return replace(PackedSession.decode(value), since=0) if key.startswith(b"mq:s:") else value


def _shape(kind: bytes, value: Any) -> Any:
    if kind == b"hash":
        return {key: without_times(each) for key, each in value.items() if key not in (b"t", b"w", b"off")}
    if kind == b"zset":
        return {
            b"time" if key.isdigit() and score > 1 << 30 else key: score if score < 1 << 30 else "time"
            for key, score in value.items()
        }
    if kind == b"set":
        return set(value)
    if kind == b"stream":
        return [[without_times(each) for each in fields] for _, fields in value]
    return without_times(list(value)) if kind == b"list" else value


def state_of_real(real: redis.Redis) -> dict[bytes, Any]:
    """Likewise."""
    found = {}
    for key in real.scan_iter():
        kind = real.type(key)
        if real.ttl(key) != -1:
            continue
        if kind == b"zset":
            value: Any = dict(real.zrange(key, 0, -1, withscores=True))
        elif kind == b"stream":
            value = [(None, [part for item in fields.items() for part in item]) for _, fields in real.xrange(key)]
        else:
            value = {
                b"hash": real.hgetall,
                b"list": lambda key: real.lrange(key, 0, -1),
                b"set": real.smembers,
                b"string": real.get,
            }[kind](key)
        found[TIMED_SET.sub(rb"\1time", key)] = _without_since(key, _shape(kind, value))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_functions(real: redis.Redis, seed: int) -> None:
    code = function_library()
    real.execute_command("FUNCTION", "LOAD", "REPLACE", code)
    keyspace = Keyspace(Random(seed))
    library = Library(code, keyspace, lambda channel, message: 0)
    calls = Calls(Random(seed))
    story = []
    joins = [(b"flockmq_join", calls.join(node)) for node in NODES]
    for number, (name, arguments) in enumerate(chain(joins, (calls.next() for _ in range(500)))):
        texts = [each if isinstance(each, bytes) else str(each).encode() for each in (b"mq:", *arguments)]
        expected = without_times(plain("", ask(lambda: raw(real, [b"FCALL", name, b"0", *texts]))))  # noqa: B023
        found = without_times(plain("", ask(lambda: library.call(name, [], texts))))  # noqa: B023
        story.append(f"{name!r} {texts}: {expected}")
        assert normal(name, found) == normal(name, expected), "\n".join([*story[-15:], f"the model: {found}"])
        call = CALLS[name.decode().removeprefix("flockmq_")]
        assert not call.problem(texts)
        calls.note(name, arguments, expected)
        if number % 10 == 0:
            assert state_of_model(keyspace) == state_of_real(real), "\n".join(story[-25:])
    assert 4 * calls.effective > calls.commits > 100, f"{calls.effective} of {calls.commits} commits took effect"


def normal(name: bytes, reply: Any) -> Any:
    """A reply whose order Redis does not promise, in one order."""
    if name in (b"flockmq_beat", b"flockmq_ready", b"flockmq_sessions", b"flockmq_retained", b"flockmq_owned"):
        return sorted(map(repr, _flat(reply))) if isinstance(reply, list) else reply
    if name == b"flockmq_join" and isinstance(reply, list):
        return reply[:3]  # the fourth is a time: how long no node has lived
    if name == b"flockmq_load" and isinstance(reply, list):
        return [*reply[:5], *(sorted(each) for each in reply[5:7]), reply[7]]
    return reply


def _flat(reply: list[Any]) -> Iterator[Any]:
    for each in reply:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each


def test_json_and_numbers() -> None:
    """Conversions of Lua that random calls seldom meet."""
    keyspace = Keyspace(Random(1))
    code = b"""#!lua name=t
    redis.register_function('f', function(keys, args)
      redis.call('SET', 'k', args[1])
      redis.call('HSET', 'h', 'n', 2 ^ 40, 'x', 1.5)
      return {cjson.encode({a = {1, 2}, b = 'c'}), 3.9, true, false, redis.call('HGET', 'h', 'n'), {ok = 'fine'},
        redis.pcall('INCR', 'h').err:sub(1, 9), struct.pack('<H', 258),
        cmsgpack.unpack(cmsgpack.pack({1, {'a'}}))[2][1], redis.call('TYPE', 'h').ok, redis.call('HGET', 'h', 'x')}
    end)"""
    reply = Library(code, keyspace, lambda channel, message: 0).call(b"f", [], [b"v"])
    assert json.loads(reply[0]) == {"a": [1, 2], "b": "c"}
    assert reply[1:5] == [3, 1, None, b"1099511627776"]
    assert reply[5:] == [b"fine", b"WRONGTYPE", b"\x02\x01", b"a", b"hash", b"1.5"]
    assert keyspace.keys[b"h"] == {b"n": b"1099511627776", b"x": b"1.5"}
