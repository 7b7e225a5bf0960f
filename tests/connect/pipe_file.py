"""Writes the file of `flockmq connect`, and runs the command."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from flockmq.broker.cli import main
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess


def pipe_file(directory: Path, redis_server: RedisProcess, kind: str, options: dict[str, Any], **more: Any) -> Path:
    """A file with one pipe, `fleet`.

    Args:
        directory: of the file.
        redis_server: of the log.
        kind: of the connector.
        options: of the connector.
        more: keys of the pipe, or of the file: every, batch_mib, metrics.
    """
    top = {"every": "10 ms", "batch_mib": 1} | {key: more.pop(key) for key in ("every", "metrics") if key in more}
    lines = [f'redis = "{redis_server.url}"', *listed(top), "[[pipes]]", *listed({"name": "fleet"} | more)]
    path = directory / "pipes.toml"
    path.write_text("\n".join([*lines, f"[pipes.{kind}]", *listed(options), ""]))
    return path


def listed(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {toml(value)}" for key, value in values.items()]


def toml(value: Any) -> str:
    return f"{{{', '.join(listed(value))}}}" if isinstance(value, dict) else json.dumps(value)


def once(path: Path) -> None:
    """Write the messages that are logged now."""
    assert main(["connect", str(path), "--once", "--log-level", "error"]) == 0


class Process:
    """`flockmq connect`, until it is killed: at the end of a test at the latest."""

    started: ClassVar[list["Process"]] = []

    def __init__(self, path: Path, *more: str) -> None:
        self.log = path.parent / "connect.log"
        with open(self.log, "ab") as output:
            command = [sys.executable, "-m", "flockmq.broker.cli", "connect", str(path), *more]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self.started.append(self)

    def wait_for(self, text: bytes, count: int = 1) -> None:
        """Wait until the log has a text so many times."""
        end = time.monotonic() + DEADLINE
        while self.log.read_bytes().count(text) < count:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(DEADLINE)
