"""A node of the broker under proof: started, killed and stopped by commands, and reached through a proxy."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

from .tcp_proxy import TcpProxy

STOP_SECONDS = 10.0


class ProveError(Exception):
    """The broker can't be started, or does not reply."""


class Node:
    """A node, not started yet.

    Args:
        name: for messages and the report.
        command: starts it, in the foreground or, with `kill`, in the background, as `docker compose up -d` does.
        address: host and port at which it listens.
        output: file that gets its output.
        kill: command that kills it; empty: SIGKILL to the process group of `command`.
        patience: seconds until it must accept clients.
    """

    def __init__(
        self, name: str, command: str, address: tuple[str, int], output: Path, kill: str = "", patience: float = 30.0
    ) -> None:
        self.name = name
        self.command = command
        self.address = address
        self.output = output
        self.kill_command = kill
        self.patience = patience
        self.is_up = False  # started, and not killed since
        self.proxy = TcpProxy(address)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it need not accept clients yet."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                shlex.split(self.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.is_up = True

    def wait(self) -> None:
        """Wait until it accepts connections.

        Raises:
            ProveError: it has ended, or does not accept any in time; the text has its last output.
        """
        end = time.monotonic() + self.patience
        while not self.accepts():
            if self._has_failed():
                raise ProveError(f"{self.name} has ended at its start: {self.command}\n{self.last_output()}")
            if time.monotonic() > end:
                place = "{}:{}".format(*self.address)
                raise ProveError(
                    f"{self.name} accepts no connection at {place} after {self.patience:g} s\n{self.last_output()}"
                )
            time.sleep(0.02)

    def accepts(self) -> bool:
        """Whether it accepts connections."""
        with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=1.0):
            return True
        return False

    def kill(self) -> None:
        """kill -9, or the command for it."""
        self.is_up = False
        if self.kill_command:
            subprocess.run(shlex.split(self.kill_command), capture_output=True, check=False, timeout=self.patience)
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self.proxy.cut()

    def pause(self) -> None:
        """Let it stand still (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order, or by force after some seconds."""
        self.go_on()
        self._signal(signal.SIGTERM)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()
        self.proxy.close()

    def last_output(self) -> str:
        """The last lines of its output."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(lines[-12:])

    def has_died(self) -> bool:
        """Whether it has ended by itself since its last start."""
        return self.is_up and self._has_failed()

    def _has_failed(self) -> bool:
        """Whether the command has ended: with a failure, or at all if the node is its process."""
        status = self._process.poll() if self._process is not None else None
        return status is not None and (status != 0 or not self.kill_command)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
