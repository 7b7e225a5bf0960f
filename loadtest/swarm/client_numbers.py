"""Numbers for clients: each kind is numbered from 0 without gaps over all processes, so that their topics match.

Owns the numbers. The master (or the only process) assigns them. A worker requests them in batches, because locust's
connections to its master hold a thousand messages. The number of a client that has left is assigned again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

import gevent
from gevent.event import AsyncResult
from locust.env import Environment
from locust.runners import Runner, WorkerRunner

REQUEST, ASSIGNED, RELEASED = "flockmq-numbers", "flockmq-numbers-assigned", "flockmq-numbers-released"
BATCH_DELAY = 0.05  # seconds in which further requests join a message
TIMEOUT = 60.0  # seconds for the master's reply


class ClientNumbers:
    """The numbers, as one process sees them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._batches = count()
        self._requested: list[tuple[str, AsyncResult]] = []  # for the next request
        self._released: list[tuple[str, int]] = []  # for the next release
        self._replies: dict[int, list[AsyncResult]] = {}  # by batch
        self._next: dict[str, int] = defaultdict(int)
        self._free: dict[str, list[int]] = defaultdict(list)
        if isinstance(runner, WorkerRunner):
            runner.register_message(ASSIGNED, self._handle_assigned)
        else:
            runner.register_message(REQUEST, self._handle_request)
            runner.register_message(RELEASED, self._handle_released)

    def assign(self, kind: str) -> int:
        """A number for a new client; a worker waits for the master."""
        if not isinstance(self._runner, WorkerRunner):
            return self._take(kind)
        reply = AsyncResult()
        self._enqueue(self._requested, (kind, reply), self._send_request)
        return int(reply.get(timeout=TIMEOUT))

    def release(self, kind: str, number: int) -> None:
        """The client has left."""
        if isinstance(self._runner, WorkerRunner):
            self._enqueue(self._released, (kind, number), self._send_released)
        else:
            heappush(self._free[kind], number)

    def reset(self) -> None:
        """A new test begins."""
        self._next.clear()
        self._free.clear()

    def _take(self, kind: str) -> int:
        if self._free[kind]:
            return heappop(self._free[kind])
        self._next[kind] += 1
        return self._next[kind] - 1

    def _enqueue(self, batch: list[Any], item: Any, send: Callable[[], None]) -> None:
        batch.append(item)
        if len(batch) == 1:
            gevent.spawn_later(BATCH_DELAY, send)

    def _send_request(self) -> None:
        requested, self._requested = self._requested, []
        batch = next(self._batches)
        self._replies[batch] = [reply for _, reply in requested]
        self._runner.send_message(REQUEST, {"batch": batch, "kinds": [kind for kind, _ in requested]})

    def _send_released(self) -> None:
        released, self._released = self._released, []
        self._runner.send_message(RELEASED, {"released": released})

    def _handle_request(self, environment: Environment, msg: Any) -> None:
        reply = {"batch": msg.data["batch"], "numbers": [self._take(kind) for kind in msg.data["kinds"]]}
        self._runner.send_message(ASSIGNED, reply, client_id=msg.node_id)

    def _handle_assigned(self, environment: Environment, msg: Any) -> None:
        for reply, number in zip(self._replies.pop(msg.data["batch"]), msg.data["numbers"], strict=True):
            reply.set(number)

    def _handle_released(self, environment: Environment, msg: Any) -> None:
        for kind, number in msg.data["released"]:
            heappush(self._free[kind], number)
