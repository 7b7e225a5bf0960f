"""The figures of all nodes, once a second, for as long as somebody looks; asked for once, however many look."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator

from broker.admin.api.aggregate import ask, failures, values
from broker.rpc.node_view import NodeView

INTERVAL = 1.0  # seconds


class Pulse:
    """Beats while it is watched.

    Args:
        node: whose cluster.
    """

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._watchers: set[asyncio.Queue[str]] = set()
        self._beating: asyncio.Task[None] | None = None

    async def watch(self) -> AsyncGenerator[str, None]:
        """Each beat as JSON; who is slow misses some."""
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        self._watchers.add(queue)
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
            if not self._watchers and self._beating is not None:
                self._beating.cancel()
                self._beating = None

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + INTERVAL
            answers = await ask(self._node, "figures")
            beat = {"time": round(time.time(), 3), "nodes": values(answers), "failures": failures(answers)}
            text = json.dumps(beat)
            for queue in self._watchers:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(text)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
