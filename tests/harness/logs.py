"""Nodes' logs of messages, read by the book: from Redis, or from the files of a node alone."""

from collections.abc import Iterator
from pathlib import Path

from flockmq.broker.storage.log_segments import folder_of, frames, read_id, segments
from tests.harness.broker_process import BrokerProcess
from tests.harness.cluster_process import ClusterProcess
from tests.model.log_block import HEADER, Row, decode


class OneNode(BrokerProcess):
    """A node alone that logs messages, used like a cluster: whatever the name, it is this node."""

    def __init__(self, directory: Path, settings: dict[str, object] | None = None) -> None:
        super().__init__(directory, "sqlite", settings)

    def __getitem__(self, name: str) -> "OneNode":
        return self

    @property
    def log_folder(self) -> Path:
        """Where the log is."""
        return folder_of(self.directory / "flockmq.db")


Logging = ClusterProcess | OneNode


def entries(nodes: Logging) -> Iterator[tuple[str, str, bytes]]:
    """(node id, entry id, block) of all logs, each log in its order."""
    if isinstance(nodes, OneNode):
        for segment in segments(nodes.log_folder):
            for frame in frames(segment):
                yield read_id(segment), f"{frame.ms}-{frame.total}", frame.block
        return
    client = nodes.redis.client(decode_responses=False)
    for node in client.hkeys(f"{nodes.prefix}analytics:logs"):
        for entry_id, fields in client.xrange(f"{nodes.prefix}analytics:log:".encode() + node):
            yield node.decode(), entry_id.decode(), fields[b"b"]


def logged_rows(nodes: Logging) -> list[Row]:
    """All logged messages. Checks that ids and headers agree."""
    found: list[Row] = []
    before: dict[str, tuple[int, int, int]] = {}
    for node, entry_id, block in entries(nodes):
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
