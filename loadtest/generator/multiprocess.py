"""A run in several processes side by side, one per core, with merged figures.

Each has its own clients and topics. All begin when the last one has connected. Only the first measures the broker;
otherwise its cost would be counted several times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from .cost import Figures
from .latency import Latencies
from .runs import LoadError, Watch
from .target import Load, Target, Workload

Run = Callable[[Target, Any, Watch], Figures]  # a function of `runs` and its kind of load
SAME = ("shape", "qos")  # in all processes
OF_THE_BROKER = ("cpu_", "memory_", "idle_")
PER_THING = ("cpu_us_per_", "memory_per_")  # of those, quotients by a count of the first process ...
COUNTED = ("delivered", "connects", "take_overs", "connections")  # ... which is one of these


def run_in(processes: int, run: Run, target: Target, load: Load, watch: Watch) -> Figures:
    """Run `run(target, load)` in several processes; return the merged figures.

    Args:
        processes: their number; one is this process.
        run: a function of `runs`.
        target: the broker.
        load: numbers of clients, rates and counts are of each process.
        watch: receives the progress of the slowest process, and the sum of all counts.

    Raises:
        LoadError: one of them could not start.
    """
    if processes == 1:
        return run(target, load, watch)
    context = get_context("spawn")
    workers = []
    pipes: list[Connection] = []
    try:
        for number in range(processes):
            ours, theirs = context.Pipe()
            own_target = replace(target, pids=()) if number else target
            own_load = load
            if isinstance(load, Workload) and load.topic_prefix:
                own_load = replace(load, topic_prefix=f"{load.topic_prefix}{number}/")
            worker = context.Process(target=_work, args=(theirs, run, own_target, own_load), daemon=True)
            worker.start()
            theirs.close()
            workers.append(worker)
            pipes.append(ours)
        return merged(_Collector(pipes, watch).collect())
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(pipe: Connection, run: Run, target: Target, load: Load) -> None:
    """One process: sends `look`, `ready` (and waits for a reply), and at last `figures` or `error`."""

    def ready() -> None:
        pipe.send(("ready",))
        pipe.recv()

    watch = Watch(lambda *progress: pipe.send(("look", *progress)), ready)
    try:
        pipe.send(("figures", run(target, load, watch)))
    except (LoadError, ValueError, OSError) as error:
        pipe.send(("error", str(error)))


class _Collector:
    """Receives the messages of the processes until each has sent its figures."""

    def __init__(self, pipes: list[Connection], watch: Watch) -> None:
        self._pipes = pipes
        self._watch = watch
        self._ready = 0
        self._progress: dict[Connection, tuple[str, float, int]] = {}
        self._figures: dict[Connection, Figures] = {}

    def collect(self) -> list[Figures]:
        while len(self._figures) < len(self._pipes):
            for pipe in wait([pipe for pipe in self._pipes if pipe not in self._figures]):
                assert isinstance(pipe, Connection)
                try:
                    kind, *values = pipe.recv()
                except EOFError:
                    raise LoadError("a process of the generator has died") from None
                self._handle(pipe, kind, values)
        return [self._figures[pipe] for pipe in self._pipes]

    def _handle(self, pipe: Connection, kind: str, values: list[Any]) -> None:
        if kind == "error":
            raise LoadError(values[0])
        if kind == "figures":
            self._figures[pipe] = values[0]
        elif kind == "look":
            self._progress[pipe] = (values[0], values[1], values[2])
            self._look(values[0])
        else:
            self._ready += 1
            if self._ready == len(self._pipes):
                self._watch.ready()
                for each in self._pipes:
                    each.send("go")

    def _look(self, phase: str) -> None:
        same = [progress for progress in self._progress.values() if progress[0] == phase]
        self._watch.look(phase, min(share for _, share, _ in same), sum(done for _, _, done in same))


def merged(parts: list[Figures]) -> Figures:
    """The merged figures of simultaneous runs, the first of which measured the broker."""
    result: Figures = {}
    for name, first in parts[0].items():
        if name in SAME or name.startswith(OF_THE_BROKER):
            result[name] = first
            continue
        values = [part[name] for part in parts]
        if isinstance(first, Latencies):
            result[name] = Latencies.merged(values)
        elif isinstance(first, str):
            result[name] = next(filter(None, values), "")
        elif isinstance(first, int) or name.endswith("_per_s"):
            result[name] = sum(values)
        else:
            result[name] = max(values)
    if "latencies" in result:
        result |= result["latencies"].figures()
    for counted in filter(result.get, COUNTED):
        for name in filter(lambda name: name.startswith(PER_THING), result):
            result[name] *= parts[0][counted] / result[counted]  # the broker worked for all
    for name in [name for name in result if name.endswith("_median")]:
        del result[name]  # of intervals of one process
    return result


def own_topics() -> str:
    """A random prefix of topics."""
    return f"bench-{random.SystemRandom().getrandbits(32):08x}/"
