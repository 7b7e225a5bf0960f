"""A run in several processes side by side, one a core: each has clients and topics of its own, figures are merged.

All connect, and begin when the last one has. Only the first measures the broker: it would be counted several times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from loadtest.generator.cost import Figures
from loadtest.generator.latency import Latencies
from loadtest.generator.runs import LoadError, Watch

Run = Callable[..., Figures]
Options = dict[str, Any]
_SAME = ("shape", "qos")  # in all processes
_OF_THE_BROKER = ("cpu_", "memory_", "idle_")
_PER_THING = ("cpu_us_per_", "memory_per_")  # of those, what was divided by what the first process has done ...
_COUNTED = ("delivered", "connects", "take_overs", "connections")  # ... which is one of these, by what it ran


def run_in(processes: int, run: Run, options: Options, watch: Watch) -> Figures:
    """Run `run(**options)` in so many processes; return the merged figures.

    Args:
        processes: how many; one is this process.
        run: a function of `loadtest.load`.
        options: its arguments; numbers of clients, rates and counts are those of each process.
        watch: told how the slowest process gets on, and what all have done.

    Raises:
        LoadError: one of them could not start.
    """
    if processes == 1:
        return run(**options, watch=watch)
    context = get_context("spawn")
    workers = []
    pipes: list[Connection] = []
    try:
        for number in range(processes):
            ours, theirs = context.Pipe()
            own = options | ({"pids": ()} if number else {})
            if "topic_prefix" in own:
                own["topic_prefix"] += f"{number}/"
            worker = context.Process(target=_work, args=(theirs, run, own), daemon=True)
            worker.start()
            theirs.close()
            workers.append(worker)
            pipes.append(ours)
        return merged(_Conversation(pipes, watch).hold())
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(pipe: Connection, run: Run, options: Options) -> None:
    """One process: says `look`, `ready` (and waits for an answer), and at last `figures` or `error`."""

    def ready() -> None:
        pipe.send(("ready",))
        pipe.recv()

    watch = Watch(lambda *progress: pipe.send(("look", *progress)), ready)
    try:
        pipe.send(("figures", run(**options, watch=watch)))
    except (LoadError, ValueError, OSError) as error:
        pipe.send(("error", str(error)))


class _Conversation:
    """What the processes say, until each has said its figures."""

    def __init__(self, pipes: list[Connection], watch: Watch) -> None:
        self._pipes = pipes
        self._watch = watch
        self._ready = 0
        self._progress: dict[Connection, tuple[str, float, int]] = {}
        self._figures: dict[Connection, Figures] = {}

    def hold(self) -> list[Figures]:
        while len(self._figures) < len(self._pipes):
            for pipe in wait([pipe for pipe in self._pipes if pipe not in self._figures]):
                assert isinstance(pipe, Connection)
                try:
                    kind, *what = pipe.recv()
                except EOFError:
                    raise LoadError("a process of the generator has died") from None
                self._hear(pipe, kind, what)
        return [self._figures[pipe] for pipe in self._pipes]

    def _hear(self, pipe: Connection, kind: str, what: list[Any]) -> None:
        if kind == "error":
            raise LoadError(what[0])
        if kind == "figures":
            self._figures[pipe] = what[0]
        elif kind == "look":
            self._progress[pipe] = (what[0], what[1], what[2])
            self._look(what[0])
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
    """The figures of processes that ran at the same time, the first of which measured the broker."""
    result: Figures = {}
    for name, first in parts[0].items():
        if name in _SAME or name.startswith(_OF_THE_BROKER):
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
    for counted in filter(result.get, _COUNTED):
        for name in filter(lambda name: name.startswith(_PER_THING), result):
            result[name] *= parts[0][counted] / result[counted]  # the broker did it for all
    for name in [name for name in result if name.endswith("_median")]:
        del result[name]  # of intervals of one process
    return result


def own_topics() -> str:
    """A prefix of topics that no other run has."""
    return f"bench-{random.SystemRandom().getrandbits(32):08x}/"
