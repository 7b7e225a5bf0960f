"""A process that a supervisor starts, and starts again when it has ended: its lives, and the delays between them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # a supervisor blocks them, and waits for them
FIRST_DELAY, LAST_DELAY = 0.5, 30.0  # seconds until one that died is restarted
LONG_LIFE = 60.0  # seconds after which a death isn't one of a series
PR_SET_PDEATHSIG = 1
PYTHON = (sys.executable, "-P", "-m")  # before a module; -P: a `flockmq` in the working directory is not this package


class SupervisedProcess:
    """One process, over all its lives.

    Args:
        kind: "worker" or "Redis"; its lines in the log begin with it.
        labels: of its lines in the log.
        command: its command line.
        options: more arguments of `subprocess.Popen`.
    """

    def __init__(self, kind: str, labels: Mapping[str, str], command: Sequence[str], **options: Any) -> None:
        self.kind = kind
        self.labels = labels
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.began = 0.0  # start of this life or the last one
        self.delay = FIRST_DELAY
        self.due = 0.0  # when to start it, if it doesn't run
        self._command = command
        self._options = {"preexec_fn": end_with_parent(), **options}

    def start(self) -> None:
        """Start its process."""
        self.lives += 1
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches only the supervisor, which forwards it once
            **self._options,
        )

    def end(self) -> float:
        """Its process has ended; returns how long it ran, in seconds."""
        now = time.monotonic()
        life = now - self.began
        self.process = None
        if life >= LONG_LIFE:
            self.delay = FIRST_DELAY
        self.due = now + self.delay
        self.delay = min(self.delay * 2, LAST_DELAY)
        return life


def end_with_parent() -> Callable[[], None]:
    """A function that a child runs before its program: it gets SIGTERM when this process ends."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:
        unblock_signals()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before prctl
            os._exit(1)

    return prepare


def unblock_signals() -> None:
    """Give a child the signals that its parent blocks."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def status_text(status: int) -> str:
    """An exit status as text."""
    return str(status) if status >= 0 else signal.Signals(-status).name
