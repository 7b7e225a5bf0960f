"""Numbers for clients: each kind is numbered from 0 without gaps over all processes, so that topics fit together.

Owns the numbers. The master (or the only process) gives them out, workers ask it. The number of a client that has left
is given out again.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import count
from typing import Any

from gevent.event import AsyncResult
from locust.env import Environment
from locust.runners import Runner, WorkerRunner

ENLIST, ENLISTED, DISCHARGE = "flockmq-enlist", "flockmq-enlisted", "flockmq-discharge"
TIMEOUT = 30.0  # seconds for the master's answer


class Roster:
    """The numbers as one process sees them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._asked = count()
        self._waiting: dict[int, AsyncResult] = {}
        self._next: dict[str, int] = defaultdict(int)
        self._free: dict[str, list[int]] = defaultdict(list)
        if isinstance(runner, WorkerRunner):
            runner.register_message(ENLISTED, self._handle_enlisted)
        else:
            runner.register_message(ENLIST, self._handle_enlist)
            runner.register_message(DISCHARGE, self._handle_discharge)

    def enlist(self, kind: str) -> int:
        """A number for a new client. Waits for the master."""
        if not isinstance(self._runner, WorkerRunner):
            return self._take(kind)
        question = next(self._asked)
        answer = self._waiting[question] = AsyncResult()
        self._runner.send_message(ENLIST, {"kind": kind, "question": question})
        try:
            return int(answer.get(timeout=TIMEOUT))
        finally:
            del self._waiting[question]

    def discharge(self, kind: str, number: int) -> None:
        """The client has left."""
        if isinstance(self._runner, WorkerRunner):
            self._runner.send_message(DISCHARGE, {"kind": kind, "number": number})
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

    def _handle_enlist(self, environment: Environment, msg: Any) -> None:
        answer = {"question": msg.data["question"], "number": self._take(msg.data["kind"])}
        self._runner.send_message(ENLISTED, answer, client_id=msg.node_id)

    def _handle_enlisted(self, environment: Environment, msg: Any) -> None:
        waiting = self._waiting.get(msg.data["question"])
        if waiting is not None:
            waiting.set(msg.data["number"])

    def _handle_discharge(self, environment: Environment, msg: Any) -> None:
        heappush(self._free[msg.data["kind"]], msg.data["number"])
