"""Runs a node that kills itself at a named point: `python -m tests.faults.kill_points POINT:COUNT serve ...`.

The points are put around the store and the compaction from outside; the broker has no code for them. They count from
the moment that a block with ARM in it has been given to the store, so that a test can first set everything up.

==============  ====================================================================================================
before-commit   the loop has made a block and is about to give it to the store
after-write     the store has written blocks and is about to confirm them
after-confirm   the loop has the confirmation; the acknowledgements are made and not yet sent
in-compaction   between two slices of a compaction
before-forget   all that is live has been written again, and the blocks before are about to be dropped
after-forget    they have been dropped
none            nowhere; with `compacting` or not like the others
==============  ====================================================================================================

The last three, and `compacting:1`, make the store compact itself all the time, in slices as small as can be.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flockmq.broker import cli, node
from flockmq.broker.config.schema import Config
from flockmq.broker.coordination import standalone
from flockmq.broker.storage import compaction
from flockmq.broker.storage.store import Store

ARM = b"arm the kill point"
POINTS = ("before-commit", "after-write", "after-confirm")
COMPACTION_POINTS = ("in-compaction", "before-forget", "after-forget")


class Killer:
    def __init__(self, point: str, count: int) -> None:
        self.point = point
        self.left = count
        self.armed = False

    def here(self, point: str) -> None:
        """The process is at this point."""
        if self.armed and point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class KillingStore(Store):
    """Another store, with points around it."""

    def __init__(self, store: Store, killer: Killer) -> None:
        self.store = store
        self.killer = killer
        self.durable = store.durable

    def open(self) -> Iterator[bytes]:
        return self.store.open()

    @property
    def file(self) -> Path | None:
        return self.store.file

    def copy(self, path: Path, done: Callable[[Exception | None], object]) -> None:
        self.store.copy(path, done)

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        def watched(function: Callable[..., object], *arguments: object) -> None:
            self.killer.here("after-write" if function == confirm else "after-forget")
            call(function, *arguments)

        self.store.start(confirm, watched)

    def commit(self, block: bytes) -> None:
        self.killer.here("before-commit")
        self.store.commit(block)
        if ARM in block:
            self.killer.armed = True

    @property
    def position(self) -> int:
        return self.store.position

    @property
    def size(self) -> int:
        return self.store.size

    def forget_before(self, position: int) -> None:
        self.killer.here("before-forget")
        self.store.forget_before(position)

    def close(self) -> None:
        self.store.close()

    def describe(self) -> str:
        return self.store.describe()


def install(point: str, count: int) -> None:
    """Put the points into the modules of the node."""
    killer = Killer(point, count)
    make_store, step, rewrite = node.make_store, compaction.Compaction.step, compaction.Compaction._rewrite

    def watched_step(self: Any) -> None:
        killer.here("after-confirm")
        step(self)

    def watched_rewrite(self: Any) -> Iterator[None]:
        for _ in rewrite(self):
            killer.here("in-compaction")
            yield

    def killing_store(config: Config) -> Store:
        return KillingStore(make_store(config), killer)

    node.make_store = killing_store
    compaction.Compaction.step = watched_step  # type: ignore[method-assign]
    compaction.Compaction._rewrite = watched_rewrite  # type: ignore[method-assign]
    if point in (*COMPACTION_POINTS, "compacting"):
        compaction.SLICE = compaction.RETAINED_BATCH = 1
        standalone.StandaloneLife.restore.__kwdefaults__["smallest"] = 0


if __name__ == "__main__":
    name, _, number = sys.argv[1].partition(":")
    install(name, int(number))
    sys.exit(cli.main(sys.argv[2:]))
