"""Claims of clients that were admitted without Redis: they take no session from a connection that may be later (G5)."""

from typing import Any

from tests.harness.function_caller import Caller
from tests.harness.stored_sessions import stored_session

CLEAN = (0, 5, b"", 100, b"", 1, 0, 0)  # arguments of a claim: a clean session
WITHOUT_REDIS = (*CLEAN[:-1], 1)


def claimed(caller: Caller, node: bytes) -> Any:
    """The reply to the node's claim for a client that it has admitted without Redis."""
    return caller.claimed(node, b"c1", *WITHOUT_REDIS)


def test_a_connection_since_the_last_heartbeat_keeps_its_session(caller: Caller) -> None:
    caller.call("beat", b"n1", 100, [])
    epoch = caller.claimed(b"n2", b"c1", *CLEAN)[0]
    caller.call("confirm", b"n1")  # over a new link: Redis keeps its notes of the last link
    assert claimed(caller, b"n1") == [b"taken"]
    session = stored_session(caller.redis, "c1")
    assert (session.owner, session.epoch) == (b"n2", epoch)
    assert caller.redis.smembers("mq:owned:n1") == set()


def test_an_earlier_connection_is_taken_over(caller: Caller) -> None:
    epoch = caller.claimed(b"n2", b"c1", *CLEAN)[0]
    caller.call("beat", b"n1", 100, [])
    assert claimed(caller, b"n1")[3] == [epoch, b"n2"]
    assert stored_session(caller.redis, "c1").owner == b"n1"


def test_a_connection_of_the_same_node_is_earlier(caller: Caller) -> None:
    caller.call("beat", b"n1", 100, [])
    epoch = caller.claimed(b"n1", b"c1", *CLEAN)[0]
    assert claimed(caller, b"n1")[3] == [epoch, b"n1"]


def test_a_dead_node_has_no_connection(caller: Caller) -> None:
    caller.call("beat", b"n1", 100, [])
    caller.claimed(b"n2", b"c1", *CLEAN)
    caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
    assert len(claimed(caller, b"n1")) > 1


def test_a_damaged_counter_of_epochs_ends_no_heartbeat(caller: Caller) -> None:
    caller.redis.delete("mq:epoch")
    caller.redis.rpush("mq:epoch", "damaged")
    assert caller.call("resume", b"n1", 0)[0] == caller.seq
