"""Writes logs of messages into a real Redis as nodes do, by the plain-Python encoder."""

import json
from collections.abc import Sequence

import redis

from tests.model.log_block import Row, encode

BEGAN = 1_770_000_000_000  # ms


class LogWriter:
    """The log of a node.

    Args:
        client: of Redis.
        node: the node's id.
        name: the node's name.
        prefix: of the cluster's keys.
        began: ms; the first block is closed then.
    """

    def __init__(
        self, client: redis.Redis, node: str = "n1", name: str = "a", prefix: str = "mq:", began: int = BEGAN
    ) -> None:
        self.client = client
        self.node = node
        self.key = f"{prefix}analytics:log:{node}"
        self.registry = f"{prefix}analytics:logs"
        self.said: dict[str, object] = {"name": name, "began": began}
        self.ms = began
        self.rows = 0
        self.bytes = 0
        self.lacking = 0
        self.ids: list[str] = []
        client.hset(self.registry, node, json.dumps(self.said))

    def add(self, rows: Sequence[Row], ms: int | None = None) -> str:
        """Write a block; it is closed at `ms`, or 10 ms after the block before. Returns its id."""
        self.ms = self.ms + 10 if ms is None else ms
        block = encode(rows, rows_before=self.rows, bytes_before=self.bytes, lacking=self.lacking)
        self.rows += len(rows)
        self.bytes += len(block)
        entry = f"{self.ms}-{self.bytes}"
        self.client.xadd(self.key, {"b": block}, id=entry)  # type: ignore[arg-type]
        self.ids.append(entry)
        return entry

    def fill(self, blocks: int, rows: int = 10, size: int = 64, topics: int = 5) -> list[Row]:
        """Write blocks of messages that are all different; returns these."""
        written = []
        for _ in range(blocks):
            block = [self.row(n, size, topics) for n in range(rows)]
            self.add(block)
            written += block
        return written

    def row(self, n: int, size: int = 64, topics: int = 5) -> Row:
        """A message of the next block, the n-th of it; its payload has its number in the log."""
        number = self.rows + n
        return Row(
            accepted=(self.ms + 10) * 1000 - 5000 + n,
            client_id=f"client-{number % 7}",
            topic=f"site/{number % topics}/temp",
            qos=number % 3,
            retain=number % 4 == 0,
            dup=number % 5 == 0,
            payload=f"{self.node}:{number}".ljust(size).encode(),
        )

    def trim(self, keep: int) -> None:
        """Keep only the newest blocks."""
        self.client.xtrim(self.key, maxlen=keep, approximate=False)

    def end(self) -> None:
        """Delete the log, as other nodes do with the trimmed log of a node that has gone."""
        self.client.delete(self.key)
        ended = {"last": self.ids[-1] if self.ids else "0-0", "ended": self.ms + 1}
        self.client.hset(self.registry, self.node, json.dumps(self.said | ended))

    def forget(self) -> None:
        """Take the log out of the register, as after 30 days."""
        self.client.hdel(self.registry, self.node)
