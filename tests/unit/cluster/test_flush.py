"""Flush: SUBACK waits for the barriers of the shards with its changes, then for a reply of each that is not away."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flockmq.cluster.redis.link import LinkLost
from flockmq.cluster.replication.flush import SILENT_SECONDS, Flush

FIRST, SECOND, BOTH = 1, 2, 3  # shards, as bits


class Turn:
    """A turn whose records are stored when it is told so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def after_commit(self, callback: Callable[[], object], shards: int = -1) -> None:
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
        self.silent_for = 0.0
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
        self.loop = asyncio.new_event_loop()
        self.flush = Flush(self.turn, self.loop)  # type: ignore[arg-type]
        self.shards = [Shard(), Shard()]
        for shard in self.shards:
            self.flush.attach(shard, shard)  # type: ignore[arg-type]
        self.done: list[str] = []

    def wait(self, name: str, shards: int = BOTH) -> None:
        self.flush.when_flushed(lambda: self.done.append(name), shards)

    def pass_time(self) -> None:
        """Long enough for a shard that is silent to count as away."""
        self.loop.run_until_complete(asyncio.sleep(SILENT_SECONDS + 0.02))


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.loop.close()


def test_a_subscription_waits_for_all_barriers_and_then_for_all_links(node: Node) -> None:
    first, second = node.shards
    node.flush.when_applied(lambda: node.done.append("suback"), BOTH)
    assert not first.applied
    node.turn.store()
    first.applied.pop()()
    assert not first.pings
    second.applied.pop()()
    first.reply()
    assert node.done == []
    second.reply()
    assert node.done == ["suback"]


def test_those_that_come_while_a_question_is_under_way_wait_for_the_next_one(node: Node) -> None:
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


def test_a_link_that_is_lost_is_asked_again_when_it_is_back(node: Node) -> None:
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


def test_a_link_that_is_away_is_asked_when_it_is_back(node: Node) -> None:
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


def test_a_subscription_does_not_wait_for_a_shard_without_its_changes_that_is_away(node: Node) -> None:
    first, second = node.shards
    second.connected = False
    node.flush.when_applied(lambda: node.done.append("suback"), FIRST)
    node.turn.store()
    assert not second.applied
    first.applied.pop()()
    assert node.done == []
    first.reply()
    assert node.done == ["suback"]


def test_a_shard_that_does_not_reply_is_waited_for_only_for_a_while(node: Node) -> None:
    first, second = node.shards
    node.flush.when_applied(lambda: node.done.append("suback"), FIRST)
    node.turn.store()
    first.applied.pop()()
    first.reply()
    node.pass_time()
    assert node.done == []  # it replies slowly
    second.silent_for = 1.0
    node.pass_time()
    assert node.done == ["suback"]
    second.reply()
    node.wait("later")
    node.turn.store()
    first.reply()
    second.reply()
    assert node.done == ["suback", "later"]


def test_changes_are_applied_although_a_shard_stores_nothing(node: Node) -> None:
    """The other nodes would wait for that with each SUBACK."""
    node.flush.when_stored(lambda: node.done.append("applied"))
    (all_stored,) = node.turn.waiting
    node.shards[1].silent_for = 1.0
    node.pass_time()
    assert len(node.turn.waiting) == 2  # the second one waits for the first shard only
    node.turn.waiting[1]()
    assert node.done == ["applied"]
    all_stored()
    assert node.done == ["applied"]
    node.flush.when_stored(lambda: node.done.append("next"))
    node.turn.waiting[-1]()
    assert node.done == ["applied", "next"]
