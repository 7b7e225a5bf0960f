"""Slow work off the loop: a few threads of low priority behind a bounded queue.

Password hashing and requests to other hosts run here. A flood of CONNECT packets does not stop publishing: threads are
few and of lower priority, and a full queue refuses at once.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICENESS = 10  # of the threads; the loop's is 0


class Busy(Exception):
    """The queue is full."""


class WorkPool:
    """Threads of one kind of work.

    Args:
        name: of the threads.
        threads: how many.
        max_waiting: calls that may wait or be under way; more are refused.
    """

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, f"flockmq-{name}", initializer=_lower_priority)
        self._max = max_waiting
        self.threads = threads
        self._under_way = 0

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a function in a thread, and wait for it.

        Raises:
            Busy: the queue is full, or the pool has been closed.
        """
        if self._under_way >= self._max:
            raise Busy
        try:
            future = self._executor.submit(work, *arguments)
        except RuntimeError:  # it is closed, or retired
            raise Busy from None
        self._under_way += 1
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _tell(loop, self._done))  # it counts until its thread is free again
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self._under_way -= 1

    def retire(self) -> None:
        """Take no more calls; the calls that wait are made."""
        self._executor.shutdown(wait=False)

    def close(self) -> None:
        """Start no more calls; those under way are not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(callback)


def _lower_priority() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
