"""Runs the shell sessions of a document: each command of its ```console blocks, and the output that stands below it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple

from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b(?:18[89]\d|8883|8884|6379|8080|8081)\b")
SERVER = re.compile(r"(flockmq serve|redis-server|mosquitto -c)\b.*&\)?$", re.DOTALL)
END = "end of command"


class Step(NamedTuple):
    """A command, and lines of its output; `...` in a line is any text."""

    command: str
    output: list[str]


def steps(document: str) -> Iterator[Step]:
    """The steps of a document. `$ ` begins a command, `>` continues it."""
    for block in BLOCK.findall(document):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *rest = part.splitlines()
            more = [line for line in rest if line == ">" or line.startswith("> ")]
            yield Step("\n".join([first, *(line[2:] for line in more)]), [line for line in rest if line not in more])


class Session:
    """A shell in an empty directory. The usual ports of the document are free ports here.

    Args:
        directory: to work in.
        path: directories with programs, before the directories of the system.
    """

    def __init__(self, directory: Path, path: str) -> None:
        self._ports: dict[str, int] = {}
        self._lines: Queue[str] = Queue()
        environment = {**os.environ, "PATH": f"{path}:/usr/sbin:{os.environ['PATH']}", "HOME": str(directory)}
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        for program in ("mosquitto_pub", "mosquitto_sub"):  # their default is 1883
            self._write(f'{program}() {{ "{shutil.which(program)}" -p {self._port("1883")} "$@"; }}')

    def run(self, step: Step) -> None:
        """Run a step, and wait for its output; extra lines are no fault."""
        command = self._mapped(step.command)
        self._write(f"{command}\necho {END}: $?")
        seen: list[str] = []
        status = ""
        wanted = [self._pattern(line) for line in step.output]
        while wanted or not status:
            try:
                line = self._lines.get(timeout=DEADLINE)
            except Empty:
                raise AssertionError(f"$ {step.command}\n{chr(10).join(seen)}\nno more; expected {wanted}") from None
            seen.append(line)
            if line.startswith(END):
                status = line.removeprefix(f"{END}: ")
            elif wanted and wanted[0].fullmatch(line.rstrip()):
                wanted.pop(0)
        is_refused = any("Error" in line or "error" in line for line in step.output)
        assert status == "0" or is_refused, f"$ {step.command}\n{chr(10).join(seen)}"
        if SERVER.search(step.command):
            ports = self._ports_of(command)
            until(lambda: all(map(is_open, ports)), f"a server listens on {ports}: {step.command}")

    def close(self) -> None:
        """End the shell, and what it has started."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line.rstrip("\n"))

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text + "\n")
        self._shell.stdin.flush()

    def _port(self, usual: str) -> int:
        if usual not in self._ports:
            self._ports[usual] = free_port()
        return self._ports[usual]

    def _mapped(self, text: str) -> str:
        return PORT.sub(lambda match: str(self._port(match[0])), text)

    def _pattern(self, line: str) -> re.Pattern[str]:
        return re.compile(".*".join(map(re.escape, self._mapped(line).split("..."))))

    def _ports_of(self, command: str) -> set[int]:
        """The ports that a command names, or a file that it names."""
        here = Path(f"/proc/{self._shell.pid}/cwd").resolve()
        files = [here / word for word in command.split() if (here / word).is_file()]
        texts = [command, *(path.read_text("utf-8", "replace") for path in files)]
        return {port for port in self._ports.values() if any(re.search(rf"\b{port}\b", text) for text in texts)}


def is_open(port: int) -> bool:
    """Whether a server listens at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE).close()
    except OSError:
        return False
    return True
