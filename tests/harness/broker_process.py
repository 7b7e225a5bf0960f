"""A real node as a process: started, watched through its log, stopped, killed, started again.

Nothing waits for seconds: `start` returns when the node has logged its address, `wait_for_log` when a line has come.
Every wait has a deadline, so that a broker that hangs is a failed test. `check` fails when the node has logged an
internal fault; the fixtures of conftest.py call it for every node.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.harness import nursery
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
ANY_PORT = "127.0.0.1:0"
PAGE = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

# Every protocol test runs against each of these: the flags for a store in a directory. A new one is one line.
STORES: dict[str, Callable[[Path], list[str]]] = {
    "memory": lambda directory: ["--store", "memory"],
    "sqlite": lambda directory: ["--store", f"sqlite:{directory / 'flockmq.db'}", "--sync", "normal"],
}


class Settler(Protocol):
    """A cluster, whose nodes need a moment to see each other's changes; a node alone needs none."""

    def settle(self) -> None:
        """Return when all nodes have acted on what was sent to any of them before."""

    def take_turns(self, client: object) -> None:
        """Settle if another client was the last to send."""


SETTLERS: dict[int, Settler] = {}  # by port


def settle(port: int) -> bool:
    """If the port is a cluster's, let the cluster settle; returns whether it is."""
    settler = SETTLERS.get(port)
    if settler is not None:
        settler.settle()
    return settler is not None


def take_turns(port: int, client: object) -> None:
    """A client is about to send: in a cluster, packets of others have been acted on when this returns."""
    settler = SETTLERS.get(port)
    if settler is not None:
        settler.take_turns(client)


def environment() -> dict[str, str]:
    """Our environment without settings of a node; the node is imported from this tree."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FLOCKMQ_")}
    return {**clean, "PYTHONPATH": str(ROOT)}


class BrokerProcess:
    """A node.

    Args:
        directory: for its store; also its working directory.
        store: a key of STORES.
        settings: configuration keys and values, as for `--set`; constants of modules, by `flockmq.module.NAME`.
        arguments: more of the command line.
        listen: address; by default of a free port, which later starts take again.
        fresh: whether it is a new interpreter from the start, not a fork of one that has imported everything.
    """

    def __init__(
        self,
        directory: Path,
        store: str = "memory",
        settings: Mapping[str, object] | None = None,
        arguments: list[str] | None = None,
        listen: str = ANY_PORT,
        fresh: bool = False,
    ) -> None:
        self.directory = directory
        self.store = store
        self.settings = dict(settings or {})
        self.arguments = list(arguments or [])
        self.listen = listen
        self.fresh = fresh
        self.variables: dict[str, str] = {}  # more of its environment
        self.port = 0
        self.process: subprocess.Popen[str] | nursery.ForkedProcess | None = None
        self.log: list[dict[str, Any]] = []  # all lines of all starts, as objects
        self._news = threading.Condition()
        self._reader: threading.Thread | None = None
        self._spawned_at = 0

    def command(self) -> list[str]:
        """The command line of the next start."""
        command = [sys.executable, "-m", "flockmq.broker.cli", "serve", "--log-format", "json"]
        if not self.port and self.listen == ANY_PORT:
            self.port = free_port()  # later starts take the same one, which must still be free then
        command += ["--listen", f"127.0.0.1:{self.port}" if self.port else self.listen]
        command += self.store_arguments()
        for name, value in self.settings.items():
            if name in self.constants():
                continue
            command += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return command + self.arguments

    def constants(self) -> dict[str, object]:
        """The constants of modules that have other values in this process."""
        return {name: value for name, value in self.settings.items() if name.startswith("flockmq.")}

    def store_arguments(self) -> list[str]:
        """The flags for the place of its state."""
        return STORES[self.store](self.directory)

    # ---- life ----

    def start(self, **popen: Any) -> "BrokerProcess":
        """Start the node and wait until it is ready; a second start takes the same port and store."""
        self.spawn(**popen)
        return self.wait_until_ready()

    def spawn(self, **popen: Any) -> None:
        """Start the process, and don't wait."""
        assert self.process is None, "it runs"
        self._spawned_at = len(self.log)
        if self.fresh or self.variables or popen:
            start = subprocess.Popen
            assert not self.constants()
        else:
            start = partial(nursery.start, constants=self.constants())
        self.process = start(
            self.command(),
            cwd=self.directory,
            env=environment() | self.variables,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> "BrokerProcess":
        """Wait until the spawned process accepts clients."""
        ready = self.wait_for_log(r"is ready$", since=self._spawned_at)
        self.port = int(ready["listen"].split(",")[0].rpartition(":")[2])
        return self

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None, "it does not run"
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def signal(self, signum: int) -> None:
        """Send a signal."""
        os.kill(self.pid, signum)

    def wait(self) -> int:
        """Wait for the end of the process; returns its exit status."""
        assert self.process is not None, "it does not run"
        try:
            status = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the node did not end in time\n" + self.log_text()) from None
        assert self._reader is not None
        self._reader.join(DEADLINE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process = None
        return status

    def stop(self) -> int:
        """End it with SIGTERM; returns its exit status. Harmless when it does not run."""
        if self.process is None:
            return 0
        if self.running:
            self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """End it and all that belongs to it."""
        self.stop()

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Stop it cleanly and start it again with the same port and store."""
        assert self.stop() == 0
        self.start()

    # ---- its log ----

    def _read(self, process: "subprocess.Popen[str] | nursery.ForkedProcess") -> None:
        assert process.stderr is not None
        for text in process.stderr:
            try:
                line = json.loads(text)
            except ValueError:
                line = {}
            if not isinstance(line, dict) or "event" not in line:
                line = {"level": "raw", "event": text.rstrip("\n")}
            self._said(line)
        with self._news:
            self._news.notify_all()

    def _said(self, line: dict[str, Any]) -> None:
        with self._news:
            self.log.append(line)
            self._news.notify_all()

    def wait_for_log(self, event: str, since: int = 0, **values: object) -> dict[str, Any]:
        """The first log line, from number `since` on, whose event holds the pattern and whose values are these."""
        deadline = time.monotonic() + DEADLINE
        seen = since
        with self._news:
            while True:
                for line in self.log[seen:]:
                    if re.search(event, line["event"]) and all(line.get(name) == values[name] for name in values):
                        return line
                seen = len(self.log)
                assert self._reader is not None
                ended = not self._reader.is_alive()
                left = deadline - time.monotonic()
                assert left > 0 and not ended, f"no line {event!r} {values} in the log:\n{self.log_text()}"
                self._news.wait(min(left, 0.5))

    def log_text(self) -> str:
        """The log, to be shown when a test fails."""
        return "\n".join(json.dumps(line) for line in self.log[-60:]) or "(nothing logged)"

    def faults(self) -> list[dict[str, Any]]:
        """Log lines about a fault of the broker itself, and the reports of sanitizers (tests/sanitize.sh)."""
        python = ("internal error", "Traceback", "Exception ignored", "never awaited", "exception in callback")
        words = (*python, "AddressSanitizer", "runtime error:")
        return [
            line
            for line in self.log
            if "traceback" in line or any(word.lower() in line["event"].lower() for word in words)
        ]

    def check(self) -> None:
        """Fail if the node has logged an internal fault."""
        assert not self.faults(), "\n\n".join(
            str(line.get("traceback") or line.get("error") or line["event"]) for line in self.faults()
        )

    # ---- what it uses ----

    def rss(self) -> int:
        """Bytes of memory that are resident."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE

    def cpu(self) -> float:
        """Seconds of CPU time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def open_files(self) -> int:
        """How many file descriptors it has."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def until(condition: Callable[[], Any], what: str = "", deadline: float = DEADLINE, pause: float = 0.01) -> Any:
    """Wait for something that can only be asked for, every `pause` seconds; returns what it was."""
    end = time.monotonic() + deadline
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"it did not happen in {deadline} s: {what or condition}"
        time.sleep(pause)
