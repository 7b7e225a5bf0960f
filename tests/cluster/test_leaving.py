"""A node leaves: nothing that only it was to do is lost."""

from flockmq.broker.core.will import Will
from flockmq.cluster.sessions.wills import encode_will
from tests.harness.function_caller import Caller

WILL = encode_will(b"c", Will(b"w", b"gone", 1, False))


def test_wills_that_it_has_just_got_from_a_dead_node_are_due_for_any_other(caller: Caller) -> None:
    """Its call for a dead node and its own end may wait in one pipeline: it never sees the wills."""
    epoch = caller.call("claim", b"n2", b"c", 0, 4, WILL, 100, b"", 1, 0, 0)[0]
    assert caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2")) == [epoch, WILL]
    caller.call("leave", b"n1")
    caller.call("join", b"n3", 1, [])
    assert caller.call("due", b"n3", 100) == [0, [epoch, WILL]]
