"""The connection to Redis: replies and pushes in the order of their arrival, whatever parts they arrive in."""

import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest

from flockmq._speedups.cluster.link import LinkLost, RedisConnection
from flockmq._speedups.cluster.resp import ReplyError
from tests.harness.inprocess import Node

NOTHING = object()
PUSH = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%s\r\n"
LOST = str(LinkLost())


class World:
    """A node with a connection whose other end is the test; `events` has everything that it has passed on."""

    def __init__(self, in_slot: bool = False, served: bool = True) -> None:
        self.node = Node()
        if served:
            self.node.reactor.start()
        self.events: list[Any] = []
        self.link = RedisConnection(
            self.node.reactor,
            self.pushed,
            lambda: self.events.append("drained"),
            lambda: self.events.append("lost"),
            in_slot,
        )
        ours, self.redis = socket.socketpair()
        self.redis.setblocking(False)
        self.link.serve(ours)

    def pushed(self, channel: bytes, payload: bytes) -> int:
        self.events.append((channel, payload))
        return 1

    def send(self, data: bytes) -> None:
        """Redis sends this."""
        while data:
            data = data[self.redis.send(data) :]
            self.node.run()

    def taken(self) -> list[Any]:
        """The entries that the connection has passed on since the last call."""
        taken, self.events = [event for event in self.events if event != "drained"], []
        return taken

    def ask(self, name: str) -> None:
        self.link.call(self.noting(name), name)

    def noting(self, name: str) -> Callable[[Any], None]:
        """Takes the reply to a call with this name; of a loss it takes the text."""
        return lambda reply: self.events.append((name, str(reply) if isinstance(reply, LinkLost) else reply))

    def received(self) -> bytes:
        self.node.run()
        try:
            return self.redis.recv(1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.link.close()
        self.redis.close()
        self.node.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def random_reply(chance: random.Random, depth: int = 0) -> bytes:
    text = chance.randbytes(chance.choice((0, 1, 7, 300, 70_000 if not depth else 3)))
    count = chance.randrange(4)
    items = b"".join(random_reply(chance, depth + 1) for _ in range(count)) if depth < 4 else b""
    count = count if depth < 4 else 0
    return chance.choice(
        (
            b"+OK\r\n",
            b":%d\r\n" % chance.choice((0, -7, 1 << 62, chance.randrange(1 << 40))),
            b"$%d\r\n%s\r\n" % (len(text), text),
            b"=%d\r\ntxt:%s\r\n" % (len(text) + 4, text),
            b"_\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"#t\r\n",
            b"#f\r\n",
            b",1.5\r\n",
            b"(12345678901234567890123\r\n",
            b"*%d\r\n%s" % (count, items),
            b"%%1\r\n$1\r\nk\r\n%s" % random_reply(chance, depth + 1) if depth < 4 else b"%0\r\n",
        )
    )


def test_nothing_follows_a_call_that_is_alone_before_its_reply(world: World) -> None:
    def ask_alone(name: str) -> None:
        world.link.call_alone(world.noting(name), name)

    def command(name: bytes) -> bytes:
        return b"*1\r\n$1\r\n%s\r\n" % name

    world.ask("a")
    ask_alone("b")
    world.ask("c")
    ask_alone("d")
    ask_alone("e")
    world.ask("f")
    assert world.received() == command(b"a") + command(b"b")
    world.send(b":1\r\n")
    assert world.received() == b""
    world.send(b":2\r\n")
    assert world.received() == command(b"c") + command(b"d")
    world.send(b":3\r\n:4\r\n")
    assert world.received() == command(b"e")
    world.ask("g")
    assert world.received() == b""
    world.send(b":5\r\n")
    assert world.received() == command(b"f") + command(b"g")
    ask_alone("h")
    ask_alone("i")
    world.ask("j")
    world.redis.close()
    world.node.run()
    assert [event for event in world.taken() if event != "lost"] == [
        *((name, number) for number, name in enumerate("abcde", 1)),
        *((name, LOST) for name in "fghij"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_replies_are_what_hiredis_reads_in_whatever_parts_they_arrive(world: World, seed: int) -> None:
    chance = random.Random(seed)
    data = b""
    for number in range(chance.randrange(1, 30)):
        data += random_reply(chance)
        world.ask(str(number))
    reader = hiredis.Reader(notEnoughData=NOTHING)
    reader.feed(data)
    expected = []
    while (reply := reader.gets()) is not NOTHING:
        expected.append(reply)
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 5, 1000, 100_000))
        world.send(data[at : at + size])
        at += size
    assert [reply for _, reply in world.taken()] == expected


def test_an_error_is_a_value_also_within_an_array(world: World) -> None:
    world.ask("a")
    world.ask("b")
    world.send(b"-NOPERM no right\r\n*2\r\n:1\r\n!5\r\nERR x\r\n")
    (_, first), (_, (one, second)) = world.taken()
    assert isinstance(first, ReplyError) and str(first) == "NOPERM no right"
    assert one == 1 and isinstance(second, ReplyError) and str(second) == "ERR x"


def test_pushes_and_replies_keep_their_order(world: World) -> None:
    world.ask("a")
    world.ask("b")
    world.send(PUSH % (1, b"1") + b":1\r\n" + PUSH % (1, b"2") + b"|1\r\n+k\r\n+v\r\n:2\r\n" + PUSH % (0, b""))
    assert world.taken() == [(b"c", b"1"), ("a", 1), (b"c", b"2"), ("b", 2), (b"c", b"")]


def test_pushes_other_than_messages_are_no_replies(world: World) -> None:
    world.ask("a")
    world.send(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n:5\r\n")
    assert world.taken() == [("a", 5)]


def test_a_command_is_sent_as_an_array_of_texts(world: World) -> None:
    world.link.call(lambda _: None, "GET", b"k\r\n", 12, -3, "\u00e9")
    assert world.received() == b"*5\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n$2\r\n12\r\n$2\r\n-3\r\n$2\r\n\xc3\xa9\r\n"


def test_output_that_the_socket_does_not_take_is_sent_later(world: World) -> None:
    message = random.Random(1).randbytes(4_000_000)
    world.link.write(b"PUBLISH", message)
    received = b""
    while len(received) < len(message) and (more := world.received()):
        received += more
    assert received.endswith(message + b"\r\n")
    world.link.write(b"PING")
    assert world.received() == b"*1\r\n$4\r\nPING\r\n"


def test_it_is_served_also_while_the_clients_are_not() -> None:
    world = World(served=False)
    for change in (lambda: None, world.node.reactor.start, world.node.reactor.stop):
        change()
        world.ask("a")
        assert world.received() == b"*1\r\n$1\r\na\r\n"
        world.send(b":1\r\n")
        assert world.taken() == [("a", 1)]
    world.close()


def test_held_pushes_follow_at_release_and_replies_do_not_wait(world: World) -> None:
    world.link.hold()
    world.ask("a")
    world.send(PUSH % (1, b"1") + b":1\r\n")
    assert world.taken() == [("a", 1)]
    world.link.release()
    world.send(PUSH % (1, b"2"))
    assert world.taken() == [(b"c", b"1"), (b"c", b"2")]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_first_call_is_decided_before_all_that_arrived_before_its_reply(world: World, goes_on: bool) -> None:
    world.ask("a")
    world.link.call_first(lambda reply: (world.events.append(reply), goes_on)[1], "beat")
    world.ask("b")
    world.send(PUSH % (1, b"1") + b":1\r\n" + PUSH % (1, b"2"))
    assert world.taken() == []
    world.send(b"+beat\r\n:2\r\n")
    deferred = [(b"c", b"1"), ("a", 1), (b"c", b"2")] if goes_on else []
    assert world.taken() == [b"beat", *deferred, ("b" if goes_on else "a", 2)]


def test_an_exception_of_one_receiver_does_not_end_the_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.link.call(lambda _: 1 / 0, "a")
    world.ask("b")
    world.send(b":1\r\n:2\r\n")
    assert world.taken() == [("b", 2)]
    assert "internal error" in caplog.text


@pytest.mark.parametrize(
    "data", [b"?1\r\n", b":x\r\n", b":\r\n", b"$5x\r\n", b"+\n", b"*1\r\n" * 40, b"$-2\r\n", b"x" * 70_000]
)
def test_an_invalid_reply_ends_the_connection(world: World, data: bytes) -> None:
    world.ask("a")
    world.send(b":1\r\n" + data)
    ended = world.taken()
    assert ended == [("a", 1), "lost"]
    assert "invalid reply" in world.link.why_closed
    assert not world.link.open


def test_when_redis_ends_it_calls_without_a_reply_are_lost(world: World) -> None:
    world.ask("a")
    world.ask("b")
    world.send(b":1\r\n:")
    world.redis.close()
    world.node.run()
    assert world.taken() == [("a", 1), ("b", LOST), "lost"]
    world.ask("c")
    world.link.write("PING")
    world.link.close()
    assert world.taken() == [("c", LOST)]


def test_output_to_a_connection_that_redis_has_ended(world: World) -> None:
    world.redis.close()
    world.ask("a")
    world.node.run()
    assert world.taken() == [("a", LOST), "lost"]


@pytest.mark.parametrize(
    "data",
    [b"-MOVED 1 host:1\r\n", b"-ASK 1 host:1\r\n", b"-READONLY x\r\n", b">2\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n"],
)
@pytest.mark.parametrize("in_slot", [True, False])
def test_a_server_that_lacks_the_keys_ends_the_connection_in_a_redis_cluster(data: bytes, in_slot: bool) -> None:
    world = World(in_slot)
    world.ask("a")
    world.ask("b")
    world.send(data + b":2\r\n")
    taken = world.taken()
    if in_slot:
        (_, first), (_, second), lost = taken
        assert first == second and lost == "lost"
        assert "primary" in first
    else:
        assert "lost" not in taken
    world.close()


def test_a_silent_redis_is_noticed_by_the_oldest_call(world: World) -> None:
    assert world.link.silent_for == 0
    world.ask("a")
    before = world.link.silent_for
    assert 0 <= before < world.link.silent_for
    world.send(b":1\r\n")
    assert world.link.silent_for == 0


def test_publish_has_a_reply_unless_redis_may_leave_it_out(world: World) -> None:
    publish = b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$1\r\nm\r\n"
    world.link.publish(b"PUBLISH", b"c", b"m")
    world.ask("a")
    assert world.received() == publish + b"*1\r\n$1\r\na\r\n"
    world.send(b":0\r\n:1\r\n")
    world.link.skip_replies()
    world.link.publish(b"PUBLISH", b"c", b"m")
    world.ask("b")
    assert world.received() == b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n" + publish + b"*1\r\n$1\r\nb\r\n"
    world.send(b":2\r\n")
    assert world.taken() == [("a", 1), ("b", 2)]


def test_it_is_served_when_the_lease_has_expired_and_nothing_suspends_the_node(world: World) -> None:
    """While a node reads what it has missed, its lease may expire; clients wait, and Redis must be read."""
    expired: list[bool] = []
    world.node.reactor.attach_lease(lambda: expired.append(True))
    world.node.reactor.set_lease(-1)
    world.ask("a")
    assert world.received() == b"*1\r\n$1\r\na\r\n"
    world.send(b":1\r\n")
    assert world.taken() == [("a", 1)] and expired
    world.node.reactor.set_lease(0)
