"""A wall clock of a process that a test steps (wall_clock.c); the monotonic clocks of the process stay true."""

import mmap
import struct
from pathlib import Path

from tests.harness.preload import preload

SOURCE = Path(__file__).with_suffix(".c")
SECONDS = struct.Struct("=q")


class WallClock:
    """A clock.

    Args:
        file: where it is kept, for the processes that have it.
    """

    def __init__(self, file: Path) -> None:
        file.write_bytes(SECONDS.pack(0))
        with file.open("r+b") as opened:
            self._seconds = mmap.mmap(opened.fileno(), SECONDS.size)
        self.variables = preload(SOURCE) | {"WALL_CLOCK": str(file)}

    def step(self, hours: int) -> None:
        """From now on it is wrong by so many hours."""
        SECONDS.pack_into(self._seconds, 0, hours * 3600)
