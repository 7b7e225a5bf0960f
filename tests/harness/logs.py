"""What the nodes of a cluster have logged, read from Redis by the book."""

from collections.abc import Iterator

from tests.harness.cluster_process import ClusterProcess
from tests.model.log_block import HEADER, Row, decode


def entries(cluster: ClusterProcess) -> Iterator[tuple[str, str, bytes]]:
    """(node id, entry id, block) of all logs, each log in its order."""
    client = cluster.redis.client(decode_responses=False)
    for node in client.hkeys(f"{cluster.prefix}analytics:logs"):
        for entry_id, fields in client.xrange(f"{cluster.prefix}analytics:log:".encode() + node):
            yield node.decode(), entry_id.decode(), fields[b"b"]


def logged_rows(cluster: ClusterProcess) -> list[Row]:
    """All logged messages. Checks that ids and headers agree."""
    found: list[Row] = []
    before: dict[str, tuple[int, int, int]] = {}
    for node, entry_id, block in entries(cluster):
        ms, position = map(int, entry_id.split("-"))
        row_count, byte_count, last = before.get(node, (0, 0, 0))
        _, _, _, count, rows_before, bytes_before, _, _, _, _ = HEADER.unpack_from(block)
        assert (rows_before, bytes_before, position) == (row_count, byte_count, byte_count + len(block))
        some = decode(block)
        assert len(some) == count > 0
        times = [row.accepted for row in some]
        assert last <= times[0] and times == sorted(times) and times[-1] // 1000 <= ms
        before[node] = (row_count + count, position, times[-1])
        found += some
    return found
