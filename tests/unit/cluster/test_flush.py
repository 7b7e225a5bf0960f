"""Flush: SUBACK waits for the barriers of all shards, then for a reply of each; a release for a reply of each."""

from collections.abc import Callable
from typing import Any

from flockmq.cluster.redis.link import LinkLost
from flockmq.cluster.replication.flush import Flush


class Turn:
    """A turn whose records are stored when it is told so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def after_commit(self, callback: Callable[[], object]) -> None:
        self.waiting.append(callback)

    def store(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Shard:
    """The barrier and the link of a shard."""

    def __init__(self) -> None:
        self.is_behind = False
        self.connected = True
        self.applied: list[Callable[[], object]] = []
        self.pings: list[Callable[[Any], object]] = []

    def when_last_applied(self, done: Callable[[], object]) -> None:
        self.applied.append(done)

    def call(self, then: Callable[[Any], object], *command: str) -> None:
        assert command == ("PING",)
        self.pings.append(then)

    def reply(self, reply: Any = b"PONG") -> None:
        pings, self.pings = self.pings, []
        for then in pings:
            then(reply)


class Node:
    """A node with two shards."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.flush = Flush(self.turn)  # type: ignore[arg-type]
        self.shards = [Shard(), Shard()]
        for shard in self.shards:
            self.flush.attach(shard, shard)  # type: ignore[arg-type]
        self.done: list[str] = []

    def wait(self, name: str) -> None:
        self.flush.when_flushed(lambda: self.done.append(name))


def test_a_subscription_waits_for_all_barriers_and_then_for_all_links() -> None:
    node = Node()
    first, second = node.shards
    node.flush.when_applied(lambda: node.done.append("suback"))
    assert not first.applied
    node.turn.store()
    first.applied.pop()()
    assert not first.pings
    second.applied.pop()()
    first.reply()
    assert node.done == []
    second.reply()
    assert node.done == ["suback"]


def test_those_that_come_while_a_round_is_under_way_wait_for_the_next_one() -> None:
    node = Node()
    first, second = node.shards
    node.wait("a")
    node.turn.store()
    node.wait("b")
    node.wait("c")
    node.turn.store()
    assert len(first.pings) == 1
    first.reply()
    second.reply()
    assert node.done == ["a"]
    first.reply()
    second.reply()
    assert node.done == ["a", "b", "c"]


def test_a_link_that_is_lost_is_asked_again_when_it_is_back() -> None:
    node = Node()
    first, second = node.shards
    node.wait("a")
    node.turn.store()
    second.reply()
    first.reply(LinkLost())
    assert node.done == []
    node.flush.link_back(second)  # type: ignore[arg-type]
    assert not second.pings
    node.flush.link_back(first)  # type: ignore[arg-type]
    first.reply()
    assert node.done == ["a"]


def test_a_link_that_is_away_is_asked_when_it_is_back() -> None:
    node = Node()
    first, second = node.shards
    first.connected = False
    node.wait("a")
    node.turn.store()
    second.reply()
    assert not first.pings
    first.connected = True
    node.flush.link_back(first)  # type: ignore[arg-type]
    first.reply()
    assert node.done == ["a"]
