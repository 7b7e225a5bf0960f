"""The logs of all nodes in Redis, as the streams of one node read them.

History is read by XRANGE, by each stream for itself. The newest entries are read once for all streams of the node, by
one XREAD that waits for them, and are kept in memory up to a limit. So live streams cost Redis one reader per node.
Layout: deploy/docs/internals/log.md.
"""

import asyncio
import contextlib
import json
import time
from typing import Any

from ...broker.streams.message_log import Entry, LogAway, LogEnd, MessageLog
from ...broker.streams.start_position import Place
from ...broker.streams.tail import Tail
from ..redis.clients import FAILURES, RedisAddress

FIELD = b"b"
WAIT_MS = 500  # that one XREAD waits, so that new logs are found
NODES_SECONDS = 0.5  # for which the list of logs is not read again
TAIL_COUNT = 64  # entries of each log that one XREAD returns
RETRY_SECONDS = 0.5
READERS = 4  # commands under way at a time, beside the command that waits for the newest entries
IDLE_SECONDS = 30.0  # after which nothing is read for streams any more


class RedisLog(MessageLog):
    """The logs of a cluster.

    Args:
        address: of Redis.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._client = address.async_client()
        self._keys = address.keys
        self._tails: dict[str, Tail] = {}
        self._nodes: list[str] = []
        self._nodes_at = 0.0
        self._version = 0
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._waited_at = 0.0
        self._closed = False
        self._readers = asyncio.Semaphore(READERS)

    def close(self) -> None:
        """End all reading."""
        self._closed = True
        if self._follower is not None:
            self._follower.cancel()

    @property
    def version(self) -> int:
        return self._version

    async def wait(self, version: int) -> None:
        self._waited_at = time.monotonic()
        if self._closed:
            raise LogAway("the node stops")
        if self._follower is None or self._follower.done():
            self._follower = asyncio.get_running_loop().create_task(self._follow())
        while self._version == version:
            await self._changed.wait()

    async def nodes(self) -> list[str]:
        if time.monotonic() >= self._nodes_at + NODES_SECONDS:
            found = await self._ask("HGETALL", self._keys.analytics_logs)
            self._nodes_at = time.monotonic()
            self._nodes = sorted(node.decode() for node, record in found.items() if "last" not in json.loads(record))
        return self._nodes

    async def ends(self) -> dict[str, LogEnd]:
        found: dict[str, LogEnd] = {}
        for key, text in (await self._ask("HGETALL", self._keys.analytics_logs)).items():
            record = json.loads(text)
            last = record["last"].encode() if "last" in record else await self._last_id(key)
            place = Place(*map(int, last.split(b"-")))
            found[key.decode()] = LogEnd(record.get("name", ""), place, "last" in record)
        return found

    async def _last_id(self, node: bytes) -> bytes:
        """The id of the newest entry of a log, trimmed or not."""
        try:
            found: bytes = (await self._ask("XINFO STREAM", self._keys.message_log(node)))["last-generated-id"]
        except LogAway as error:
            if "no such key" in str(error):  # nothing was logged yet
                return b"0-0"
            raise
        return found

    async def read(self, node: str, place: Place | None, since: int, count: int) -> tuple[list[Entry], bool]:
        tail = self._tails.get(node)
        if tail is not None and (newest := tail.find(place, since)) is not None:
            return newest, True
        if place is None:
            begin = f"{since // 1000}-0"
        else:
            begin = f"{place.ms}-{place.total}" if place.rows else f"({place.ms}-{place.total}"
        async with self._readers:
            reply = await self._ask("XRANGE", self._keys.message_log(node.encode()), begin, "+", "COUNT", count)
        return _entries(node, reply), len(reply) < count

    async def _ask(self, *command: Any) -> Any:
        # A command runs to its end: redis-py may turn a cancellation into an error.
        asked = asyncio.ensure_future(self._client.execute_command(*command))  # type: ignore[no-untyped-call]
        try:
            return await asyncio.shield(asked)
        except FAILURES as error:
            raise LogAway(str(error) or type(error).__name__) from error

    # ---- the newest entries ----

    async def _follow(self) -> None:
        """Keep the newest entries of all logs in memory while streams wait for them."""
        try:
            while not self._closed and time.monotonic() < self._waited_at + IDLE_SECONDS:
                try:
                    await self._read_tails()
                except LogAway:
                    await asyncio.sleep(RETRY_SECONDS)
                    self._advance()  # a stream reports it
        finally:
            self._tails.clear()
            self._advance()

    async def _read_tails(self) -> None:
        nodes = await self.nodes()
        for node in set(self._tails) - set(nodes):
            del self._tails[node]
        for node in nodes:
            if node not in self._tails:
                key = self._keys.message_log(node.encode())
                newest = _entries(node, await self._ask("XREVRANGE", key, "+", "-", "COUNT", 1))
                self._tails[node] = Tail(newest[0].ms, newest[0].total) if newest else Tail(0, 0)
                self._advance()
        if not nodes:
            await asyncio.sleep(RETRY_SECONDS)
            return
        keys = {self._keys.message_log(node.encode()): node for node in nodes}
        lasts = [self._tails[node].last for node in nodes]
        reply = await self._ask("XREAD", "COUNT", TAIL_COUNT, "BLOCK", WAIT_MS, "STREAMS", *keys, *lasts)
        for key, entries in reply.items() if isinstance(reply, dict) else reply or ():
            for entry in _entries(keys[key], entries):
                self._tails[keys[key]].add(entry)
        if reply:
            self._advance()

    def _advance(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed.clear()


def _entries(node: str, reply: Any) -> list[Entry]:
    """The entries of a reply; those without a block are left out."""
    found: list[Entry] = []
    for entry_id, fields in reply or ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            ms, total = entry_id.split(b"-")
            by_name = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
            found.append(Entry(node, int(ms), int(total), by_name[FIELD]))
    return found
