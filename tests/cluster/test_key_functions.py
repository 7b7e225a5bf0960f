"""Order by key in the functions of Redis: a key is bound to one node; its steps have numbers, so each counts once."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from flockmq._speedups.base.msgpack import pack, unpack
from flockmq._speedups.cluster.message_codec import encode_entry, encode_message
from tests.harness.commits import commit_arguments
from tests.harness.function_nodes import NODES, FunctionNodes
from tests.harness.redis_process import RedisProcess

GROUP = b"$share/g/t"
KEY, OTHER = b"\1\0\0\0", b"\2\0\0\0"
SETTINGS = {"strategy": "topic", "max_queued_messages": 4}


class Nodes(FunctionNodes):
    """Each has announced room for the group."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sequence = dict.fromkeys(NODES, 0)
        self.call("declare_group", b"n1", GROUP, json.dumps(SETTINGS))

    def commit(
        self,
        node: bytes,
        messages: list[bytes],
        shares: list[Any],
        moves: list[Any],
        pushes: list[Any] | None = None,
        **parts: Any,
    ) -> None:
        self.sequence[node] += 1
        parts |= {"shares": shares, "moves": moves, "pushes": pushes or []}
        reply = self.call("commit", node, *commit_arguments(self.sequence[node], messages=messages, **parts))
        assert isinstance(reply[0], int), reply

    def share(self, *keys: bytes) -> None:
        """New messages with these keys."""
        messages = [b"\x50" + key + bytes(8) + encode_message(b"t", b"x", 1, False) for key in keys]
        self.commit(b"n1", messages, [GROUP, range(1, len(keys) + 1)], [])

    def room(self, node: bytes, room: int) -> None:
        total = int(self.redis.hget("mq:go:" + GROUP.decode(), b"t:" + node) or 0)
        self.call("acks", node, [[], []], [[], [GROUP, room, 1, total, 0], [], []])

    def idle(self, node: bytes, number: int, *done: int) -> None:
        """All messages of the key are done; `number`: of its last assignment that the node has."""
        ended = [part for place in done for part in (GROUP, place)]
        self.call("acks", node, [[], []], [ended, [], [GROUP, KEY, number], []])

    def connect(self, node: bytes, client_id: bytes) -> tuple[int, int]:
        """A client with a persistent session connects: epoch and incarnation."""
        epoch, _, incarnation, *_ = self.claimed(node, client_id, 1, 4, b"", 100, b"", 0, 3600, 0)
        return epoch, incarnation

    def give(self, node: bytes, client_id: bytes, incarnation: int, *places: int) -> None:
        """The node puts these messages with KEY into the queue of a session."""
        message = encode_message(b"t", b"x", 1, False)
        entries = [encode_entry(message, group=GROUP, place=place, key=1) for place in places]
        moves = [part for place in places for part in (b"given", GROUP, place, client_id, incarnation, 0)]
        self.commit(node, entries, [], moves, [[client_id, incarnation, *range(1, len(places) + 1)]])

    def release(self, node: bytes, client_id: bytes, epoch: int, sent: int) -> None:
        """The connection ends, the messages from the number `sent` on were not sent; the node asks for KEY."""
        self.commit(node, [], [], [], releases=[[client_id, epoch, sent]], checked_keys=[GROUP, KEY, 1])

    def give_up(self, node: bytes, number: int) -> None:
        self.commit(node, [], [], [], closed_keys=[GROUP, KEY, number])

    def assignments(self, node: bytes) -> dict[int, int]:
        """Place -> number of the assignment."""
        found = self.redis.hgetall(b"mq:gl:" + node + b" " + GROUP)
        return {int(place): int(struct.unpack("<d", message[5:13])[0]) for place, message in found.items()}

    @property
    def bound(self) -> list[bytes]:
        """The node of each key that is bound."""
        return [value.split(b" ")[3] for value in self.redis.hvals(b"mq:gk:" + GROUP)]

    @property
    def waiting(self) -> int:
        return int(self.redis.llen(b"mq:gw:" + GROUP) + self.redis.zcard(b"mq:gq:" + GROUP))


@pytest.fixture
def nodes(redis_server: RedisProcess) -> Iterator[Nodes]:
    made = Nodes(redis_server.port)
    made.room(b"n1", 1)
    yield made
    made.close()


def test_a_key_stays_with_its_node_and_others_wait_for_room(nodes: Nodes) -> None:
    nodes.share(KEY, KEY)
    nodes.room(b"n2", 1)
    nodes.share(KEY, OTHER)
    assert nodes.assignments(b"n1") == {1: 1, 2: 2, 3: 3}
    assert nodes.assignments(b"n2") == {4: 4}
    nodes.share(b"\3\0\0\0", KEY)
    assert nodes.waiting == 2, "nothing passes what waits"
    nodes.room(b"n2", 1)
    assert (nodes.assignments(b"n1"), nodes.assignments(b"n2")) == ({1: 1, 2: 2, 3: 3, 6: 6}, {4: 4, 5: 5})


def test_a_key_is_idle_with_its_last_lease_only(nodes: Nodes) -> None:
    nodes.share(KEY, KEY)
    nodes.idle(b"n1", 1, 1)  # the second is under way
    assert nodes.bound == [b"n1"]
    nodes.idle(b"n2", 2)
    assert nodes.bound == [b"n1"]
    nodes.idle(b"n1", 2, 2)
    assert nodes.bound == []
    nodes.room(b"n2", 1)
    nodes.share(KEY)
    nodes.idle(b"n1", 2)  # sent again
    assert nodes.bound == [b"n2"]


def test_a_node_gives_a_key_up_when_it_has_all_its_assignments(nodes: Nodes) -> None:
    nodes.share(KEY, KEY)
    nodes.room(b"n1", 0)
    nodes.room(b"n2", 9)
    nodes.give_up(b"n1", 1)  # the second is under way
    assert nodes.assignments(b"n1") == {1: 1, 2: 2}
    nodes.share(KEY, OTHER)
    assert (nodes.assignments(b"n2"), nodes.waiting) == ({}, 2), "they must not pass it"
    nodes.give_up(b"n1", 2)
    assert nodes.assignments(b"n1") == {}
    assert nodes.assignments(b"n2") == {1: 3, 2: 4, 3: 5, 4: 6}
    nodes.give_up(b"n1", 2)  # sent again
    assert (nodes.assignments(b"n1"), len(nodes.assignments(b"n2"))) == ({}, 4)


def test_a_move_that_is_sent_again_does_not_close_the_next_binding(nodes: Nodes) -> None:
    nodes.share(KEY, KEY)
    nodes.room(b"n1", 9)
    nodes.give_up(b"n1", 2)
    assert nodes.assignments(b"n1") == {1: 3, 2: 4}, "no other node has room"
    nodes.give_up(b"n1", 2)  # sent again
    nodes.share(KEY)
    assert nodes.assignments(b"n1") == {1: 3, 2: 4, 3: 5}
    nodes.room(b"n1", 0)
    nodes.room(b"n2", 9)
    nodes.give_up(b"n1", 3)  # the last two are under way
    nodes.share(KEY)
    assert (nodes.assignments(b"n2"), nodes.waiting) == ({}, 1)
    nodes.give_up(b"n1", 5)
    assert nodes.assignments(b"n1") == {}
    assert nodes.assignments(b"n2") == {1: 6, 2: 7, 3: 8, 4: 9}


def test_a_node_has_no_more_than_may_wait(nodes: Nodes) -> None:
    nodes.share(*[KEY] * 6)
    assert (len(nodes.assignments(b"n1")), nodes.waiting) == (4, 2)
    nodes.idle(b"n1", 4, 1, 2, 3, 4)
    nodes.room(b"n1", 1)
    assert (len(nodes.assignments(b"n1")), nodes.waiting) == (2, 0)


def test_the_keys_of_a_dead_node_go_to_another_one(nodes: Nodes) -> None:
    nodes.share(KEY, KEY, KEY)
    nodes.room(b"n2", 1)
    nodes.call("leave", b"n1")
    assert (nodes.bound, nodes.assignments(b"n2")) == ([b"n2"], {1: 4, 2: 5, 3: 6})


def test_a_message_that_comes_back_reaches_the_node_of_its_key_before_the_key_is_free(nodes: Nodes) -> None:
    """Although an older one waits that no node has room for, and the node has as many later ones as it may have."""
    nodes.room(b"n1", 0)
    nodes.room(b"n2", 1)
    nodes.share(OTHER)
    nodes.room(b"n1", 1)
    epoch, incarnation = nodes.connect(b"n1", b"w")
    nodes.share(KEY, KEY, KEY, KEY)
    nodes.give(b"n1", b"w", incarnation, 2, 3, 4)
    nodes.share(KEY, KEY, KEY)
    nodes.call("leave", b"n2")
    assert nodes.waiting == 1
    with nodes.redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("mq:to:n1")
        nodes.release(b"n1", b"w", epoch, 1)
        nodes.redis.publish("mq:to:n1", pack([b"end"]))
        pushes = list(iter(lambda: next_push(channel), [b"end"]))
    (assigned, items, _), (free, *_) = pushes
    assert (assigned, items[1::3], free) == (b"assigned", [2, 3, 4], b"key_free")
    assert nodes.assignments(b"n1").keys() == {2, 3, 4, 5, 6, 7, 8}
    assert (nodes.waiting, nodes.bound) == (1, [b"n1"])


def next_push(channel: redis.client.PubSub) -> Any:
    message = next(channel.listen())  # type: ignore[no-untyped-call]
    return unpack(message["data"])
