"""A node that rejoins the cluster, or joins at a later attempt: the state of before is freed."""

import asyncio
import gc
import weakref
from functools import partial
from pathlib import Path

import pytest

from flockmq._speedups.cluster.peer import PeerOutlet
from flockmq.broker.config.load import load
from flockmq.broker.core.data_plane import DataPlane
from flockmq.broker.errors import NotNow
from flockmq.broker.node import Node


class Collected:
    """A heap that notes whether the first state is in memory whenever the node has completed one."""

    def __init__(self) -> None:
        self.first: weakref.ref[DataPlane] | None = None
        self.has_first: list[bool] = []

    def freeze(self) -> None:
        gc.collect()
        self.has_first.append(self.first is not None and self.first() is not None)

    def unfreeze(self) -> None:
        pass


def test_the_state_of_before_is_freed_when_the_new_one_is_complete(tmp_path: Path) -> None:
    config = load({"listen": [f"unix:{tmp_path}/socket"], "http.listen": "", "store.url": "memory"}, env={})
    heap = Collected()

    async def rejoin() -> None:
        node = Node(config, lambda: config, heap=heap)
        heap.first = weakref.ref(node.broker.data_plane)
        await node.start()
        node._rejoin("a test")
        assert node._rejoining is not None
        await node._rejoining
        await node.stop()

    asyncio.run(rejoin())
    assert heap.has_first == [True, False]


def test_the_state_of_a_join_that_failed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load({"listen": [f"unix:{tmp_path}/socket"], "http.listen": "", "store.url": "memory"}, env={})
    monkeypatch.setattr("flockmq.broker.node.RETRY_SECONDS", 0)
    heap = Collected()

    async def start() -> None:
        node = Node(config, lambda: config, heap=heap)
        heap.first = weakref.ref(node.broker.data_plane)

        async def fail() -> None:  # no variable: the log keeps the traceback in a test
            # It waits for the end of a turn, which does not follow.
            PeerOutlet(node.broker.data_plane.turn, partial(print, node.broker.data_plane)).send(b"x")
            raise NotNow("a test")

        node.broker.redirect.drain(lambda reference: False)
        node.coordinator.life.start = fail  # type: ignore[method-assign]  # monkeypatch would keep the coordinator
        await node.start()
        assert node.broker.redirect.closed  # the drain of the node goes on
        await node.stop()

    asyncio.run(start())
    assert heap.has_first == [False]
