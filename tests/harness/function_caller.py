"""A node that calls the functions in Redis, with sessions of clients that are at no node."""

from typing import Any

from flockmq._speedups.cluster.message_codec import encode_message
from tests.harness.commits import commit_arguments
from tests.harness.function_nodes import FunctionNodes
from tests.harness.stored_sessions import read_session

MESSAGE = encode_message(b"t", b"x", 1, False)
NO_MESSAGE = encode_message(b"", b"", 2, False)  # of an entry whose message no client needs any more


def counted_size(entries: list[bytes]) -> int:
    """The bytes of entries of a queue, as their session counts them."""
    return sum(len(entry) for entry in entries if entry != NO_MESSAGE)


class Caller(FunctionNodes):
    """Calls the functions as node `n1`; there are the sessions `a`, `b` and `c`, whose clients are at no node."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.seq = 0
        for cid in (b"a", b"b", b"c"):
            epoch = self.claim(cid, b"n1")
            assert epoch == self.incarnation(cid)
            self.commit(releases=[[cid, epoch, 0]])

    def incarnation(self, cid: bytes) -> int:
        session = read_session(self.redis, cid)
        return session.incarnation if session is not None else 0

    def commit(self, **parts: Any) -> Any:
        self.seq += 1
        return self.send(self.seq, **parts)

    def send(self, seq: int, node: bytes = b"n1", *, most: int = 100, drop_oldest: bool = False, **parts: Any) -> Any:
        parts = {"messages": [MESSAGE], "shares": [], **parts}
        return self.call("commit", node, *commit_arguments(seq, limits=(most, 1 << 20, drop_oldest), **parts))

    def push(self, *cids: bytes) -> list[Any]:
        """Pushes of the message to these sessions."""
        return [[cid, self.incarnation(cid), 1] for cid in cids]

    def dump(self) -> dict[bytes, Any]:
        """All that Redis has."""
        return {key: self.redis.dump(key) for key in self.redis.scan_iter()}
