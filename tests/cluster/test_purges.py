"""An operator ends a session while a node has its client: the session ends, also if that node dies or has no link."""

from typing import Any

import pytest

from tests.harness.function_caller import Caller
from tests.harness.stored_sessions import stored_queue, stored_session


def purged(caller: Caller) -> int:
    """A client at node `n2`, whose session is purged. Returns its epoch."""
    epoch = caller.claim(b"d")
    caller.send(1, b"n2", pushes=caller.push(b"d"))
    assert caller.call("purge", b"d") == [b"sent", b"n2"]
    return epoch


def remains(caller: Caller) -> list[Any]:
    return [*caller.redis.keys("*:d"), *caller.redis.smembers("mq:sessions"), *caller.redis.hkeys("mq:owned:n2")]


@pytest.fixture(autouse=True)
def _nothing_else(caller: Caller) -> None:
    for cid in (b"a", b"b", b"c"):
        caller.call("purge", cid)


@pytest.mark.parametrize("interval", [None, 0, 1001], ids=["as claimed", "as configured", "of DISCONNECT"])
def test_it_ends_with_a_connection_that_has_just_closed(caller: Caller, interval: int | None) -> None:
    """The node had no connection to close any more, and released the session afterwards: it stayed."""
    epoch = purged(caller)
    caller.send(2, b"n2", releases=[[b"d", epoch, 0, *([] if interval is None else [interval])]])
    assert remains(caller) == []


def test_it_ends_with_a_node_that_dies(caller: Caller) -> None:
    """The node did not receive the request: the session and its queue stayed."""
    purged(caller)
    caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
    assert caller.call("tidy", 100) == 1
    assert remains(caller) == []


def test_a_client_that_connects_elsewhere_begins_anew(caller: Caller) -> None:
    """The node of the session has no link, and closes nothing."""
    epoch = purged(caller)
    claimed, present, incarnation, *_ = caller.claimed(b"n1", b"d", 1, 5, b"", 100, b"", 0, 1000, 0)
    assert (present, incarnation) == (0, claimed)
    caller.send(2, b"n2", releases=[[b"d", epoch, 0]])
    assert stored_session(caller.redis, "d").incarnation == claimed
    assert stored_queue(caller.redis, "d") == []
