"""Clients that fight for a client id: the count of take-overs in Redis, which delays the next connection."""

from collections.abc import Iterator

import pytest

from tests.harness.commits import commit_arguments
from tests.harness.function_nodes import NODES, FunctionNodes
from tests.harness.redis_process import RedisProcess


class Nodes(FunctionNodes):
    """Nodes whose clients connect with the client id `c`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sequence = dict.fromkeys(NODES, 0)

    def connect(self, node: bytes) -> tuple[int, int]:
        """The epoch of a new connection, and the count that delays it."""
        epoch, _, _, _, fights, *_ = self.claimed(node, b"c", 1, 5, b"", 100, b"", 0, 1000, 0)
        return epoch, fights

    def end(self, node: bytes, epoch: int, *, overtaken: bool) -> None:
        """A connection has ended: by itself, or because another connection has claimed the session."""
        self.sequence[node] += 1
        release = [b"c", epoch, 0, 1000, b"", int(overtaken)]
        self.call("commit", node, *commit_arguments(self.sequence[node], releases=[release]))


@pytest.fixture
def nodes(redis_server: RedisProcess) -> Iterator[Nodes]:
    made = Nodes(redis_server.port)
    yield made
    made.close()


def test_take_overs_count_and_a_connection_that_takes_nothing_over_does_not_wait(nodes: Nodes) -> None:
    epoch, fights = nodes.connect(b"n1")
    found = [fights]
    for number in range(8):
        before, node = epoch, NODES[1 - number % 2]
        epoch, fights = nodes.connect(node)
        found.append(fights)
        nodes.end(NODES[number % 2], before, overtaken=True)
    assert found == list(range(9))
    nodes.end(b"n1", epoch, overtaken=False)
    assert nodes.connect(b"n2")[1] == 0


def test_a_client_that_moves_faster_than_its_release_does_not_fight(nodes: Nodes) -> None:
    epoch, _ = nodes.connect(b"n1")
    for number in range(8):
        before, (epoch, fights) = epoch, nodes.connect(NODES[1 - number % 2])
        assert fights <= 1
        nodes.end(NODES[number % 2], before, overtaken=False)
