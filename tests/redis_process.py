"""A real Redis or Sentinel as a process of its own: started on a free port, ready when it answers, stopped, killed.

Without persistence unless told; what it writes is in its own directory. `start` takes the same port again.
"""

import contextlib
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import redis

DEADLINE = 20.0  # seconds that anything may take on a busy machine
VOLATILE = ["--save", "", "--appendonly", "no"]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RedisProcess:
    """A redis-server.

    Args:
        directory: for its files; also its working directory.
        arguments: more of the command line, such as ["--requirepass", "sesame"].
        connection: what a client needs beside the port, such as {"password": "sesame"}.
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
        for _ in range(5):
            port = self.port or free_port()
            self.port, before = port, self.port
            if "--tls-port" in self.arguments:
                self.arguments[self.arguments.index("--tls-port") + 1] = str(port)
            with open(self.directory / "redis.log", "ab") as log:
                self.process = subprocess.Popen(self.command(), cwd=self.directory, stdout=log, stderr=log)
            if self._answers():
                return self
            self.process.wait(DEADLINE)  # somebody else took the port
            self.process, self.port = None, before
        raise AssertionError("Redis did not start\n" + (self.directory / "redis.log").read_text())

    def _answers(self) -> bool:
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
