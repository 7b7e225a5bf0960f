"""The logs of several nodes, which a node reads when its link is back, are one sequence."""

from collections.abc import Iterator
from typing import Any

import pytest

from flockmq._speedups.base.msgpack import pack
from flockmq.cluster.peers.wire import LOGGED, batch_header
from flockmq.cluster.redis.connector import function_library
from tests.cluster.test_redis_store import SlowLink
from tests.harness.commits import commit_arguments
from tests.harness.redis_process import RedisProcess


@pytest.fixture
def link(redis_server: RedisProcess) -> Iterator[SlowLink]:
    made = SlowLink(redis_server.port)
    made.ask("FUNCTION", "LOAD", "REPLACE", function_library())
    for node in (b"n1", b"n2", b"n3"):
        made.ask("FCALL", "flockmq_join", 0, "mq:", node, 1, pack([]), "mq:", "")
    yield made
    made.close()


def commit(link: SlowLink, node: bytes, number: int, packets: bytes, target: bytes = b"n3") -> None:
    """A commit with a batch for one node."""
    header = batch_header(LOGGED, node, number)
    arguments = commit_arguments(number, batch_header=header, batch=packets, targets=[[target, b""]])
    assert link.ask("FCALL", "flockmq_commit", 0, "mq:", node, *arguments)[:4] == [b"ok", 0, 0, 0]


def logs(link: SlowLink, *logs: Any) -> Any:
    return link.ask("FCALL", "flockmq_logs", 0, "mq:", "n3", pack(logs))


def test_they_are_in_the_order_of_the_commits(link: SlowLink) -> None:
    commit(link, b"n2", 1, b"2a")
    commit(link, b"n1", 1, b"2b")
    commit(link, b"n1", 2, b"for n2", b"n2")
    commit(link, b"n2", 2, b"2c")
    commit(link, b"n1", 3, b"2d")
    assert logs(link, "n1", 1, "n2", 1) == [0, [4, 3], [b"2a", b"2b", b"2c", b"2d"]]
    assert logs(link, "n1", 2, "n2", 2) == [0, [4, 3], [b"2c", b"2d"]]
    assert logs(link, "n2", 3, "gone", 7) == [0, [3, 7], []]
    assert logs(link) == [0, [], []]


def test_pages_go_on_in_this_order(link: SlowLink) -> None:
    large = bytes(300_000)
    for number in (1, 2, 3):
        for node in (b"n2", b"n1"):
            commit(link, node, number, b"%d%s" % (number, node) + large)
    found, following, more = [], [1, 1], 1
    while more:
        more, following, batches = logs(link, "n1", following[0], "n2", following[1])
        assert sum(map(len, batches)) < 1_000_000
        found += [batch[:3] for batch in batches]
    assert found == [b"1n2", b"1n1", b"2n2", b"2n1", b"3n2", b"3n1"]


def test_a_damaged_counter_begins_again(link: SlowLink) -> None:
    commit(link, b"n2", 1, b"2a")
    link.ask("HSET", "mq:clock", "l", "damaged")
    commit(link, b"n1", 1, b"2b")
    assert logs(link, "n1", 1, "n2", 1)[:2] == [0, [2, 2]]
