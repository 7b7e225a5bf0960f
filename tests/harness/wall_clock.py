"""A wall clock of a process that a test steps (wall_clock.c); the monotonic clocks of the process stay true."""

import functools
import mmap
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
SECONDS = struct.Struct("=q")


@functools.cache
def library() -> str:
    """The path of the compiled library."""
    path = Path(tempfile.mkdtemp(prefix="flockmq-test-")) / "wall_clock.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True)
    return str(path)


class WallClock:
    """A clock.

    Args:
        file: where it is kept, for the processes that have it.
    """

    def __init__(self, file: Path) -> None:
        file.write_bytes(SECONDS.pack(0))
        with file.open("r+b") as opened:
            self._seconds = mmap.mmap(opened.fileno(), SECONDS.size)
        self.variables = {"LD_PRELOAD": library(), "WALL_CLOCK": str(file)}

    def step(self, hours: int) -> None:
        """From now on it is wrong by so many hours."""
        SECONDS.pack_into(self._seconds, 0, hours * 3600)
