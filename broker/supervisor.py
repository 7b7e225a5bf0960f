"""`flockmq serve --workers N`: one process that starts N nodes, forwards signals and restarts nodes that died.

Each node is `flockmq serve` with the same arguments but its own name, on the same addresses (SO_REUSEPORT: the
kernel spreads connections). Rules:
- Errors in the arguments or the addresses are found here, once, before a node starts.
- A node that can't start (it ends by itself, with an error, in its first seconds) ends all nodes with its status.
- A node that dies later is restarted; the delay doubles while it dies soon.
- Nodes don't outlive this process, even if it is killed.
- Ports stay reserved by a socket that is bound and doesn't listen, so that the kernel gives it no connections.
- Without `cluster.redis` the nodes share a private Redis (private_redis.py). It starts before them, is restarted
  as they are, and stops after them.
"""

import contextlib
import signal
import socket
import time
from collections.abc import Mapping, Sequence

from . import logs, standard_error
from .config.keys import TABLES
from .config.listen_url import ListenUrl
from .config.load import allows_colour, environment
from .config.schema import ClusterConfig, Config
from .errors import FlockError, fail
from .listeners.bind import address_of, bind, host_name
from .listeners.unix_socket import bind_unix, remove
from .private_redis import bring_in, private_redis
from .supervised_process import PYTHON, SIGNALS, SupervisedProcess, status_text

START_SECONDS = 30.0  # in which an error of a new node ends all nodes
HEAD_START = 1.0  # seconds of the first node before the others: an error is then logged once

log = logs.get("flockmq.workers")


class Supervisor:
    """Runs workers until a signal stops them.

    Args:
        commands: name -> command line, in the order in which they start.
        environment: of the workers; this process's unless given.
        inherited: file descriptors of the workers.
        redis: of the workers, if it is to be watched; it runs, and goes on after them.
    """

    def __init__(
        self,
        commands: Mapping[str, list[str]],
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
        redis: SupervisedProcess | None = None,
    ) -> None:
        self._workers = [
            SupervisedProcess("worker", {"worker": name}, command, env=environment, pass_fds=inherited)
            for name, command in commands.items()
        ]
        self._redis = [redis] if redis is not None else []
        self._stopping = False
        self._status = 0

    def run(self) -> int:
        """Start, watch, stop; returns the exit status. Blocks the signals of the process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they wait for `_wait`
        for worker in self._workers[1:]:
            worker.due = time.monotonic() + HEAD_START
        while not (self._stopping and not self._running()):
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

    def _running(self) -> list[SupervisedProcess]:
        return [worker for worker in self._workers if worker.process is not None]

    def _missing(self) -> list[SupervisedProcess]:
        """Processes that are to run and don't; workers that stop still need their Redis."""
        wanted = self._redis if self._stopping else [*self._redis, *self._workers]
        return [child for child in wanted if child.process is None]

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._missing():
            if child.due <= now:
                child.start()
                assert child.process is not None
                log.info(f"{child.kind} started", **child.labels, pid=child.process.pid)

    def _wait(self) -> int:
        """Wait for a signal, or until a process is to be started; returns the signal's number or 0."""
        due = [child.due for child in self._missing()]
        if not due:
            return signal.sigwaitinfo(SIGNALS).si_signo
        caught = signal.sigtimedwait(SIGNALS, max(0.0, min(due) - time.monotonic()))
        return caught.si_signo if caught else 0

    def _send(self, signum: int) -> None:
        for worker in self._running():
            assert worker.process is not None
            worker.process.send_signal(signum)

    def _reap(self) -> None:
        for child in [*self._redis, *self._workers]:
            status = child.process.poll() if child.process is not None else None
            if status is not None:
                self._ended(child, status, child.end())

    def _ended(self, child: SupervisedProcess, status: int, life: float) -> None:
        if self._stopping and child in self._workers:
            if status:
                log.error("worker did not end cleanly", **child.labels, status=status_text(status))
                self._status = self._status or 1
        elif status > 0 and child.lives == 1 and life < START_SECONDS and child in self._workers:
            log.error("a worker can't start: stopping all workers", **child.labels, status=status)
            self._stopping = True
            self._status = status
            self._send(signal.SIGTERM)
        else:
            seconds = f"{child.due - time.monotonic():.1f}"
            event = f"{child.kind} ended: restarting it"
            log.warning(event, **child.labels, status=status_text(status), seconds=seconds)


def supervise(config: Config, arguments: list[str]) -> int:
    """Run `config.cluster.workers` nodes; returns the exit status.

    Args:
        config: effective configuration.
        arguments: of `flockmq serve`.
    """
    standard_error.take()
    logs.configure(config.log.level, config.log.format, colour=allows_colour())
    try:
        with contextlib.ExitStack() as stack:
            return _supervise(config, arguments, stack)
    except FlockError as error:
        return fail(error, 2)


def _supervise(config: Config, arguments: list[str], stack: contextlib.ExitStack) -> int:
    reserved = {}
    for key, (urls, mode) in _addresses(config).items():
        places = [place for url in urls for place in places_of(ListenUrl.parse(url), mode)]
        reserved[key] = [stack.enter_context(contextlib.closing(place)) for place in places]
    http = [each for address in config.http.listen for each in reserve(address)]
    shared = {key: ",".join(place.handed_down for place in places) for key, places in reserved.items()}
    shared |= {"http.listen": ",".join(address for address, _ in http)}
    shared |= {"listen_shared": "true", "cluster.workers": "1"}
    inherited = [place.socket.fileno() for places in reserved.values() for place in places if place.is_unix]
    redis = None
    if not config.cluster.redis:
        redis = stack.enter_context(private_redis(config))
        bring_in(config, redis)
        shared |= {"cluster.redis": redis.url, "cluster.prefix": ClusterConfig.prefix}
        inherited.append(redis.lifeline)
    commands = _commands(config, arguments, shared)
    where = ", ".join(str(place.url) for place in reserved["listen"])
    log.info(f"{config.cluster.workers} workers share the addresses", listen=where)
    if redis is None:
        return Supervisor(commands, environment(), inherited).run()
    return Supervisor(commands, environment(), inherited, redis.child).run() or redis.stop()


def _commands(config: Config, arguments: list[str], settings: Mapping[str, str]) -> dict[str, list[str]]:
    """The command line of each worker, by its name."""
    base = config.cluster.node_name or host_name()
    commands = {}
    for number in range(1, config.cluster.workers + 1):
        name = f"{base[:60]}-{number}"
        own = {**settings, "cluster.node_name": name}
        more = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
        commands[name] = [*PYTHON, "flockmq.broker.cli", "serve", *arguments, *more]
    return commands


class Place:
    """An address of a listener, reserved for the workers.

    Args:
        url: with its real port.
        socket: that reserves it; a Unix socket is bound.
    """

    def __init__(self, url: ListenUrl, socket: socket.socket) -> None:
        self.url = url
        self.is_unix = url.scheme == "unix"
        self.socket = socket

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


def places_of(url: ListenUrl, mode: str) -> list[Place]:
    """The places of an address in `listen`.

    Args:
        url: the address.
        mode: permissions, if it is a Unix socket.

    Raises:
        ListenError: another process has it, or this one may not use it.
    """
    if url.scheme == "unix":
        return [Place(url, bind_unix(url.address, int(mode, 8)))]
    return [Place(url.at(real), reserved) for real, reserved in reserve(url.address)]


def reserve(address: str) -> list[tuple[str, socket.socket]]:
    """HOST:PORT with a real port and a socket that reserves it for the workers, for each host of the address.

    Raises:
        ListenError: another process has it, or this one may not use it.
    """
    scheme, separator, place = address.rpartition("://")
    probes = bind(place)  # not shared: else it would not notice that another process listens
    return [(f"{scheme}{separator}{address_of(probe)}", _reserve(probe)) for probe in probes]


def _reserve(probe: socket.socket) -> socket.socket:
    """A socket that reserves the address of another one, which is closed."""
    with probe:
        family, where = probe.family, probe.getsockname()
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    reserved.bind(where)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # it was needed for connections that ended lately
    return reserved
