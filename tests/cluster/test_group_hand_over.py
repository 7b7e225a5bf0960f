"""Functions of Redis for messages that go to sessions of other shards than their group, and back: CLUSTER.md."""

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import pack
from flockmq._speedups.cluster.message_codec import decode_entry, encode_entry, encode_message
from flockmq.cluster.sessions.wills import way_back_of
from tests.cluster.test_key_functions import GROUP, KEY, Nodes
from tests.harness.redis_process import RedisProcess

MESSAGE = encode_message(b"t", b"x", 1, False)


@pytest.fixture
def nodes(redis_server: RedisProcess) -> Iterator[Nodes]:
    made = Nodes(redis_server.port)
    yield made
    made.close()


DIGEST = hashlib.sha1(b"tx", usedforsecurity=False).digest()[:4]


def number_of(place: int, client_id: bytes = b"a", digest: bytes = DIGEST) -> bytes:
    return struct.pack("<cQ4sH", b"g", place, digest, len(client_id)) + client_id + GROUP


def offer(nodes: Nodes, incarnation: int, place: int = 7, *, key: int = -1, qos: int = 1) -> None:
    """The node `n2` puts a message of a group of another shard into the queue of a session."""
    message = encode_message(b"t", b"x", qos, False)
    entry = encode_entry(message, group=GROUP, place=place, key=key, foreign=True)
    nodes.commit(b"n2", [entry], [], [], [[b"a", incarnation, 1]], numbered=[number_of(place), [[1], [], [], []]])


def forget(nodes: Nodes, place: int = 7) -> None:
    nodes.commit(b"n2", [], [], [], forgotten=[number_of(place)])


def on_their_way(nodes: Nodes, node: bytes = b"n1") -> list[tuple[int, bytes, int, bytes]]:
    """Epoch, group, place and message with its heads, of what the node is to write to other shards."""
    _, wills = nodes.call("due", node, 100)
    found = [(epoch, way_back_of(will)) for epoch, will in zip(wills[::2], wills[1::2], strict=True)]
    return [(epoch, *way_back) for epoch, way_back in found if way_back is not None]


def test_a_number_stands_for_an_entry_of_a_queue(nodes: Nodes) -> None:
    _, incarnation = nodes.connect(b"n2", b"a")
    offer(nodes, incarnation + 1)
    assert nodes.call("offered", [number_of(7)]) == [0], "the session has ended"
    offer(nodes, incarnation)
    assert nodes.call("offered", [number_of(7)]) == [1]
    forget(nodes)
    assert nodes.call("offered", [number_of(7)]) == [0]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_message_that_was_not_sent_goes_back_when_its_assignment_has_ended(
    nodes: Nodes, *, is_forgotten: bool
) -> None:
    epoch, incarnation = nodes.connect(b"n2", b"a")
    offer(nodes, incarnation, key=1)
    if is_forgotten:
        forget(nodes)
    assert nodes.call("has_key", b"a", GROUP, KEY) == 1
    nodes.commit(b"n2", [], [], [], releases=[[b"a", epoch, 0]])
    assert nodes.call("has_key", b"a", GROUP, KEY) == 1, "it is on its way"
    if not is_forgotten:
        assert on_their_way(nodes) == []
        forget(nodes)
        nodes.redis.zadd("mq:delayed", {nodes.redis.zrange("mq:delayed", 0, 0)[0]: 0})
    ((will, group, place, message),) = on_their_way(nodes)
    assert (group, place) == (GROUP, 7)
    assert decode_entry(message)[0] == MESSAGE
    assert nodes.call("needed", [struct.pack("<cBQ", b"w", 0, will)]) == [1]
    nodes.commit(b"n1", [], [], [], wills=[b"settled", will, 0])
    assert nodes.call("has_key", b"a", GROUP, KEY) == 0
    assert nodes.call("needed", [struct.pack("<cBQ", b"w", 0, will)]) == [0]


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_that_were_sent_stay_until_the_session_ends(nodes: Nodes, qos: int) -> None:
    """Then those of QoS 1 go back with a failure more; QoS 2 never does. [5: MQTT-4.8.2-5]"""
    epoch, incarnation = nodes.connect(b"n2", b"a")
    offer(nodes, incarnation, qos=qos)
    forget(nodes)
    nodes.commit(b"n2", [], [], [], releases=[[b"a", epoch, 1 << 40]])
    assert on_their_way(nodes) == []
    nodes.call("purge", b"a")
    found = on_their_way(nodes)
    assert len(found) == (qos == 1)
    for _, _, _, message in found:
        assert decode_entry(message)[6] >> 8 == 1


def test_a_node_that_dies_passes_on_what_goes_back(nodes: Nodes) -> None:
    epoch, incarnation = nodes.connect(b"n2", b"a")
    offer(nodes, incarnation)
    forget(nodes)
    nodes.commit(b"n2", [], [], [], releases=[[b"a", epoch, 0]])
    ((will, *rest),) = on_their_way(nodes, b"n2")
    (wills,) = nodes.call("bury", b"n1", b"n2", b"", 1)
    assert (wills[0], list(way_back_of(wills[1]) or ())) == (will, rest)


def returned(nodes: Nodes, node: bytes, number: bytes, place: int = 7) -> None:
    nodes.commit(node, [], [], [b"returned", GROUP, place, number + MESSAGE, 0, 0])


def test_a_message_comes_back_once(nodes: Nodes) -> None:
    nodes.share(KEY)  # the group has a subscriber
    number = struct.pack("<cBQ", b"w", 1, 9)
    before = nodes.waiting
    for node in (b"n1", b"n2"):
        returned(nodes, node, number)
    assert nodes.waiting == before + 1
    nodes.commit(b"n1", [], [], [], forgotten=[number])
    assert not nodes.redis.exists("mq:once")


# ---- the shard of the group, when a node dies ----


def in_doubt(nodes: Nodes) -> dict[int, int]:
    """The node `n2` dies with three assignments."""
    nodes.room(b"n2", 3)
    nodes.share(KEY, KEY, KEY)
    nodes.call("bury", b"n1", b"n2", b"", 1)
    return nodes.assignments(b"n2")


def test_assignments_of_a_dead_node_are_in_doubt(nodes: Nodes) -> None:
    assert in_doubt(nodes) == {1: 1, 2: 2, 3: 3}
    assert nodes.call("in_doubt") == [b"n2"]
    assert nodes.call("needed", [number_of(1), number_of(4), number_of(1, digest=b"else")]) == [1, 0, 0]
    nodes.room(b"n1", 10)
    nodes.share(KEY)
    assert nodes.assignments(b"n1") == {}, "the key waits"
    nodes.call("end_doubt", b"n2", [[GROUP, 1, b"a", DIGEST], [GROUP, 2, b"a", b"else"]])
    assert nodes.call("in_doubt") == []
    assert nodes.assignments(b"n2") == {}
    assert sorted(nodes.assignments(b"n1")) == [2, 3, 4]
    assert [value.split(b" ")[4] for value in nodes.redis.hvals(b"mq:gk:" + GROUP)] == [b"\xffa"]
    nodes.call("end_doubt", b"n2", [[GROUP, 2, b"a", DIGEST]])
    assert sorted(nodes.assignments(b"n1")) == [2, 3, 4], "a second call has no effect"


def test_a_key_goes_on_when_all_assignments_of_its_dead_node_have_ended(nodes: Nodes) -> None:
    in_doubt(nodes)
    nodes.room(b"n1", 10)
    nodes.share(KEY)
    nodes.call("end_doubt", b"n2", [[GROUP, place, b"a", DIGEST] for place in (1, 2, 3)])
    assert sorted(nodes.assignments(b"n1")) == [4]


def test_the_numbers_of_a_node_are_listed_when_it_is_dead(nodes: Nodes) -> None:
    _, incarnation = nodes.connect(b"n1", b"a")
    offer(nodes, incarnation)
    assert nodes.call("offered_by", b"n2") == [b"lives"]
    nodes.call("bury", b"n1", b"n2", b"", 1)
    assert nodes.call("offered_by", b"n2") == [[[GROUP, 7, b"a", DIGEST]]]


def test_a_node_that_holds_a_key_learns_which_session_has_it(nodes: Nodes) -> None:
    nodes.room(b"n2", 3)
    nodes.share(KEY)
    told: list[Any] = []
    nodes.commit(b"n2", [], [], [b"moved", GROUP, 1, b"a", 0, 0])
    assert nodes.assignments(b"n2") == {}
    nodes.told.subscribe("mq:to:n2")
    nodes.commit(b"n2", [], [], [], checked_keys=[GROUP, KEY, 5])
    while not told:
        if message := nodes.told.get_message(timeout=1):
            told.append(message["data"])
    assert told == [pack([b"key_elsewhere", GROUP, KEY, 5, b"a"])]
