"""The store of a cluster when Redis refuses some commands of a pipeline and takes others behind them."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest

from flockmq._speedups.base.msgpack import pack
from flockmq.cluster.peers.wire import LOGGED, batch_header
from flockmq.cluster.redis.connector import function_library
from flockmq.cluster.redis.keys import Keys
from flockmq.cluster.redis.link import ReplyError
from flockmq.cluster.redis.log_bounds import LogBounds
from flockmq.cluster.redis.packed_session import PackedSession
from flockmq.cluster.redis.store import RETRY_SECONDS, RedisStore
from tests.harness.commits import commit_arguments
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess

NODE = b"n1"


class SlowLink:
    """A link whose commands are carried out by `work`, so that a test decides what happens between two of them."""

    def __init__(self, port: int) -> None:
        self.open = True
        self.port = port
        self.commands: deque[tuple[Callable[[Any], object], tuple[Any, ...]]] = deque()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)

    def call(self, callback: Callable[[Any], object], *command: Any) -> None:
        self.commands.append((callback, command))

    def ask(self, *command: Any) -> Any:
        self._socket.sendall(hiredis.pack_command(tuple(command)))
        return self.receive()

    def receive(self) -> Any:
        reader = hiredis.Reader(replyError=ReplyError)
        while (reply := reader.gets()) is False:
            reader.feed(self._socket.recv(1 << 16))
        return reply

    def work(self, most: int = 1000) -> None:
        """Carry out what waits, `most` commands at most."""
        while self.commands and most:
            callback, command = self.commands.popleft()
            callback(self.ask(*command))
            most -= 1

    def close(self) -> None:
        self._socket.close()


class Commit:
    """A block of the ledger, as far as the store looks at it."""

    texts: tuple[bytes, ...] = ()
    acks: tuple[bytes, ...] = ()
    settled = b""
    shares = False
    is_part = False
    batch = b""

    def __init__(
        self, entry: tuple[bytes, bytes] | None, commit: bytes = b"", changes: tuple[tuple[Any, ...], ...] = ()
    ) -> None:
        self.entry = entry
        self.commit = commit
        self.changes = changes

    def unnumbered(self) -> list[Any]:
        return []

    def numbered(self, numbers: list[Any]) -> None:
        pass


@pytest.fixture
def link(redis_server: RedisProcess) -> Iterator[SlowLink]:
    made = SlowLink(redis_server.port)
    made.ask("FUNCTION", "LOAD", function_library())
    made.ask("FCALL", "flockmq_join", 0, "mq:", NODE, 1, pack(["name", "a"]), "mq:", "")
    yield made
    made.close()


def block(size: int, before: int) -> tuple[bytes, bytes]:
    """An entry: its id, and so many bytes."""
    return b"%d-%d" % (1000 + before, before + size), struct.pack("<24s", b"block") + bytes(size - 24)


def made_store(
    confirmed: list[int], fenced: list[str], unnumbered: Callable[[list[Any]], object] = lambda _: None
) -> RedisStore:
    """A store that notes the blocks that are confirmed, and the reasons why it is fenced."""
    store = RedisStore(
        Keys("mq:"),
        NODE,
        bounds=LogBounds(1 << 20, 60),
        replicas=0,
        on_fenced=fenced.append,
    )
    store.limit_queues(10, 1000, drop_oldest=False)
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    store.listener = SimpleNamespace(
        changed=nothing, dropped=nothing, assigned=nothing, given=nothing, damaged=nothing, unnumbered=unnumbered
    )
    store.start(confirmed.append, lambda *_: None)
    return store


EMPTY_COMMIT = commit_arguments(1)[1]


@pytest.mark.parametrize("commit", [b"", EMPTY_COMMIT], ids=["an entry alone", "a commit"])
@pytest.mark.parametrize("then", ["an entry", "a commit"])
def test_what_follows_a_refused_entry_waits_for_it(link: SlowLink, commit: bytes, then: str) -> None:
    """Memory is there again between two commands of a pipeline: the first was refused, the second must not overtake."""

    async def scenario() -> None:
        confirmed: list[int] = []
        fenced: list[str] = []
        store = made_store(confirmed, fenced)
        store.bound_log(1 << 20, 60, 1 << 20)
        store.flow(link, 0)  # type: ignore[arg-type]
        first, second = block(100, 0), block(60, 100)
        store.commit(Commit(first, commit))
        if then == "an entry":
            store.log(*second)
        else:
            store.commit(Commit(second, EMPTY_COMMIT))
        link.ask("CONFIG", "SET", "maxmemory", 1)
        link.work(1)
        assert not confirmed
        link.ask("CONFIG", "SET", "maxmemory", 0)
        link.work()
        for _ in range(3):
            await asyncio.sleep(RETRY_SECONDS * 1.2)
            link.work()
        assert not fenced
        assert sum(confirmed) == (1 if then == "an entry" else 2)
        found = link.ask("XRANGE", "mq:analytics:log:n1", "-", "+")
        assert [(entry_id, fields[1]) for entry_id, fields in found] == [first, second]

    asyncio.run(scenario())


def test_a_repeated_commit_is_applied_once_and_one_too_early_not_at_all(link: SlowLink) -> None:
    """A node whose link broke sends again what was not answered: Redis may have executed it."""
    link.ask("SET", "mq:s:c", PackedSession(1, 1).encode())

    def send(number: int) -> Any:
        arguments = commit_arguments(number, messages=[b"message"], pushes=[[b"c", 1, 1]])
        return link.ask("FCALL", "flockmq_commit", 0, "mq:", NODE, *arguments)[:5]

    assert send(1) == [b"ok", 0, 0, 0, [0, 1]]
    assert send(1) == [b"again"]
    assert send(3) == [b"gap", 1]
    assert PackedSession.decode(link.ask("GET", "mq:s:c")).entries == [b"message"]
    assert send(2) == [b"ok", 0, 0, 0, [0, 1]]
    assert PackedSession.decode(link.ask("GET", "mq:s:c")).entries == [b"message"] * 2


@pytest.mark.parametrize(
    "entry", [(b"", b"", b""), (b"1000-24", bytes(24), b"0-0")], ids=["", "with an entry of the other log"]
)
def test_the_batch_of_a_commit_is_published_and_in_its_log(link: SlowLink, entry: tuple[bytes, bytes, bytes]) -> None:
    packets, header = b"\x32\x09\x00\x01t\x00\x00messa", batch_header(LOGGED, NODE, 1)
    listener = SlowLink(link.port)
    listener.ask("SUBSCRIBE", "mq:to:n2")
    targets = [[b"n2", b""], [b"n3", b"for n3"]]
    arguments = commit_arguments(1, batch_header=header, batch=packets, targets=targets, entry=entry)
    assert link.ask("FCALL", "flockmq_commit", 0, "mq:", NODE, *arguments)[:4] == [b"ok", 0, 0, 0]
    assert listener.receive() == [b"message", b"mq:to:n2", header + packets]
    assert link.ask("FCALL", "flockmq_logs", 0, "mq:", "n2", pack([NODE, 1])) == [0, [2], [packets]]
    assert link.ask("XLEN", "mq:analytics:log:n1") == bool(entry[0])
    listener.close()


@pytest.mark.parametrize("changes", [(), (("route", b"t", 1, 0, 0, 0),)], ids=["messages", "a change"])
def test_a_commit_that_redis_reads_late_from_an_ended_connection(link: SlowLink, changes: tuple[Any, ...]) -> None:
    """Queues are read again; a change would be applied here after later ones of other nodes, so the node rejoins."""
    fenced: list[str] = []
    confirmed: list[int] = []
    store = made_store(confirmed, fenced)
    ended = SlowLink(link.port)
    store.flow(ended, 0)  # type: ignore[arg-type]
    store.commit(Commit(None, EMPTY_COMMIT, changes))
    store.stop_flowing()
    ((_, command),) = ended.commands
    ended.ask(*command)
    store.flow(link, 0)  # type: ignore[arg-type]
    link.work()
    assert bool(fenced) == bool(changes)
    assert confirmed == [1]
    ended.close()


def test_what_is_known_of_a_long_log_is_little() -> None:
    bounds = LogBounds(1 << 20, 3600)
    for number in range(100_000):
        bounds.add(b"%d-0" % number, 100)
        oldest = int(bounds.oldest().split(b"-")[0])
        kept = (number + 1 - oldest) * 100
        assert kept == bounds.size <= 1 << 20
        assert oldest == 0 or kept > (1 << 20) * 0.99
    assert len(bounds._segments) < 1000
    written, waiting = bounds.size, 200_000
    assert bounds.halve(waiting)
    assert 0 <= bounds.size - (written + waiting) // 2 < 5000
    while bounds.halve(waiting):
        assert bounds.size >= waiting
    assert bounds.oldest() <= b"98000-0"


def test_a_block_that_is_added_while_the_link_comes_back_follows_those_before_it(link: SlowLink) -> None:
    """Redis had the first block, and its reply was lost: the call that reads the queues adds the records before it."""
    confirmed: list[int] = []
    fenced: list[str] = []
    store = made_store(confirmed, fenced, lambda _: store.commit(Commit(None, EMPTY_COMMIT)))
    for _ in range(2):
        store.commit(Commit(None, EMPTY_COMMIT))
    store.flow(link, 0)  # type: ignore[arg-type]
    _, command = link.commands.popleft()
    link.ask(*command)
    link.commands.clear()
    store.stop_flowing()
    store.flow(link, 1)  # type: ignore[arg-type]
    link.work()
    assert (sum(confirmed), fenced, store.seq) == (3, [], 3)
