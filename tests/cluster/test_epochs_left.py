"""A session that has ended leaves the epochs that are not released: the next connection waits for them."""

from tests.harness.function_caller import Caller

CLEAN = (0, 5, b"", 100, b"", 1, 0, 0)  # arguments of a claim: a clean session


def left(caller: Caller) -> tuple[int, int]:
    """Node `n2` has a connection of the client; the next one, at `n1`, waits for it, and ends. Returns both epochs."""
    first = caller.claimed(b"n2", b"c1", *CLEAN)[0]
    second, *_, waits, _, _, _ = caller.claimed(b"n1", b"c1", *CLEAN)
    assert waits == [first, b"n2"]
    caller.commit(releases=[[b"c1", second, 0]])
    return first, second


def test_the_next_connection_waits_for_what_the_last_one_waited_for(caller: Caller) -> None:
    first, _ = left(caller)
    _, present, _, waits, *_ = caller.claimed(b"n1", b"c1", *CLEAN)
    assert not present
    assert waits == [first, b"n2"]


def test_it_ends_with_the_last_release(caller: Caller) -> None:
    first, _ = left(caller)
    assert caller.redis.exists("mq:s:c1")
    assert caller.send(1, node=b"n2", releases=[[b"c1", first, 0]])
    assert not caller.redis.exists("mq:s:c1")


def test_it_ends_with_the_node(caller: Caller) -> None:
    left(caller)
    caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
    assert caller.call("tidy", 100) == 1
    assert not caller.redis.exists("mq:s:c1")


def test_a_persistent_session_that_expires_meanwhile(caller: Caller) -> None:
    first = caller.claimed(b"n2", b"c1", 1, 5, b"", 100, b"", 0, 0, 0)[0]
    second = caller.claimed(b"n1", b"c1", 1, 5, b"", 100, b"", 0, 0, 0)[0]
    caller.commit(releases=[[b"c1", second, 0]])
    _, present, _, waits, *_ = caller.claimed(b"n1", b"c1", 1, 5, b"", 100, b"", 0, 1000, 0)
    assert not present
    assert waits == [first, b"n2"]
