"""Standard error of a process that must not wait for its reader: writes are queued, and a thread does them.

A pipe without a reader, a terminal that was stopped (Ctrl-S) or a slow disk blocks a write for as long as it likes,
and with it the loop of the node. Rules:
- The log, `print`, warnings and tracebacks go through `sys.stderr`, which `take` replaces. None of them waits.
- Lines keep their order. When the queue is full, all further ones are dropped until it is empty. The log then reports
  their number, where they are missing. Lines that the system refuses (a full disk, no reader) are dropped too.
- One write to the system has whole lines and at most PIPE_BUF bytes, so that workers do not mix theirs in one pipe.
  Only a longer line is written by itself.
- The end of the process waits until the queue is empty, but for `END_SECONDS` at most.
"""

import atexit
import io
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any, cast

from . import logs

MAX_BYTES = 1 << 20  # that wait for the reader
END_SECONDS = 3.0

log = logs.get("flockmq.log")


class StandardError(io.RawIOBase):
    """A file whose writes don't wait.

    Args:
        file: descriptor that the thread writes to.
        report: called by the thread with the number of lines that were dropped, when writing works again.
    """

    def __init__(self, file: int, report: Callable[[int], object]) -> None:
        self.dropped = 0  # lines, ever
        self._file = file
        self._report = report
        self._lines: deque[bytes] = deque()
        self._size = 0  # bytes of them
        self._is_full = False  # until it is empty
        self._missing = 0  # dropped lines that were not reported yet
        self._is_busy = False  # the thread writes, or reports
        self._changed = threading.Condition()
        thread = threading.Thread(target=self._run, name="standard error", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
        thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file

    def isatty(self) -> bool:
        return os.isatty(self._file)

    def write(self, data: Any) -> int:
        """Queue a line, or drop it."""
        line = bytes(data)
        with self._changed:
            self._is_full = self._is_full or (bool(self._lines) and self._size + len(line) > MAX_BYTES)
            if self._is_full:
                self._drop(1)
            else:
                self._lines.append(line)
                self._size += len(line)
                self._changed.notify_all()
        return len(line)

    def drain(self, seconds: float = END_SECONDS) -> None:
        """Wait until all lines are written, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._is_busy, seconds)

    def _run(self) -> None:
        while True:
            lines = self._next()
            is_written = self._put(b"".join(lines))
            with self._changed:
                if not is_written:
                    self._drop(len(lines))
                if self._lines:
                    continue
                self._is_full = False
                missing = self._missing if is_written else 0
                self._missing -= missing
            if missing:
                self._report(missing)

    def _next(self) -> list[bytes]:
        """Wait for lines, and take as many as one write may have."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines)
            self._is_busy = True
            lines = [self._lines.popleft()]
            size = len(lines[0])
            while self._lines and size + len(self._lines[0]) <= select.PIPE_BUF:
                lines.append(self._lines.popleft())
                size += len(lines[-1])
            self._size -= size
        return lines

    def _put(self, data: bytes) -> bool:
        """Write, however long it takes; False: it can't be written."""
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:  # another process has set O_NONBLOCK, for all that have the file
                select.select([], [self._file], [])
            except OSError:
                return False
        return True

    def _drop(self, count: int) -> None:
        self._missing += count
        self.dropped += count


def take() -> None:
    """From now on `sys.stderr` does not wait for its reader."""
    _open_closed()
    before = sys.stderr or open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    file = StandardError(before.fileno(), lambda lines: log.error("lines of the log were dropped", lines=lines))
    atexit.register(file.drain)
    sys.stderr = io.TextIOWrapper(cast(IO[bytes], file), before.encoding, before.errors, line_buffering=True)


def _open_closed() -> None:
    """Give descriptors that the parent has closed to /dev/null: no store or socket must get the number of one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def dropped() -> int:
    """Lines that this process has dropped."""
    file = getattr(sys.stderr, "buffer", None)  # `io.StringIO` has none
    return file.dropped if isinstance(file, StandardError) else 0
