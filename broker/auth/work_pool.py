"""Slow work off the loop: a few threads, a bounded queue before them, and less of the processor than the loop has.

What hashes passwords or waits for others over the network runs here. So many CONNECT packets as may come, publishing
goes on: threads are few and of lower priority, and who finds the queue full is refused at once instead of waiting.
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
        most_waiting: calls that may wait or be under way; more are refused.
    """

    def __init__(self, name: str, threads: int, most_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, f"flockmq-{name}", initializer=_be_modest)
        self._most = most_waiting
        self.threads = threads
        self._under_way = 0

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Do it in a thread, and wait for it.

        Raises:
            Busy: too much waits already.
        """
        if self._under_way >= self._most:
            raise Busy
        self._under_way += 1
        future = self._executor.submit(work, *arguments)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _tell(loop, self._done))  # it counts until its thread is free again
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self._under_way -= 1

    def close(self) -> None:
        """Begin nothing more; nobody waits for what is under way."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(callback)


def _be_modest() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
