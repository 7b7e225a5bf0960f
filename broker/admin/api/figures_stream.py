"""The metrics of all nodes, once a second while there are watchers; collected once for all of them."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator

from ...rpc.node_view import NodeView
from .aggregate import call, failures, values

INTERVAL = 1.0  # seconds


class FiguresStream:
    """Collects metrics while it is watched.

    Args:
        node: of the cluster.
    """

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._watchers: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None

    async def watch(self) -> AsyncGenerator[str, None]:
        """Each update as JSON; a slow watcher misses some."""
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        self._watchers.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._update())
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _update(self) -> None:
        while True:
            due = time.monotonic() + INTERVAL
            answers = await call(self._node, "figures")
            update = {"time": round(time.time(), 3), "nodes": values(answers), "failures": failures(answers)}
            text = json.dumps(update)
            for queue in self._watchers:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(text)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
