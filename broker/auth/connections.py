"""Connections to a server that the threads of a pool share: taken, given back, and opened again when they have died.

A thread has a connection for one call. Idle ones stay open for a while. If an idle connection turns out to be dead, as
after a restart of the server, all idle ones are closed, and the call is made once more with a new one.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_IDLE = 60.0  # seconds: firewalls forget connections without a word

C = TypeVar("C")
T = TypeVar("T")


class Lost(Exception):
    """The server can't be reached, or the connection has ended; the text says why, and holds no password."""


class Refused(Exception):
    """The server refuses a call, and its connection is as before; the text has the reason."""


class Connections(Generic[C]):
    """Connections to one server; any thread may use it.

    Args:
        connect: opens one; raises Lost.
        close: closes one.
    """

    def __init__(self, connect: Callable[[], C], close: Callable[[C], object]) -> None:
        self._connect = connect
        self._close = close
        self._idle: list[tuple[float, C]] = []  # since when; `append` and `pop` of a list need no lock
        self._is_closed = False

    def call(self, use: Callable[[C], T]) -> T:
        """The result of a function that gets a connection, and raises Lost if the connection is of no more use.

        Raises:
            Lost: it was raised with a new connection, or there is none.
            Refused: the function raised it.
        """
        connection = self._take()
        if connection is not None:
            try:
                return self._used(connection, use)
            except Lost:
                self._close_idle()
        return self._used(self._connect(), use)

    def _used(self, connection: C, use: Callable[[C], T]) -> T:
        try:
            result = use(connection)
        except Refused:
            self._give_back(connection)
            raise
        except BaseException:
            self._end(connection)
            raise
        self._give_back(connection)
        return result

    def _take(self) -> C | None:
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < MAX_IDLE:
                return connection
            self._end(connection)

    def _give_back(self, connection: C) -> None:
        self._idle.append((time.monotonic(), connection))
        if self._is_closed:
            self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                _, connection = self._idle.pop()
            except IndexError:
                return
            self._end(connection)

    def _end(self, connection: C) -> None:
        with contextlib.suppress(Exception):
            self._close(connection)

    def close(self) -> None:
        """Close the idle connections now, the others after their calls."""
        self._is_closed = True
        self._close_idle()
