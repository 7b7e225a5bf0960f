"""Numbers for clients: each kind is numbered from 0 without gaps over all processes, so that topics fit together.

Owns the numbers. The master (or the only process) gives them out, workers ask it, for all that begin at about the same
time at once: locust's connections to its master hold a thousand messages. The number of a client that has left is given
out again.
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

ENLIST, ENLISTED, DISCHARGE = "flockmq-enlist", "flockmq-enlisted", "flockmq-discharge"
PAUSE = 0.05  # seconds in which others join a message
TIMEOUT = 60.0  # seconds for the master's answer


class Roster:
    """The numbers as one process sees them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._asked = count()
        self._waiting: list[tuple[str, AsyncResult]] = []  # who has yet to ask
        self._left: list[tuple[str, int]] = []  # of whom the master has yet to hear
        self._answers: dict[int, list[AsyncResult]] = {}  # by question
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
        answer = AsyncResult()
        self._later(self._waiting, (kind, answer), self._ask)
        return int(answer.get(timeout=TIMEOUT))

    def discharge(self, kind: str, number: int) -> None:
        """The client has left."""
        if isinstance(self._runner, WorkerRunner):
            self._later(self._left, (kind, number), self._tell)
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

    def _later(self, waiting: list[Any], item: Any, send: Callable[[], None]) -> None:
        waiting.append(item)
        if len(waiting) == 1:
            gevent.spawn_later(PAUSE, send)

    def _ask(self) -> None:
        waiting, self._waiting = self._waiting, []
        question = next(self._asked)
        self._answers[question] = [answer for _, answer in waiting]
        self._runner.send_message(ENLIST, {"question": question, "kinds": [kind for kind, _ in waiting]})

    def _tell(self) -> None:
        left, self._left = self._left, []
        self._runner.send_message(DISCHARGE, {"left": left})

    def _handle_enlist(self, environment: Environment, msg: Any) -> None:
        answer = {"question": msg.data["question"], "numbers": [self._take(kind) for kind in msg.data["kinds"]]}
        self._runner.send_message(ENLISTED, answer, client_id=msg.node_id)

    def _handle_enlisted(self, environment: Environment, msg: Any) -> None:
        for answer, number in zip(self._answers.pop(msg.data["question"]), msg.data["numbers"], strict=True):
            answer.set(number)

    def _handle_discharge(self, environment: Environment, msg: Any) -> None:
        for kind, number in msg.data["left"]:
            heappush(self._free[kind], number)
