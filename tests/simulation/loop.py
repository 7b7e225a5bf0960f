"""The event loop of one simulated node: asyncio's interface over the world's time, and no other way to do anything.

Callbacks run in the order of asyncio, an iteration at a time. The world decides when the next iteration is. A killed
node's loop never runs again; a frozen one keeps all that becomes ready.
"""

import asyncio
import heapq
import inspect
import select
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol
from weakref import WeakSet

from tests.simulation.clock import NS
from tests.simulation.world import FIRST_REDIS, MICRO, MILLI, Event, World

ITERATION = 60 * MICRO  # typical time until an iteration begins
SLOW_ITERATION = 15 * MILLI  # another process has the core


class Dialer(Protocol):
    """Opens connections for a loop."""

    async def connect(self, loop: "NodeLoop", make: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """A transport and its protocol. Raises OSError."""

    async def connect_socket(self, loop: "NodeLoop", which: socket.socket, host: str) -> None:
        """Connect a socket to a host. Raises OSError."""


class NodeLoop(asyncio.AbstractEventLoop):
    """The loop of a node.

    Args:
        world: of the run.
        name: of the node.
        dialer: opens its connections.
        on_iteration: called after each iteration: bytes that the node has written leave it.
        on_failure: called with the text of an exception that nothing has caught.
    """

    def __init__(
        self,
        world: World,
        name: str,
        dialer: Dialer,
        on_iteration: Callable[[], object],
        on_failure: Callable[[str], object],
    ) -> None:
        self._world = world
        self._name = name
        self._dialer = dialer
        self._on_iteration = on_iteration
        self._on_failure = on_failure
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._readers: dict[int, asyncio.Handle] = {}
        self._poll = select.poll()
        self._coroutines: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()  # of its tasks
        self._iteration: Event | None = None
        self._running = False
        self.dead = False
        self.frozen = False

    # ---- iterations ----

    def wake(self) -> None:
        """Something is ready: iterate soon."""
        self._schedule(self._world.now + self._world.delay(ITERATION, SLOW_ITERATION))

    def _schedule(self, time: int) -> None:
        if self.dead or self.frozen or self._running:
            return
        if self._iteration is not None:
            if self._iteration.call is not None and self._iteration.time <= time:
                return
            self._iteration.cancel()
        self._iteration = self._world.at(time, self._iterate)

    def _iterate(self) -> None:
        self._iteration = None
        self._running = True
        events._set_running_loop(self)
        self._world.act_as(self._name)
        try:
            self._run_once()
        finally:
            self._world.act_as(FIRST_REDIS)
            events._set_running_loop(None)
            self._running = False
        if self.dead:
            return
        self._on_iteration()
        if self.dead:
            return
        if self._ready or (self._readers and self._poll.poll(0)):
            self.wake()
        else:
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)
            if self._timers:
                self._schedule(self._timers[0][0] + self._world.delay(ITERATION, SLOW_ITERATION))

    def _run_once(self) -> None:
        if self._readers:
            for fd, _ in sorted(self._poll.poll(0)):
                if fd in self._readers:
                    self._ready.append(self._readers[fd])
        while self._timers and self._timers[0][0] <= self._world.now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
            if self.dead:
                return

    def freeze(self) -> None:
        """Stand still, as after SIGSTOP."""
        self.frozen = True
        if self._iteration is not None:
            self._iteration.cancel()
            self._iteration = None

    def thaw(self) -> None:
        """Go on."""
        self.frozen = False
        self.wake()

    def kill(self) -> None:
        """End at once, within whatever runs."""
        self.dead = True
        if self._iteration is not None:
            self._iteration.cancel()
        self._ready.clear()
        self._timers.clear()
        self._readers.clear()
        for coroutine in self._coroutines:
            _close_unless_begun(coroutine)

    # ---- asyncio ----

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self._ready.append(handle)
            self.wake()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            due = max(round(when * NS), self._world.now)
            self._timer_count += 1
            heapq.heappush(self._timers, (due, self._timer_count, timer))
            self._schedule(due + self._world.delay(ITERATION, SLOW_ITERATION))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def time(self) -> float:
        return self._world.now / NS

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> "asyncio.Task[Any]":
        self._coroutines.add(coro)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self.dead:
            _close_unless_begun(coro)
        return task

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = asyncio.Handle(callback, args, self)
        self._poll.register(fd, select.POLLIN)
        self.wake()

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override]
        if self._readers.pop(fd, None) is None:
            return False
        self._poll.unregister(fd)
        return True

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._dialer.connect(self, protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", host)]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await self._dialer.connect_socket(self, sock, address)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(0.001, _set_exception, future, error)
        else:
            self.call_later(0.001, _set_result, future, result)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self._on_failure(f"{context.get('message')}: {type(error).__name__} {error}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _close_unless_begun(coroutine: Coroutine[Any, Any, Any]) -> None:
    """A coroutine that was never awaited is a mistake to Python; one that has begun must not go on to its `finally`."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()


def _set_result(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
