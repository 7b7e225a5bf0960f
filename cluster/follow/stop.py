"""The end of a program that follows the log: SIGTERM and Ctrl-C."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Is set once. A signal handler may set it at any time. An Event has a lock: a handler that interrupts the thread
    that holds it, as a second signal does, would wait for ever."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def set(self) -> None:
        """End all waits."""
        if not self.wait(0):
            os.write(self._write, b"\0")

    def wait(self, seconds: float) -> bool:
        """Wait for so many seconds, or until it is set. Returns whether it is set."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """A Stop that SIGTERM and Ctrl-C set, within the block. For the main thread."""
    stop = Stop()
    handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        stop.close()
