"""What a broker's processes cost: CPU time and resident memory, read from /proc, and what that is for each message."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Figures = dict[str, Any]
Groups = Mapping[str, Sequence[int]]  # process ids by a name that is appended to the names of their figures
Counts = Callable[[], Mapping[str, float]]  # counters that only grow

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


def wake_ups(pid: int) -> int:
    """Return how often a process has gone to sleep since its start, all threads that still run included."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue  # ended while we looked
        total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))
    return total


class Cost:
    """What one thing costs the broker: CPU microseconds over a run and as the median over its intervals, and counts.

    Args:
        thing: what is counted, for the figures' names.
        pids: all processes of the broker.
        groups: some of its processes, to be told apart; the figure `x` of group "redis" is `x_redis`.
        counts: read at the begin and the end; the growth of counter `c` is `c_per_s`, and `c_per_<thing>`.
    """

    def __init__(
        self, thing: str, pids: Sequence[int], groups: Groups | None = None, counts: Counts | None = None
    ) -> None:
        named = {f"_{name}": members for name, members in (groups or {}).items()}
        named |= {"": pids} if pids else {}
        self._thing = thing
        self._meters = {name: ProcessMeter(members) for name, members in named.items()}
        self._counts: Counts = counts or dict
        self._intervals: dict[str, list[float]] = {name: [] for name in self._meters}
        self._used: dict[str, float] = {}
        self._counted: dict[str, float] = {}

    def begin(self, done: int) -> None:
        """Measure from now on; `done` things have happened so far."""
        self._counts_before = self._counts()
        self._before = self._last = self._look()
        self._done = done

    def look(self, done: int, whole: bool = True) -> None:
        """End an interval; one that is not `whole` has no figure."""
        last, self._last = self._last, self._look()
        if whole and done > self._done:
            for name, cpu in self._last.items():
                self._intervals[name].append((cpu - last[name]) * 1e6 / (done - self._done))
        self._done = done

    def end(self) -> None:
        """Measure no longer."""
        self._used = {name: cpu - self._before[name] for name, cpu in self._look().items()}
        self._counted = {name: count - self._counts_before[name] for name, count in self._counts().items()}

    def figures(self, done: int, elapsed: float) -> Figures:
        """Return the figures for `done` things in `elapsed` seconds."""
        result: Figures = {}
        for name, cpu in self._used.items():
            per_thing = f"cpu_us_per_{self._thing}"
            intervals = self._intervals[name]
            result[f"cpu_s{name}"] = cpu
            result[f"{per_thing}{name}"] = cpu * 1e6 / done if done else 0.0
            result[f"{per_thing}_median{name}"] = median(intervals) if intervals else result[f"{per_thing}{name}"]
            result[f"cpu_share{name}"] = cpu / elapsed
        for name, count in self._counted.items():
            result[f"{name}_per_s"] = count / elapsed
            result[f"{name}_per_{self._thing}"] = count / done if done else 0.0
        return result

    def _look(self) -> dict[str, float]:
        return {name: meter.cpu_seconds() for name, meter in self._meters.items()}
