"""The clocks of this process while a simulation runs (clock.c): also for the compiled modules of the broker.

They are replaced by the dynamic linker, so the process has to be started for it: `environment` has the variables.
"""

import ctypes
import os
from pathlib import Path

from tests.harness.preload import library, preload

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "FLOCKMQ_SIMULATION_CLOCK"  # the variable with the path of the library, which also is in LD_PRELOAD
NS = 1_000_000_000


def environment() -> dict[str, str]:
    """The variables of a process that simulates: clocks, and an order of sets that is the same in each."""
    return os.environ | preload(SOURCE) | {LIBRARY: library(SOURCE), "PYTHONHASHSEED": "0"}


def is_ready() -> bool:
    """Whether this process was started with `environment`."""
    return LIBRARY in os.environ and os.environ.get("PYTHONHASHSEED") == "0"


class Clock:
    """The clocks of the process; the machine's clocks, until `set` is called."""

    def __init__(self) -> None:
        loaded = ctypes.CDLL(os.environ[LIBRARY])
        self._now = ctypes.c_int64.in_dll(loaded, "simulated_now")
        self._step = ctypes.c_int64.in_dll(loaded, "simulated_step")

    def set(self, now: int) -> None:
        """Show this time, in nanoseconds since the start of the simulation."""
        self._now.value = now

    def set_step(self, step: int) -> None:
        """Let the wall clock be wrong by so many nanoseconds."""
        self._step.value = step

    def release(self) -> None:
        """Show the time of the machine again."""
        self._now.value = -1
        self._step.value = 0
