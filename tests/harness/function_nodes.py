"""Nodes that are no more than their calls of the function library in Redis, and the messages that one of them gets."""

from typing import Any

import redis

from flockmq._speedups.base.msgpack import pack
from flockmq.cluster.redis.calls import CALLS
from flockmq.cluster.redis.connector import function_library
from flockmq.cluster.redis.kinds import Outcomes

NODES = (b"n1", b"n2")


def call_function(client: redis.Redis, name: str, *arguments: Any) -> Any:
    """Call a function of the library. Lists and tuples are packed.

    Returns:
        The reply, whose form is checked. Of the outcome `ok` its fields.
    """
    call = CALLS[name]
    encoder = client.connection_pool.get_encoder()  # type: ignore[no-untyped-call]
    texts = [pack(each) if isinstance(each, (list, tuple)) else encoder.encode(each) for each in arguments]
    assert not (problem := call.problem([b"mq:", *texts])), problem
    reply: Any = client.fcall("flockmq_" + name, 0, "mq:", *texts)
    assert not (problem := call.reply.problem(reply)), problem
    return reply[1:] if isinstance(call.reply, Outcomes) and reply[0] == b"ok" else reply


def claim_session(
    client: redis.Redis,
    node: bytes,
    cid: bytes,
    persistent: int,
    level: int,
    will: bytes,
    max_sessions: int,
    user: bytes,
    clean_start: int,
    interval: int | bytes | str,
    without_redis: int,
) -> Any:
    """Claim a session. Returns the fields of a claim that is granted, but for the session; or the outcome."""
    claim = (cid, persistent, level, will, user, clean_start, interval, without_redis)
    reply = call_function(client, "claims", node, max_sessions, [claim])
    if reply == [b"gone"]:
        return reply
    outcome, *fields = reply[0][0]
    return fields[:-1] if outcome == b"ok" else [outcome, *fields]


class FunctionNodes:
    """Nodes `n1` and `n2`.

    Args:
        port: of a Redis without keys.
    """

    def __init__(self, port: int) -> None:
        self.redis = redis.Redis(port=port)
        self.redis.function_load(function_library(), replace=True)
        for node in NODES:
            self.call("join", node, 1, [], b"mq:", b"")
        self.told = self.redis.pubsub(ignore_subscribe_messages=True)

    def close(self) -> None:
        self.told.close()
        self.redis.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function, see `call_function`."""
        return call_function(self.redis, name, *arguments)

    def claim(self, cid: bytes, node: bytes = b"n2") -> int:
        """Claim a session for a connection at a node. Returns its epoch."""
        return int(self.claimed(node, cid, 1, 5, b"", 100, b"", 0, 1000, 0)[0])

    def claimed(self, node: bytes, cid: bytes, *claim: Any) -> Any:
        """Claim a session, see `claim_session`."""
        return claim_session(self.redis, node, cid, *claim)

    def listen(self) -> None:
        """Receive the messages to `n2` from now on."""
        self.told.subscribe("mq:to:n2")
        self.told.get_message(timeout=5)
