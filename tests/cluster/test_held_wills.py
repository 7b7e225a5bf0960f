"""The delayed will of a session is held while a later connection has claimed it: a client that is admitted drops it."""

import pytest

from flockmq.broker.core.will import Will
from flockmq.cluster.sessions.wills import encode_will
from tests.harness.function_caller import Caller
from tests.harness.stored_sessions import stored_session

DELAY = 100  # seconds
WILL = encode_will(b"c1", Will(b"will", b"x", 1, False, b"", DELAY, b""))


def claimed(caller: Caller, node: bytes) -> int:
    """The epoch of a connection to the session `c1`."""
    return int(caller.claimed(node, b"c1", 1, 5, WILL, 100, b"", 0, 1000, 0)[0])


def ended(caller: Caller, epoch: int, node: bytes = b"n1", seq: int = 0) -> None:
    """An admitted connection ends; its will waits for its delay."""
    assert caller.send(seq or caller.seq + 1, node=node, releases=[[b"c1", epoch, 1, 1000, DELAY]])
    caller.seq += not seq


def waiting(caller: Caller) -> list[int]:
    """The epochs of the wills that will be published."""
    return [int(epoch) for epoch in caller.redis.zrange("mq:delayed", 0, -1)]


def held_by_load(caller: Caller) -> int:
    *_, epoch = caller.call("load", b"c1", 1, 100)
    return int(epoch)


def test_a_client_that_is_not_admitted_discards_nothing(caller: Caller) -> None:
    first = claimed(caller, b"n1")
    ended(caller, first)
    due = caller.redis.zscore("mq:delayed", first)
    second = claimed(caller, b"n1")
    assert waiting(caller) == []
    assert held_by_load(caller) == first
    caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    assert waiting(caller) == [first]
    assert caller.redis.zscore("mq:delayed", first) == due
    assert caller.redis.hget("mq:delayed:wills", first) == WILL
    assert not caller.redis.hexists("mq:rare:c1", "held")


def test_a_client_that_is_admitted_discards_it(caller: Caller) -> None:
    first = claimed(caller, b"n1")
    ended(caller, first)
    second = claimed(caller, b"n1")
    caller.commit(wills=[b"dropped", held_by_load(caller), 0])
    assert not caller.redis.exists("mq:delayed:wills")
    ended(caller, second)
    assert waiting(caller) == [second]
    assert not caller.redis.hexists("mq:rare:c1", "held")


def test_the_release_of_an_admitted_client_discards_it(caller: Caller) -> None:
    """Also if the commit of the admission is lost."""
    first = claimed(caller, b"n1")
    ended(caller, first)
    second = claimed(caller, b"n1")
    caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second, 1]])
    assert waiting(caller) == []
    assert not caller.redis.exists("mq:delayed:wills")


def test_a_release_that_is_repeated_discards_nothing(caller: Caller) -> None:
    """The node has released the connection just before it is asked to, as another one has the session."""
    first = claimed(caller, b"n2")
    second = claimed(caller, b"n1")
    ended(caller, first, node=b"n2", seq=1)
    assert caller.send(2, node=b"n2", wills=[b"settled", first, 0], releases=[[b"c1", first]])
    caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    assert waiting(caller) == [first]
    assert caller.redis.hkeys("mq:delayed:wills") == [b"%d" % first]


@pytest.mark.parametrize("waits", [False, True], ids=["gone before", "gone later"])
def test_a_release_after_the_claim_of_a_client_that_is_not_admitted(caller: Caller, waits: bool) -> None:
    first = claimed(caller, b"n2")
    second = claimed(caller, b"n1")
    if not waits:
        caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    ended(caller, first, node=b"n2", seq=1)
    if waits:
        assert waiting(caller) == []
        assert held_by_load(caller) == first
        caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    assert waiting(caller) == [first]


@pytest.mark.parametrize("waits", [False, True], ids=["gone before", "gone later"])
def test_a_burial_after_the_claim_of_a_client_that_is_not_admitted(caller: Caller, waits: bool) -> None:
    first = claimed(caller, b"n2")
    second = claimed(caller, b"n1")
    if not waits:
        caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    assert caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0) == [[]]
    caller.call("tidy", 100)
    if waits:
        assert waiting(caller) == []
        assert held_by_load(caller) == first
        caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    assert waiting(caller) == [first]
    assert stored_session(caller.redis, "c1").waits == b""


def test_the_node_of_a_client_that_may_have_been_admitted_dies(caller: Caller) -> None:
    first = claimed(caller, b"n1")
    ended(caller, first)
    second = claimed(caller, b"n2")
    assert caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0) == [[]]
    caller.call("tidy", 100)
    assert waiting(caller) == [second]
    assert caller.redis.hkeys("mq:delayed:wills") == [b"%d" % second]


def test_a_session_that_ends_before_its_dead_node_is_tidied(caller: Caller) -> None:
    first = claimed(caller, b"n2")
    second = claimed(caller, b"n1")
    caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
    assert waiting(caller) == []
    caller.call("purge", b"c1")
    assert caller.redis.zrange("mq:delayed", 0, -1, withscores=True) == [(b"%d" % first, 0)]
    assert caller.redis.hget("mq:delayed:wills", first) == WILL


def test_only_the_will_of_the_last_connection_is_held(caller: Caller) -> None:
    """Two nodes are dead: the node with the later connection is buried first."""
    caller.call("join", b"n3", 1, [], b"mq:", b"")
    claimed(caller, b"n2")
    second = claimed(caller, b"n3")
    third = claimed(caller, b"n1")
    for node in ("n3", "n2"):
        assert caller.call("bury", b"n1", node, caller.redis.hget("mq:nodes", node), 0) == [[]]
    assert caller.redis.hkeys("mq:delayed:wills") == [b"%d" % second]
    assert held_by_load(caller) == second
    for _ in range(3):
        caller.call("tidy", 100)
    caller.commit(wills=[b"settled", third, 0], releases=[[b"c1", third]])
    assert waiting(caller) == [second]


def test_a_session_that_has_ended_before_the_release(caller: Caller) -> None:
    """The earlier connection is released after its session has expired: its will is due at once."""
    first = claimed(caller, b"n2")
    second = claimed(caller, b"n1")
    caller.commit(wills=[b"settled", second, 0], releases=[[b"c1", second]])
    caller.call("purge", b"c1")
    ended(caller, first, node=b"n2", seq=1)
    assert caller.redis.zrange("mq:delayed", 0, -1, withscores=True) == [(b"%d" % first, 0)]


def test_a_session_that_ends_takes_it_along(caller: Caller) -> None:
    first = claimed(caller, b"n1")
    ended(caller, first)
    claimed(caller, b"n1")
    caller.claimed(b"n1", b"c1", 0, 5, b"", 100, b"", 1, 0, 0)
    assert not caller.redis.exists("mq:delayed:wills", "mq:delayed")
