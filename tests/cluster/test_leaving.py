"""A node leaves: nothing that only it was to do is lost."""

import pytest

from flockmq._speedups.codec.packets import Suback, Subscribe
from flockmq.broker.core.will import Will
from flockmq.cluster.peers.wire import applied
from flockmq.cluster.redis.connector import function_library
from flockmq.cluster.sessions.wills import encode_will
from tests.conftest import StartCluster
from tests.harness.function_caller import Caller
from tests.harness.function_nodes import call_function
from tests.harness.socket_client import SocketClient

WILL = encode_will(b"c", Will(b"w", b"gone", 1, False))


def test_wills_that_it_has_just_got_from_a_dead_node_are_due_for_any_other(caller: Caller) -> None:
    """Its call for a dead node and its own end may wait in one pipeline: it never sees the wills."""
    epoch = caller.claimed(b"n2", b"c", 0, 4, WILL, 100, b"", 1, 0, 0)[0]
    assert caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0) == [[epoch, WILL]]
    caller.call("leave", b"n1")
    caller.call("join", b"n3", 1, [], b"mq:", b"")
    assert caller.call("due", b"n3", 100) == [0, [epoch, WILL]]


def test_a_node_that_joins_waits_for_one_that_leaves(start_cluster: StartCluster) -> None:
    """It still has clients, so they get what is published there after SUBACK (G4)."""
    cluster = start_cluster({"cluster.lease": 60}, nodes="a", running=False)
    cluster.redis.start()
    redis = cluster.redis.client(decode_responses=False)
    redis.function_load(function_library())
    for name, *arguments in (("join", 1, [], b"mq:", b""), ("ready",), ("leaving",)):
        call_function(redis, name, b"n1", *arguments)
    cluster.start()
    (node,) = set(redis.hkeys("mq:nodes")) - {b"n1"}
    with SocketClient(cluster["a"].port, "c") as client:
        client.send(Subscribe(1, [("t", 1)]))
        with pytest.raises(TimeoutError):
            client.receive(0.3)
        redis.publish(b"mq:to:" + node, applied(b"n1", int(redis.get("mq:change") or 0)))
        assert isinstance(client.receive(), Suback)
