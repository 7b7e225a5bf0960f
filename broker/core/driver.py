"""Driver: runs the turns of a reactor within the node's event loop."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..._speedups.net.reactor import Reactor
from ..._speedups.net.uvloop_driver import Unsupported, UvloopDriver
from .. import logs

log = logs.get("flockmq.connection")


class Driver(Protocol):
    """Serves the connections of reactors."""

    def start(self, reactor: Reactor) -> None:
        """Serve the reactor's connections from now on."""

    def stop(self, reactor: Reactor) -> None:
        """Serve the reactor's connections no more."""

    def wake(self, reactor: Reactor) -> None:
        """Run a turn of the reactor soon, whether it is served or not."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it when the caller has returned to the event loop."""

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Call it whenever the descriptor is readable."""

    def remove_reader(self, fd: int) -> None:
        """Undo `add_reader`."""


def make_driver(loop: asyncio.AbstractEventLoop) -> Driver:
    """The fastest driver for this loop."""
    try:
        return UvloopDriver(loop)
    except Unsupported as error:
        log.debug("a message that arrives alone costs more than it must", reason=error)
        return ReaderDriver(loop)


class ReaderDriver:
    """Watches the reactor's epoll set with any event loop: each turn costs a callback, and the loop's own wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, reactor: Reactor) -> None:
        self._loop.add_reader(reactor.fileno(), reactor.run)

    def stop(self, reactor: Reactor) -> None:
        self._loop.remove_reader(reactor.fileno())

    def wake(self, reactor: Reactor) -> None:
        self._loop.call_soon(reactor.run)

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(callback)

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self._loop.add_reader(fd, callback)

    def remove_reader(self, fd: int) -> None:
        self._loop.remove_reader(fd)
