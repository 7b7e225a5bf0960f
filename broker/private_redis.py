"""The Redis of `--workers` without a Redis of the user's: its own process and directory, on a Unix socket.

A store `sqlite:PATH` has it in the directory PATH.workers; the store `memory` has it in a temporary one, and nothing of
it is kept. Rules:
- A lock lets one process at a time use the directory. Redis inherits it, so it lasts as long as Redis does.
- Redis outlives the workers, which store their last messages in it, and no other process: the *lifeline* is a pipe
  whose write end the supervisor and the workers hold. The kernel sends Redis SIGTERM when the last of them has ended.
- Each start of Redis mends its append-only file first (append_only_file.py): kill -9 can cut off a transaction.
- State is never in two places: it moves from SQLite into this Redis and back when the number of workers changes.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from urllib.parse import quote

from . import logs
from .append_only_file import DATA
from .config.keys import KEYS
from .config.load import environment
from .config.schema import ClusterConfig, Config
from .errors import StoreError, UsageError
from .supervised_process import PYTHON, SupervisedProcess, end_with_parent, status_text, unblock_signals

SERVERS = ("redis-server", "valkey-server")
SUFFIX = ".workers"  # of the directory, after the path of the SQLite file
SOCKET, LOG, LOCK = "redis.sock", "redis.log", "lock"
MOVED = "moved"  # the last data that was moved back into SQLite
MAX_SOCKET_PATH = 107  # bytes
# Keys that matter then.
MOVED_WITH = ("mqtt.session_expiry", "shared.redispatch", "cluster.lease", "cluster.replicas", "cluster.shards")
LOCK_SECONDS = 2.0  # to wait for a process that is about to end
PAUSE = 0.02  # seconds between attempts
MIN_PENDING_OUTPUT = 32 << 20  # bytes for one subscriber, as Redis has it
# By store.sync. Not everysec: Redis then replies up to 2 s before it writes while the disk syncs, and its death loses
# all that it has acknowledged.
FSYNC = {"full": "always", "normal": "no"}

log = logs.get("flockmq.workers")


class PrivateRedis:
    """A Redis in a directory.

    Args:
        directory: of its files.
        child: its process.
        lifeline: a file descriptor for the workers to inherit.
    """

    def __init__(self, directory: Path, child: SupervisedProcess, lifeline: int) -> None:
        self.directory = directory
        self.child = child
        self.lifeline = lifeline

    @property
    def url(self) -> str:
        """Its URL, as `cluster.redis` takes it."""
        return f"unix://{quote(str(self.directory / SOCKET))}"

    def start(self) -> None:
        """Start it; returns when it answers. Raises StoreError: it ended."""
        self.child.start()
        process = self.child.process
        assert process is not None
        while not self._answers():
            if process.poll() is not None:
                self.child.end()
                *_, reason = ["", *(self.directory / LOG).read_text("utf-8", "replace").splitlines()]
                raise StoreError(
                    f"the Redis of the workers can't start (status {status_text(process.returncode)}): {reason}",
                    f"{self.directory / LOG} has more",
                )
            time.sleep(PAUSE)
        log.info("Redis started", pid=process.pid, redis=self.url)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(self.directory / SOCKET))
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"  # not -LOADING: it reads its file
        return False

    def sync(self) -> None:
        """Sync its append-only file, whatever `appendfsync` is."""
        for path in (self.directory / DATA).iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def stop(self) -> int:
        """Stop it, which writes all that it has; returns its exit status. Harmless when it does not run."""
        if self.child.process is None:
            return 0
        self.child.process.terminate()
        status = self.child.process.wait()
        self.child.end()
        if status:
            log.error("Redis did not end cleanly", status=status_text(status), directory=self.directory)
        return status

    def set_data_aside(self) -> None:
        """The state is in SQLite now: the next workers begin with an empty Redis. It must not run."""
        shutil.rmtree(self.directory / MOVED, ignore_errors=True)
        (self.directory / DATA).rename(self.directory / MOVED)


@contextlib.contextmanager
def private_redis(config: Config) -> Iterator[PrivateRedis]:
    """The private Redis of a store, which has been started and answers; it is stopped at the end.

    Raises:
        StoreError: another process uses its directory, it can't be used, or Redis can't start.
        UsageError: a program or a package is missing.
    """
    server = _server()
    with contextlib.ExitStack() as stack:
        try:
            directory = _prepared(config, stack)
            lock = stack.enter_context(open(directory / LOCK, "ab"))
            output = stack.enter_context(open(directory / LOG, "ab"))
        except OSError as error:
            raise StoreError(
                f"{error.filename} can't be used: {error.strerror}", "check the path of store.url and its permissions"
            ) from error
        _take(lock, directory)
        heard, lifeline = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, heard)
        stack.callback(os.close, lifeline)
        child = SupervisedProcess(
            "Redis",
            {},
            [*PYTHON, "flockmq.broker.append_only_file", server, *_settings(config)],
            cwd=directory,
            env={**environment(), "LC_ALL": "C"},  # Redis refuses a locale that the machine lacks
            stdout=output,
            stderr=output,
            pass_fds=(lock.fileno(), heard),
            preexec_fn=_end_with(heard),
        )
        redis = PrivateRedis(directory, child, lifeline)
        stack.callback(redis.stop)
        redis.start()
        yield redis


def server_path() -> str | None:
    """The path of the Redis or Valkey server of this machine; None: none is installed."""
    return next(filter(None, map(shutil.which, SERVERS)), None)


def _server() -> str:
    """The path of the server that is installed."""
    if find_spec("redis") is None:
        raise UsageError("workers need the package redis", "pip install 'flockmq[cluster]'")
    if (path := server_path()) is not None:
        return path
    raise UsageError(
        "workers need a Redis for their shared state, and neither redis-server nor valkey-server is installed",
        "apt install redis-server (or valkey), or name a Redis with --redis redis://HOST:PORT",
    )


def directory_of(config: Config) -> Path | None:
    """The directory of the private Redis of a store; None: the store keeps nothing."""
    kind, _, path = config.store.url.partition(":")
    return Path(path + SUFFIX).absolute() if kind == "sqlite" else None


def _prepared(config: Config, stack: contextlib.ExitStack) -> Path:
    directory = directory_of(config)
    if directory is None:
        temporary = tempfile.TemporaryDirectory(prefix="flockmq-", ignore_cleanup_errors=True)
        directory = Path(stack.enter_context(temporary))
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)  # this Redis has no password: only its owner may read sessions and messages
    length = len(os.fsencode(directory / SOCKET))
    if length > MAX_SOCKET_PATH:
        raise StoreError(
            f"the path of a socket has at most {MAX_SOCKET_PATH} bytes, and {directory / SOCKET} has {length}",
            "choose a shorter path for store.url, or for TMPDIR",
        )
    return directory


def _take(lock: IO[bytes], directory: Path) -> None:
    """Lock the directory. Raises StoreError: another process has it."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise StoreError(
                    f"{directory} is in use by the workers of another process", "stop it, or choose another store"
                ) from None
        time.sleep(PAUSE)


def _settings(config: Config) -> list[str]:
    """The command line of Redis, which reads no file; paths are relative to its directory."""
    pending = str(max(MIN_PENDING_OUTPUT, 4 * config.limits.max_packet_size))
    settings = {
        "port": "0",
        "unixsocket": SOCKET,
        "unixsocketperm": "700",
        "daemonize": "no",
        "loglevel": "warning",  # so that the log stays small
        "save": "",
        "appendonly": "no" if directory_of(config) is None else "yes",
        "appendfsync": FSYNC[config.store.sync],
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [*words, "--client-output-buffer-limit", "pubsub", pending, pending, "60"]


def _end_with(lifeline: int) -> Callable[[], None]:
    """A function that a child runs before its program: it gets SIGTERM when no process has the write end any more."""

    def prepare() -> None:
        unblock_signals()
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)

    return prepare


# ---- state that moves when the number of workers changes ----


def bring_in(config: Config, redis: PrivateRedis) -> None:
    """Move the state of a single node into the Redis of workers, if there is any.

    Args:
        config: of the workers.
        redis: their Redis, which answers; no worker runs.

    Raises:
        StoreError: it can't be moved.
    """
    kind, _, path = config.store.url.partition(":")
    if kind == "sqlite" and Path(path).exists():
        _move(config.store.url, redis.url, config)
        redis.sync()


def bring_back(config: Config) -> None:
    """Move the state of workers back into the SQLite file of a single node, if there is any.

    Args:
        config: of the node.

    Raises:
        StoreError: it can't be moved, or workers run.
        UsageError: the Redis that has it is not installed.
    """
    directory = directory_of(config)
    if config.cluster.redis or directory is None or not (directory / DATA).exists():
        return
    try:
        with private_redis(config) as redis:
            _move(redis.url, config.store.url, config)
            redis.stop()
            redis.set_data_aside()
    except UsageError as error:
        message = f"{directory} has the state of workers, which a single node takes over: {error.message}"
        raise UsageError(message, error.hint) from error


def _move(source: str, target: str, config: Config) -> None:
    """Run `flockmq migrate`, which does nothing if the source has no state. Raises StoreError."""
    settings = {KEYS[name].variable: str(KEYS[name].of(config)) for name in MOVED_WITH}
    done = subprocess.run(
        [*PYTHON, "flockmq.broker.cli", "migrate", source, target, "--prefix", ClusterConfig.prefix],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment() | settings,
        preexec_fn=end_with_parent(),
    )
    *_, reason = ["no message", *done.stderr.splitlines()]
    if done.returncode:
        raise StoreError(
            f"the state in {source} can't be moved to {target}, where it would be used now "
            f"(status {status_text(done.returncode)}): {reason.removeprefix('flockmq: error: ')}",
            "a move that was interrupted goes on when `flockmq serve` starts with as many workers as then",
        )
    for line in done.stderr.splitlines():
        log.warning(line.removeprefix("flockmq: warning: "))
    for line in done.stdout.splitlines():
        log.info(line)
