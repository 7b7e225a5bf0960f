"""How a node reports applied changes: when, in which way, and what it does when the way changes or a call fails."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flockmq._speedups.base.msgpack import unpack
from flockmq.cluster.redis.link import LinkLost, ReplyError
from flockmq.cluster.replication import applied_changes as module
from flockmq.cluster.replication.applied_changes import COUNTED_FROM, REFUSED_SECONDS, SECONDS, AppliedChanges

ME = b"me"


class World:
    """A node with a clock of the test, and what it has sent.

    Args:
        others: the number of the other nodes.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.published: list[tuple[bytes, list[Any]]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.waiting: list[Any] = []  # receivers of replies
        self.timers: list[tuple[float, Any]] = []
        self.fenced: list[str] = []
        self.connected = True
        self.node_id = ME
        self.keys = SimpleNamespace(all=b"all", to=lambda node: b"to " + node)
        self.membership = SimpleNamespace(is_member=True, become_fenced=self.fenced.append)
        self.changes = SimpleNamespace(last=0)
        self.barrier = Barrier(others)
        self.applied = AppliedChanges(
            cast(Any, self), cast(Any, self.changes), cast(Any, self.barrier), cast(Any, self)
        )

    def publish(self, channel: bytes, message: bytes) -> None:
        self.published.append((channel, unpack(message)))

    def function(self, then: Any, name: str, *arguments: Any) -> None:
        self.waiting.append(then)
        self.calls.append((name, *arguments))

    def call_later(self, delay: float, then: Any) -> object:
        self.timers.append((self.now + delay, then))
        return object()

    def reply(self, reply: Any) -> None:
        self.waiting.pop(0)(reply)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for due, then in list(self.timers):
            if due <= self.now:
                self.timers.remove((due, then))
                then()

    def applies(self, change: int, origin: bytes = b"other") -> None:
        """A change arrives, and all received data is processed."""
        self.changes.last = change
        self.applied.note(origin, change)
        self.applied.report()


class Barrier:
    """The other nodes, and the change for which something waits."""

    def __init__(self, others: int) -> None:
        self.others = others
        self.wanted = 0

    def __len__(self) -> int:
        return self.others


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, COUNTED_FROM - 1)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(monkeypatch, COUNTED_FROM)
    world.applied.report()  # says `back`, and reports for the first time
    world.reply([b"ok"])
    world.wait(1)
    world.published.clear()
    world.calls.clear()
    return world


def test_few_nodes_send_messages_to_origins(few: World) -> None:
    few.applied.note(ME, 6)
    few.applies(7)
    assert few.published == [(b"to other", [b"applied", ME, 7])]
    few.applied.report()
    assert len(few.published) == 1 and not few.calls


def test_many_nodes_call_redis_at_once_after_a_quiet_time_and_seldom_then(many: World) -> None:
    many.applies(7)
    assert many.calls == [("applied", 7, 0)]
    many.applies(8)
    many.reply([b"ok"])
    many.applies(9)
    assert len(many.calls) == 1
    many.wait(SECONDS)
    assert many.calls[1:] == [("applied", 9, 0)]
    assert not many.published


def test_one_call_is_under_way(many: World) -> None:
    many.applies(7)
    many.applies(8)
    many.wait(1)
    assert len(many.calls) == 1
    many.reply([b"ok"])
    assert many.calls[1:] == [("applied", 8, 0)]


def test_a_node_that_waits_asks_once(many: World) -> None:
    many.barrier.wanted = 7
    many.applied.report()
    assert many.calls == [("applied", 0, 7)]
    many.reply([b"ok"])
    many.wait(1)
    many.applied.report()
    assert len(many.calls) == 1


@pytest.mark.parametrize("failure", [LinkLost(), ReplyError("MISCONF")])
def test_a_report_that_has_failed_is_repeated(many: World, failure: Exception) -> None:
    many.barrier.wanted = 7
    many.applies(7)
    many.reply(failure)
    many.wait(REFUSED_SECONDS)
    assert many.calls == [("applied", 7, 7)] * 2


def test_without_a_link_it_waits(many: World) -> None:
    many.connected = False
    many.applies(7)
    many.wait(1)
    assert not many.calls
    many.connected = True
    many.applied.announce()
    many.applied.report()
    assert many.calls == [("applied", 7, 0)]


def test_a_node_that_is_gone_is_fenced(many: World) -> None:
    many.applies(7)
    many.reply([b"gone"])
    assert len(many.fenced) == 1


def test_it_says_how_far_it_is_when_the_way_changes(many: World) -> None:
    many.changes.last = 7
    many.barrier.others -= 1
    many.applied.report()
    assert many.published == [(b"all", [b"back", ME, 7])]
    many.barrier.others += 1
    many.barrier.wanted = 5  # of the time of messages
    many.applied.report()
    assert many.published[1:] == [(b"all", [b"back", ME, 7])]
    assert many.calls == [("applied", 7, 5)]
