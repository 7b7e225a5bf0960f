"""CPU time and resident memory of a broker's processes, from /proc, in total and per message."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Figures = dict[str, Any]
Groups = Mapping[str, Sequence[int]]  # process ids by a name that is appended to the names of their figures
Counts = Callable[[], Mapping[str, float]]  # counters that only grow

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessMeter:
    """CPU time and memory of some processes, with all their threads.

    Args:
        pids: process ids; may be empty.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if not Path(f"/proc/{pid}").exists():
                raise ProcessLookupError(f"no process {pid}")
        self._pids = tuple(pids)
        # ns by thread; an ended thread keeps its last value, because /proc no longer has it
        self._threads: dict[str, int] = {}

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far; only its differences are meaningful."""
        if not all(self._read_schedstat(pid) for pid in self._pids):
            return sum(self._read_stat(pid) for pid in self._pids)
        return sum(self._threads.values()) / 1e9

    def resident_bytes(self) -> int:
        """Return the resident memory, without socket buffers, which belong to the kernel."""
        total = 0
        for pid in self._pids:
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS:"))
        return total

    def _read_schedstat(self, pid: int) -> bool:
        """Read the threads' nanoseconds; False if the kernel does not count them."""
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return True  # ended: its last values stay
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                    self._threads[thread] = int(file.read().split()[0])
            except FileNotFoundError:
                if os.path.exists(f"/proc/{pid}/task/{thread}"):
                    return False
            except (OSError, IndexError):
                continue  # ended meanwhile
        return True

    @staticmethod
    def _read_stat(pid: int) -> float:
        """Return user and system time with the resolution of a clock tick, usually 10 ms."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def wake_ups(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep since its start, without ended threads."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue  # ended meanwhile
        total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))
    return total


class Cost:
    """The broker's cost of one thing: CPU microseconds over a run and as the median of its intervals, and counts.

    Args:
        thing: its name in the names of figures.
        pids: all processes of the broker.
        groups: some of its processes by name; the figure `x` of group "redis" is `x_redis`.
        counts: read at the start and the end; the growth of counter `c` is `c_per_s`, and `c_per_<thing>`.
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
        """Start measuring; `done` is the number of things up to now."""
        self._counts_before = self._counts()
        self._before = self._last = self._look()
        self._done = done

    def look(self, done: int, whole: bool = True) -> None:
        """End an interval; one that is not `whole` is left out of the median."""
        last, self._last = self._last, self._look()
        if whole and done > self._done:
            for name, cpu in self._last.items():
                self._intervals[name].append((cpu - last[name]) * 1e6 / (done - self._done))
        self._done = done

    def end(self) -> None:
        """Stop measuring."""
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
