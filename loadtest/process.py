"""What a broker's processes cost: CPU time and resident memory, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessMeter:
    """CPU time and memory of some processes, all threads included.

    Args:
        pids: process ids; empty is allowed and measures nothing.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if not Path(f"/proc/{pid}").exists():
                raise ProcessLookupError(f"no process {pid}")
        self._pids = tuple(pids)
        # ns by thread; a thread that ended keeps its last value, because /proc forgets it
        self._threads: dict[str, int] = {}

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far; only differences of it mean something."""
        if not all(self._read_schedstat(pid) for pid in self._pids):
            return sum(self._read_stat(pid) for pid in self._pids)
        return sum(self._threads.values()) / 1e9

    def resident_bytes(self) -> int:
        """Return the memory that is resident now; socket buffers belong to the kernel and are not in it."""
        total = 0
        for pid in self._pids:
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS:"))
        return total

    def _read_schedstat(self, pid: int) -> bool:
        """Take the threads' nanoseconds; False where the kernel does not keep them."""
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return True  # ended: what it used until the last look stays
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                    self._threads[thread] = int(file.read().split()[0])
            except FileNotFoundError:
                if os.path.exists(f"/proc/{pid}/task/{thread}"):
                    return False
            except (OSError, IndexError):
                continue  # ended while we looked
        return True

    @staticmethod
    def _read_stat(pid: int) -> float:
        """Return user and system time at the resolution of a clock tick, 10 ms as a rule."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
