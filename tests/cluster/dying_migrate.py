"""`flockmq migrate` that kills itself: `python -m tests.cluster.dying_migrate N ARGUMENT...`.

It dies at its N-th step; a step is one write to one of the places. With fewer steps it runs to its end.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from flockmq.broker.cli import main
from flockmq.broker.storage import sqlite_file
from flockmq.cluster.migration.endpoints import SqlitePlace
from flockmq.cluster.migration.key_writer import KeyWriter, StateWriter
from flockmq.cluster.migration.redis_place import RedisShard

STEPS: list[tuple[Any, str]] = [
    (SqlitePlace, "set_mark"),
    (SqlitePlace, "write"),
    (RedisShard, "set_mark"),
    (StateWriter, "write"),
    (RedisShard, "clear"),
    (KeyWriter, "_execute"),
    (sqlite_file, "insert"),
]


def run(step: int, arguments: list[str]) -> int:
    """Run the command, at most to this step."""
    left = step

    def die_at_last() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            die_at_last()
            result = function(*arguments)
            die_at_last()
            return result

        return run

    for owner, name in STEPS:
        setattr(owner, name, dying(getattr(owner, name)))
    return main(["migrate", *arguments])


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
