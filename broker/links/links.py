"""All links of a node: in a cluster one node runs each of them; all nodes compute the same node."""

import asyncio
from collections.abc import Callable
from typing import Any

from ..config.link import LinkConfig
from .link import Host, Link, Lost

PREPARE_SECONDS = 5.0  # a store that is slower must not keep clients away


class Links:
    """The links of a node, none of them running.

    Args:
        host: the node.
        is_ours: whether this node runs the link of a name.
    """

    def __init__(self, host: Host, is_ours: Callable[[str], bool]) -> None:
        self._host = host
        self._is_ours = is_ours
        self._configs: dict[str, LinkConfig] = {}
        self._lost: dict[str, Lost] = {}
        self._running: dict[str, tuple[Link, asyncio.Task[None]]] = {}

    def configure(self, configs: tuple[LinkConfig, ...]) -> None:
        """Run these links from the next tick on; changed links begin again."""
        self._configs = {config.name: config for config in configs}
        for name, (link, _) in list(self._running.items()):
            if self._configs.get(name) != link.config:
                self._end(name)

    def tick(self) -> None:
        """Start the links that are this node's to run, and end the others."""
        for name, config in self._configs.items():
            ours = self._is_ours(name)
            if ours and name not in self._running:
                self._start(config)
            elif not ours and name in self._running:
                self._end(name)

    def _start(self, config: LinkConfig) -> None:
        link = Link(config, self._host, self._lost.setdefault(config.name, Lost()))
        task = asyncio.get_running_loop().create_task(link.run())
        self._running[config.name] = link, task

    def _end(self, name: str) -> None:
        link, task = self._running.pop(name)
        task.cancel()
        link.close()

    async def prepared(self) -> None:
        """The sessions of the links that this node runs are there: messages wait in them for the other brokers."""
        self.tick()
        waiting = [asyncio.ensure_future(link.prepared.wait()) for link, _ in self._running.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=PREPARE_SECONDS)
            for each in waiting:
                each.cancel()

    async def stop(self) -> None:
        """End all links; their sessions stay."""
        tasks = [task for _, task in self._running.values()]
        self._configs = {}
        for name in list(self._running):
            self._end(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    def described(self) -> list[dict[str, Any]]:
        """The links that this node runs, for the API."""
        return [link.described() for link, _ in self._running.values()]
