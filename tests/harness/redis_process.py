"""A real Redis or Sentinel as a process: started on a free port, ready when it answers, stopped, killed.

Without persistence unless asked for; its files are in its own directory. `start` takes the same port again. It can be
frozen, lose its clients and run out of memory. `Sentinels` watch a master and its replicas.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import redis

from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

VOLATILE = ["--save", "", "--appendonly", "no"]
# Persistence of a Redis: arguments for RedisProcess.
KEEPS = {
    "nothing": [],
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "always": ["--appendonly", "yes", "--appendfsync", "always"],
}


class RedisProcess:
    """A redis-server.

    Args:
        directory: for its files; also its working directory.
        arguments: more of the command line, such as ["--requirepass", "sesame"].
        connection: a client's arguments beside the port, such as {"password": "sesame"}.
        sentinel: whether it is a Sentinel; its configuration file is then `directory / "redis.conf"`.
    """

    def __init__(
        self,
        directory: Path,
        arguments: list[str] | None = None,
        connection: dict[str, Any] | None = None,
        sentinel: bool = False,
    ) -> None:
        self.directory = directory
        self.arguments = list(arguments or [])
        self.connection = dict(connection or {})
        self.sentinel = sentinel
        self.variables: dict[str, str] = {}  # more of its environment
        self.repairs = True  # a transaction that kill -9 cut off is removed before a start
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The command line of the next start."""
        options = ["--bind", "127.0.0.1"]
        if "--tls-port" not in self.arguments:
            options += ["--port", str(self.port)]
        if self.sentinel:
            return ["redis-sentinel", str(self.directory / "redis.conf"), *options, *self.arguments]
        return ["redis-server", *options, "--dir", str(self.directory), *VOLATILE, *self.arguments]

    def start(self) -> "RedisProcess":
        """Start it and wait until it answers."""
        assert self.process is None, "it runs"
        self.port = self.port or free_port()
        if "--tls-port" in self.arguments:
            self.arguments[self.arguments.index("--tls-port") + 1] = str(self.port)
        if self.repairs and self.manifest.exists():
            command = ["redis-check-aof", "--fix", str(self.manifest)]
            done = subprocess.run(command, input="y\n", capture_output=True, text=True, timeout=DEADLINE)
            assert done.returncode == 0, done.stdout
        with open(self.directory / "redis.log", "ab") as log:
            environment = os.environ | self.variables
            self.process = subprocess.Popen(self.command(), cwd=self.directory, stdout=log, stderr=log, env=environment)
        assert self._is_ready(), "Redis did not start\n" + (self.directory / "redis.log").read_text()
        return self

    def _is_ready(self) -> bool:
        end = time.monotonic() + DEADLINE
        assert self.process is not None
        while self.process.poll() is None:
            with contextlib.suppress(redis.RedisError), self.client() as client:
                client.ping()
                return True
            assert time.monotonic() < end, "Redis does not answer"
            time.sleep(0.01)
        return False

    @property
    def manifest(self) -> Path:
        """The file that lists the files of its append-only file."""
        return self.directory / "appendonlydir" / "appendonly.aof.manifest"

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None, "it does not run"
        return self.process.pid

    def client(self, **more: Any) -> redis.Redis:
        """A client of redis-py; replies are text."""
        arguments: dict[str, Any] = {"port": self.port, "decode_responses": True, "socket_timeout": DEADLINE}
        return redis.Redis(**arguments | self.connection | more)

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End it. Harmless when it does not run."""
        if self.process is None:
            return
        self.process.send_signal(signum)
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """kill -9."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """End it cleanly and start it again on the same port, with its data on disk."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """kill -9, and a start with nothing: the disk is lost too."""
        self.kill()
        for file in sorted(self.directory.rglob("*"), reverse=True):
            if file.is_dir():
                file.rmdir()
            elif file.name not in ("redis.log", "redis.conf"):
                file.unlink()
        self.start()

    # ---- faults ----

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def cut(self, kind: str) -> int:
        """Close the connections of a kind: `normal`, `pubsub` or `replica`; returns how many."""
        with self.client() as client:
            return int(client.client_kill_filter(_type=kind, skipme=True))

    def set(self, **settings: str | int) -> None:
        """CONFIG SET; hyphens are written as underscores."""
        with self.client() as client:
            for name, value in settings.items():
                client.config_set(name.replace("_", "-"), value)

    # ---- what is in it ----

    def key_names(self, pattern: str = "*") -> list[str]:
        """All keys, sorted; bytes that aren't UTF-8 are escaped."""
        with self.client(decode_responses=False) as client:
            return sorted(key.decode(errors="backslashreplace") for key in client.scan_iter(pattern, count=1000))

    def memory(self) -> dict[str, int]:
        """Bytes by key."""
        with self.client(decode_responses=False) as client:
            return {
                key.decode(errors="backslashreplace"): client.memory_usage(key) or 0
                for key in client.scan_iter(count=1000)
            }


def urls(servers: Iterable[RedisProcess]) -> str:
    """As `cluster.redis` has several primaries."""
    return " ".join(server.url for server in servers)


@contextlib.contextmanager
def several(directory: Path, count: int, keeps: str) -> Iterator[list[RedisProcess]]:
    """Run empty Redis while the block lasts. `keeps`: a key of KEEPS."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(count):
            place = directory / f"redis-{number}"
            place.mkdir()
            servers.append(RedisProcess(place, list(KEEPS[keeps])).start())
            stack.callback(servers[-1].stop)
        yield servers


class Sentinels:
    """A master, its replicas, and Sentinels that watch them; all on this machine.

    Args:
        directory: for the files of all.
        keeps: a key of KEEPS.
        replicas: number of replicas.
        sentinels: number of Sentinels; most of them must agree.
        down_after: seconds after which a silent master is taken for dead.
    """

    NAME = "flock"

    def __init__(
        self, directory: Path, keeps: str = "always", replicas: int = 1, sentinels: int = 1, down_after: float = 0.5
    ) -> None:
        self.directory = directory
        self.down_after = down_after
        arguments = [*KEEPS[keeps], "--repl-diskless-sync-delay", "0"]
        self.servers = [RedisProcess(self._place(f"redis-{n}"), list(arguments)) for n in range(1 + replicas)]
        self.sentinels = [RedisProcess(self._place(f"sentinel-{n}"), sentinel=True) for n in range(sentinels)]

    def _place(self, name: str) -> Path:
        place = self.directory / name
        place.mkdir()
        return place

    @property
    def url(self) -> str:
        """Where to ask for the master."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.NAME}"

    @property
    def master(self) -> RedisProcess:
        """The server that the Sentinels take for the master."""
        with self.sentinels[0].client() as client:
            port = int(client.sentinel_master(self.NAME)["port"])
        return next(server for server in self.servers if server.port == port)

    def start(self) -> "Sentinels":
        """Start all; returns when the replicas have everything and the Sentinels have them."""
        master, *replicas = self.servers
        master.start()
        for replica in replicas:
            replica.arguments += ["--replicaof", "127.0.0.1", str(master.port)]
            replica.start()
        quorum = len(self.sentinels) // 2 + 1
        for sentinel in self.sentinels:
            milliseconds = int(self.down_after * 1000)
            (sentinel.directory / "redis.conf").write_text(
                f"sentinel monitor {self.NAME} 127.0.0.1 {master.port} {quorum}\n"
                f"sentinel down-after-milliseconds {self.NAME} {milliseconds}\n"
                f"sentinel failover-timeout {self.NAME} {max(1000, 4 * milliseconds)}\n"
            )
            sentinel.start()
        self._wait(lambda: all(self._synced(replica) for replica in replicas))
        self._wait(self._known)
        return self

    def _synced(self, replica: RedisProcess) -> bool:
        with replica.client() as client:
            return client.info("replication").get("master_link_status") == "up"

    def _known(self) -> bool:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                state = client.sentinel_master(self.NAME)
            if state["num-slaves"] < len(self.servers) - 1 or state["num-other-sentinels"] < len(self.sentinels) - 1:
                return False
        return True

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 2 * DEADLINE  # a Sentinel looks around every ten seconds
        while not condition():
            assert time.monotonic() < end, "the Sentinels never got ready"
            time.sleep(0.05)

    def wait_for_failover(self, old: RedisProcess) -> RedisProcess:
        """Wait until another server than `old` is the master, and takes writes."""

        def changed() -> bool:
            master = self.master
            if master is old or master.process is None:
                return False
            with master.client() as client:
                return client.info("replication")["role"] == "master"

        self._wait(changed)
        return self.master

    def stop(self) -> None:
        """End all."""
        for process in (*self.sentinels, *self.servers):
            process.kill()
