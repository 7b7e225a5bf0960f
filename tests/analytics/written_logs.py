"""Logs of messages as nodes write them, written by a test with the microsecond of each message."""

import json
from collections.abc import Sequence

from tests.harness.redis_process import RedisProcess
from tests.model.log_block import Row, encode

PREFIX = "mq:"


class WrittenLog:
    """The log of a node that does not run.

    Args:
        server: the cluster's Redis.
        node: the node's id.
        name: its name.
        began: when it started, ms since 1970.
    """

    def __init__(self, server: RedisProcess, node: str, name: str, began: int = 1) -> None:
        self.node = node
        self.name = name
        self.began = began
        self.key = f"{PREFIX}analytics:log:{node}"
        self.bytes = 0
        self.rows = 0
        self._client = server.client()
        self._client.hset(f"{PREFIX}analytics:logs", node, json.dumps({"name": name, "began": began}))

    def write(self, rows: Sequence[Row], at: int | None = None, lacking: int = 0) -> str:
        """Add a block, closed at `at` (us; when its last message came, unless given); returns its id."""
        block = encode(rows, rows_before=self.rows, bytes_before=self.bytes, lacking=lacking)
        self.bytes += len(block)
        self.rows += len(rows)
        closed = max(row.accepted for row in rows) if at is None else at
        entry_id = f"{closed // 1000}-{self.bytes}"
        self._client.xadd(self.key, {"b": block}, id=entry_id)
        return entry_id

    def trim(self, below: str) -> None:
        """Forget the entries below an id."""
        self._client.xtrim(self.key, minid=below, approximate=False)

    def delete(self, last: str) -> None:
        """Delete it, as nodes do when all was trimmed."""
        said = {"name": self.name, "began": self.began, "last": last, "ended": int(last.partition("-")[0])}
        self._client.delete(self.key)
        self._client.hset(f"{PREFIX}analytics:logs", self.node, json.dumps(said))


def row(accepted: int, topic: str = "t", payload: bytes = b"", client_id: str = "c", qos: int = 0) -> Row:
    """A message."""
    return Row(accepted, client_id, topic, qos, False, False, payload)
