"""`flockmq serve --workers N`: one process that starts N nodes, forwards signals and restarts nodes that died.

Each node is `flockmq serve` with the same arguments but a name of its own, on the same addresses (SO_REUSEPORT: the
kernel spreads connections). Rules:
- Errors in the arguments or the addresses are found here, once, before a node starts.
- A node that can't start (it ends by itself, with an error, in its first seconds) ends all nodes with its status.
- A node that dies later is restarted; the delay doubles while it dies soon.
- Nodes don't outlive this process, even if it is killed.
- Ports stay reserved by a socket that is bound and doesn't listen, so that the kernel gives it no connections.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from broker import logs
from broker.config.keys import TABLES
from broker.config.listen_url import ListenUrl
from broker.config.load import environment
from broker.config.schema import Config
from broker.errors import ListenError, fail
from broker.listeners.bind import address_of, bind, host_name
from broker.listeners.unix_socket import bind_unix, remove

SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
FIRST_DELAY, LAST_DELAY = 0.5, 30.0  # seconds until a node that died is restarted
LONG_LIFE = 60.0  # seconds after which a death isn't one of a series
START_SECONDS = 30.0  # in which an error of a new node ends all nodes
HEAD_START = 1.0  # seconds of the first node before the others: an error is then logged once
PR_SET_PDEATHSIG = 1

log = logs.get("flockmq.workers")


class Worker:
    """One node, over all its lives."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.began = 0.0  # start of this life or the last one
        self.delay = FIRST_DELAY
        self.due = 0.0  # when to start it, if it doesn't run

    def start(self, environment: Mapping[str, str] | None, inherited: Sequence[int] = ()) -> None:
        """Start its process."""
        self.lives += 1
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=inherited,
            process_group=0,  # Ctrl-C reaches only the supervisor, which forwards it once
            preexec_fn=_prepare_child(os.getpid()),
        )
        log.info("worker started", worker=self.name, pid=self.process.pid)

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


class Supervisor:
    """Runs workers until a signal stops them.

    Args:
        commands: name -> command line, in the order in which they start.
        environment: of the workers; that of this process unless given.
        inherited: file descriptors of the workers.
    """

    def __init__(
        self,
        commands: Mapping[str, list[str]],
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self._workers = [Worker(name, command) for name, command in commands.items()]
        self._environment = environment
        self._inherited = inherited
        self._stopping = False
        self._status = 0

    def run(self) -> int:
        """Start, watch, stop; returns the exit status. Blocks the signals of the process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they wait for `_wait`
        for worker in self._workers[1:]:
            worker.due = time.monotonic() + HEAD_START
        while not (self._stopping and not self._running()):
            if not self._stopping:
                self._start_due()
            signum = self._wait()
            if signum == signal.SIGHUP:
                self._send(signum)
            elif signum in (signal.SIGTERM, signal.SIGINT):
                log.info("stopping", workers=len(self._running()))
                self._stopping = True
                self._send(signum)
            self._reap()
        log.info("stopped")
        return self._status

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.process is not None]

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is None and worker.due <= now:
                worker.start(self._environment, self._inherited)

    def _wait(self) -> int:
        """Wait for a signal, or until a worker is to be started; returns the signal's number or 0."""
        due = [worker.due for worker in self._workers if worker.process is None]
        if self._stopping or not due:
            return signal.sigwaitinfo(SIGNALS).si_signo
        caught = signal.sigtimedwait(SIGNALS, max(0.0, min(due) - time.monotonic()))
        return caught.si_signo if caught else 0

    def _send(self, signum: int) -> None:
        for worker in self._running():
            assert worker.process is not None
            worker.process.send_signal(signum)

    def _reap(self) -> None:
        for worker in self._running():
            assert worker.process is not None
            status = worker.process.poll()
            if status is not None:
                self._ended(worker, status, worker.end())

    def _ended(self, worker: Worker, status: int, life: float) -> None:
        if self._stopping:
            if status:
                log.error("worker did not end cleanly", worker=worker.name, status=_status_text(status))
                self._status = self._status or 1
        elif status > 0 and worker.lives == 1 and life < START_SECONDS:
            log.error("a worker can't start: stopping all workers", worker=worker.name, status=status)
            self._stopping = True
            self._status = status
            self._send(signal.SIGTERM)
        else:
            seconds = f"{worker.due - time.monotonic():.1f}"
            log.warning("worker ended: restarting it", worker=worker.name, status=_status_text(status), seconds=seconds)


def supervise(config: Config, arguments: list[str]) -> int:
    """Run `config.cluster.workers` nodes; returns the exit status.

    Args:
        config: effective configuration.
        arguments: of `flockmq serve`.
    """
    logs.configure(config.log.level, config.log.format)
    try:
        reserved = {key: [Place(url, mode) for url in urls] for key, (urls, mode) in _addresses(config).items()}
        http = [reserve(address) for address in config.http.listen]
    except ListenError as error:
        return fail(error, 2)
    shared = {key: ",".join(place.handed_down for place in places) for key, places in reserved.items()}
    shared |= {"http.listen": ",".join(address for address, _ in http)}
    shared |= {"listen_shared": "true", "cluster.workers": "1"}
    base = config.cluster.node_name or host_name()
    commands = {}
    for number in range(1, config.cluster.workers + 1):
        name = f"{base[:60]}-{number}"
        settings = shared | {"cluster.node_name": name}
        more = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        # -P: a `broker` in the working directory is not this package.
        commands[name] = [sys.executable, "-P", "-m", "broker.cli", "serve", *arguments, *more]
    places = [place for places in reserved.values() for place in places]
    where = ", ".join(str(place.url) for place in reserved["listen"])
    log.info(f"{config.cluster.workers} workers share the addresses", listen=where)
    try:
        return Supervisor(commands, _environment(), [place.socket.fileno() for place in places if place.is_unix]).run()
    finally:
        for place in places:
            place.close()


class Place:
    """An address of a listener, reserved for the workers.

    Args:
        text: as in `listen`.
        mode: permissions, if it is a Unix socket.

    Raises:
        ListenError: another process has it, or this one may not use it.
    """

    def __init__(self, text: str, mode: str) -> None:
        self.url = ListenUrl.parse(text)
        self.is_unix = self.url.scheme == "unix"
        if self.is_unix:
            self.socket = bind_unix(self.url.address, int(mode, 8))
        else:
            real, self.socket = reserve(self.url.address)
            self.url = self.url.at(real)

    @property
    def handed_down(self) -> str:
        """The address for a node: only one process can bind a Unix socket, so nodes inherit it."""
        return f"fd:{self.socket.fileno()}" if self.is_unix else str(self.url)

    def close(self) -> None:
        """Release it."""
        if self.is_unix:
            remove(self.url.address, self.socket)
        self.socket.close()


def _addresses(config: Config) -> dict[str, tuple[tuple[str, ...], str]]:
    """Addresses of listeners, with the permissions of Unix sockets, by the key that names them."""
    sections = {
        "listen": (config.listen, config.socket_mode),
        "proxy.listen": (config.proxy.listen, config.socket_mode),
    }
    named = {f"{TABLES}{each.name}.listen": (each.listen, each.socket_mode) for each in config.listeners[1:]}
    return sections | named


def reserve(address: str) -> tuple[str, socket.socket]:
    """HOST:PORT with a real port, and a socket that reserves it for the workers.

    Raises:
        ListenError: another process has it, or this one may not use it.
    """
    scheme, separator, place = address.rpartition("://")
    with bind(place) as probe:  # not shared: else it would not notice that another process listens
        real, family, where = address_of(probe), probe.family, probe.getsockname()
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    reserved.bind(where)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # it was needed for connections that ended lately
    return scheme + separator + real, reserved


def _environment() -> dict[str, str]:
    """That of this process, with the directory of this package."""
    own = environment()
    places = [str(Path(__file__).resolve().parent.parent), own.get("PYTHONPATH", "")]
    return {**own, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _prepare_child(parent: int) -> Callable[[], None]:
    """A function that a child runs before it becomes a node."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before prctl
            os._exit(1)

    return prepare


def _status_text(status: int) -> str:
    """An exit status as text."""
    return str(status) if status >= 0 else signal.Signals(-status).name
