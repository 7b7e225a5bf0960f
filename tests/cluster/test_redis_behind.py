"""How a node that comes back notices that Redis lacks what it has seen: counts of calls, ends of queues and groups."""

from collections.abc import Iterator

import pytest

from _speedups.base.msgpack import pack
from cluster.redis.connector import function_library
from tests.cluster.test_damaged_keys import Caller
from tests.harness.redis_process import RedisProcess


@pytest.fixture
def caller(redis_server: RedisProcess) -> Iterator[Caller]:
    made = Caller(redis_server.port)
    yield made
    made.redis.close()


def lost(caller: Caller, node: bytes, expected: int, incarnation: int = 0) -> list[bytes]:
    """The sessions of which Redis lacks messages, of session `a` alone, whose next number at the node is this."""
    found: list[bytes] = caller.call("lost", node, b"a", incarnation or caller.incarnation(b"a"), expected)
    return found


def test_claims_and_acknowledgements_are_counted(caller: Caller) -> None:
    """They have no numbers of their own; calls that take no effect do not count."""
    assert caller.redis.hget("mq:node:n1", "calls") == b"3"
    caller.call("acks", b"n1", pack([[b"a", caller.incarnation(b"a"), [1], []]]))
    assert caller.redis.hget("mq:node:n1", "calls") == b"4"
    assert caller.call("acks", b"nobody", pack([])) == [b"gone"]
    assert not caller.redis.exists("mq:node:nobody")
    assert caller.redis.hget("mq:node:n2", "calls") is None


def test_a_damaged_count_keeps_no_acknowledgement_back(caller: Caller) -> None:
    caller.commit(pushes=caller.push(b"a"))
    caller.redis.hset("mq:node:n1", "calls", "damaged")
    assert caller.call("acks", b"n1", pack([[b"a", caller.incarnation(b"a"), [1], []]])) == [b"ok"]
    assert caller.redis.llen("mq:q:a") == 0


def test_numbers_that_are_used_again_are_lost(caller: Caller) -> None:
    """Two numbers that the node has, and that this process of Redis has given to other messages."""
    caller.redis.function_load(function_library(), replace=True)  # its variables are new, as those of a new process
    caller.commit(pushes=caller.push(b"a", b"a"))
    assert lost(caller, b"n2", 4) == [b"a"]
    assert lost(caller, b"n2", 3) == [b"a"]
    assert lost(caller, b"n2", 1) == []
    assert lost(caller, b"n2", 3, caller.incarnation(b"a") + 1) == []
    assert lost(caller, b"n2", 3, caller.incarnation(b"b")) == []


def test_a_node_that_has_come_back_has_the_numbers_of_this_process(caller: Caller) -> None:
    caller.redis.function_load(function_library(), replace=True)
    caller.commit(pushes=caller.push(b"a", b"a"))
    caller.call("beat", b"n2")  # over a new link, before it has compared
    assert lost(caller, b"n2", 3) == [b"a"]
    caller.call("beat", b"n2", "elapsed", 100)
    assert lost(caller, b"n2", 3) == []
    assert lost(caller, b"n2", 4) == [b"a"]
    assert lost(caller, b"n1", 3) == [b"a"]


def test_acknowledged_messages_are_not_lost(caller: Caller) -> None:
    """The queue is empty, and ends where it ended."""
    caller.commit(pushes=caller.push(b"a", b"a"))
    caller.call("acks", b"n1", pack([[b"a", caller.incarnation(b"a"), [1, 2], []]]))
    caller.redis.function_load(function_library(), replace=True)
    assert lost(caller, b"n2", 3) == []
    caller.commit(pushes=caller.push(b"a"))
    assert lost(caller, b"n2", 3) == []
    assert lost(caller, b"n2", 4) == [b"a"]


def test_places_of_a_group_that_are_used_again_are_lost(caller: Caller) -> None:
    group = b"$share/g/t"
    shares: list[object] = [100, 1 << 20, 0, group, 1]

    def lost_places(node: bytes, place: int) -> list[bytes]:
        found: list[bytes] = caller.call("lost_places", node, group, place)
        return found

    caller.call("beat", b"n2", "elapsed", 100)
    caller.call("declare_group", b"n1", group, "{}")
    caller.commit(shares=shares)
    assert lost_places(b"n2", 1) == []
    assert lost_places(b"n2", 2) == [group]
    caller.redis.function_load(function_library(), replace=True)
    caller.commit(shares=shares)
    assert lost_places(b"n2", 1) == []
    assert lost_places(b"n2", 2) == [group]
    caller.call("beat", b"n2", "elapsed", 100)
    assert lost_places(b"n2", 2) == []
    assert lost_places(b"n2", 3) == [group]
