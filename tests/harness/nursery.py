"""Processes of Python that begin with everything imported: forks of one process that has imported the broker.

The start of an interpreter and its imports cost a node more than the rest of most tests. A fork is a process like any
other: it has its number, files, environment, working directory and signals; only its modules were read before. Tests of
memory, of the command line's own start and of imports start a process the usual way.

A fork ends as an interpreter does, threads and exit handlers included, but for the last step: it does not take its
modules apart. With collections of garbage, which copy pages, that was three quarters of a node's start and end.

`start` and `run` replace `subprocess.Popen` and `subprocess.run`. The nursery starts with the first of them, and ends
with the process of the tests.
"""

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import IO, Any, NoReturn

REQUEST_BYTES = 1 << 17
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flockmq.broker", "flockmq.cluster")
NOT_IMPORTED = (
    "flockmq.broker.public",
    "flockmq.cluster.analytics",
    "flockmq.cluster.replay",
)  # a node does not import them either

Stream = IO[Any] | int | None

_lock = threading.Lock()
_nursery: "tuple[int, socket.socket] | None" = None  # process number of its user, and the way to ask it


class ForkedProcess:
    """A process that the nursery has forked, used as a `subprocess.Popen`; its arguments mean the same.

    Args:
        command: [sys.executable, "-m", MODULE, ARGUMENT, ...].
        cwd: its working directory.
        env: its environment.
        constants: values of its modules' constants, by `module.NAME`.
        stdin: None, PIPE, DEVNULL or a file.
        stdout: the same.
        stderr: the same.
        text: whether the files of this side are of text, not of bytes.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        constants: Mapping[str, object] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = False,
    ) -> None:
        self.args = [str(word) for word in command]
        self.returncode: int | None = None
        request = {
            "command": self.args,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "constants": dict(constants or {}),
        }
        ours: list[int | None] = []
        theirs: list[int] = []
        passed: list[int] = []  # the part of `theirs` that was made here
        for number, stream in enumerate((stdin, stdout, stderr)):
            mine = None
            if stream == subprocess.PIPE:
                reads, writes = os.pipe()
                mine, other = (writes, reads) if number == 0 else (reads, writes)
                passed.append(other)
            elif stream == subprocess.DEVNULL:
                other = os.open(os.devnull, os.O_RDWR)
                passed.append(other)
            else:
                other = number if stream is None else stream if isinstance(stream, int) else stream.fileno()
            ours.append(mine)
            theirs.append(other)
        self._status, status = os.pipe()
        weakref.finalize(self, os.close, self._status)
        self._reading = threading.Lock()
        with _lock:
            self.pid = _fork(json.dumps(request).encode(), [*theirs, status])
        for file in (*passed, status):
            os.close(file)
        self.stdin, self.stdout, self.stderr = (
            None if file is None else os.fdopen(file, ("r" if number else "w") + ("" if text else "b"))
            for number, file in enumerate(ours)
        )

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit status as of Popen, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._reading:  # several threads may wait
                if self.returncode is None:
                    self.returncode = int(os.read(self._status, 32) or b"-9")  # nothing: the nursery is gone
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Write the input, read all output, wait for the end; as Popen's."""
        results: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str, file: IO[Any]) -> None:
            with file:
                results[name] = file.read()

        def write() -> None:
            assert self.stdin is not None
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or ("" if isinstance(input, str) else b""))

        threads = [
            threading.Thread(target=read, args=(name, file), daemon=True)
            for name, file in (("stdout", self.stdout), ("stderr", self.stderr))
            if file is not None and not file.closed
        ]
        if self.stdin is not None and not self.stdin.closed:
            threads.append(threading.Thread(target=write, daemon=True))
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return results["stdout"], results["stderr"]


def _is_module(command: Sequence[str | Path]) -> bool:
    return list(command[:2]) == [sys.executable, "-m"]


def start(
    command: Sequence[str | Path], constants: Mapping[str, object] | None = None, **more: Any
) -> "subprocess.Popen[Any] | ForkedProcess":
    """`subprocess.Popen`; a module of Python is run by a process with everything imported, and with these constants."""
    if _is_module(command):
        return ForkedProcess(command, constants=constants, **more)
    assert not constants, "only forks have constants of their tests"
    return subprocess.Popen(command, **more)


def run(
    command: Sequence[str | Path],
    *,
    input: Any = None,  # noqa: A002
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **more: Any,
) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run`; a module of Python is run by a process with everything imported."""
    if not _is_module(command):
        return subprocess.run(command, input=input, capture_output=capture_output, timeout=timeout, check=check, **more)
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        more["stdin"] = subprocess.PIPE
    process = ForkedProcess(command, **more)
    try:
        output, errors = process.communicate(input, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    done = subprocess.CompletedProcess(process.args, process.wait(), output, errors)
    if check:
        done.check_returncode()
    return done


def _fork(request: bytes, files: list[int]) -> int:
    """Have the nursery fork; returns the process number. A nursery that has died is replaced."""
    global _nursery
    for _ in range(2):
        nursery = _ask()
        with contextlib.suppress(ConnectionError):
            socket.send_fds(nursery, [request], files)
            answer = nursery.recv(32)
            if answer:
                return int(answer)
        nursery.close()
        _nursery = None
    raise RuntimeError("the nursery dies; see its standard error")


def _ask() -> socket.socket:
    """The way to the nursery, which is started if need be."""
    global _nursery
    if _nursery is None or _nursery[0] != os.getpid():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.harness.nursery", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        _nursery = (os.getpid(), ours)
    return _nursery[1]


# ---- the nursery's own side ----


def import_everything() -> None:
    """Import what nodes and commands import."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not found.name.startswith(NOT_IMPORTED) and not found.name.endswith("__main__"):
                import_module(found.name)
    metadata.version = cache(metadata.version)  # it searches the installed packages, for each client of Redis
    import_module("flockmq.broker.version").version()
    metadata.version("redis")
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page


def serve(control: socket.socket) -> list[str]:
    """Fork until the tests end. Returns in each child: its command."""
    statuses: dict[int, int] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([control, ended], [], [])
        if ended in readable:
            os.read(ended, 4096)
            while statuses:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                file = statuses.pop(pid)
                with contextlib.suppress(BrokenPipeError):  # a test that does not ask for it has closed its end
                    os.write(file, b"%d" % os.waitstatus_to_exitcode(status))
                os.close(file)
        if control in readable:
            message, files, _, _ = socket.recv_fds(control, REQUEST_BYTES, 4)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for file in (*statuses.values(), files[3], ended, wake):
                    os.close(file)
                control.close()
                return become(json.loads(message), files[:3])
            statuses[pid] = files.pop()
            for file in files:
                os.close(file)
            control.send(b"%d" % pid)


def become(request: dict[str, Any], files: list[int]) -> list[str]:
    """Take the place, the environment, the files and the constants that were asked for; returns the command."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])
    search = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:1] = [place for place in search if place not in sys.path[1:]]  # the first was our own directory
    time.tzset()
    for name, value in request["constants"].items():
        module, _, constant = name.rpartition(".")
        assert hasattr(import_module(module), constant), name
        setattr(import_module(module), constant, value)
    return list(request["command"])


def run_module(command: Sequence[str]) -> NoReturn:
    """Run a module as `python -m` does, and end the process with its exit status."""
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it becomes __main__
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as end:
        sys.excepthook(type(end), end, end.__traceback__)
        status = -signal.SIGINT if isinstance(end, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        status = status or 120  # as an interpreter
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    import_everything()
    run_module(serve(socket.socket(fileno=int(sys.argv[1]))))
