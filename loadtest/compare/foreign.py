"""`python -m flockmq.loadtest.compare.foreign NUMBER KIND`: costs of sessions at other nodes, from generated changes.

It prints the bytes of a session with a filter and a route, and the CPU time of a change and of a topic name, as JSON.
The process has nothing else: its memory grows by the sessions.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

from ..._speedups.cluster.peer import Peer
from ..._speedups.routing.router import Router
from ..._speedups.session.journal import Journal
from ..._speedups.session.turn import Turn
from ..generator.cost import ProcessMeter

SHARERS = 1000  # sessions with the same filter, of kind `shared`
SAMPLES = 20_000  # topic names and changes that are timed
WARM_UP = 1000  # sessions before memory is measured


def measure(count: int, shared: bool) -> dict[str, float]:
    """The figures for so many sessions: `bytes`; `change`, `first` and `match` of a topic name in microseconds.

    The first match of a topic name makes the Session that stands for the record.

    Args:
        count: of sessions, each with one filter; eight shapes of filters fit each topic name.
        shared: whether a thousand sessions have a filter in common; else each has its own.
    """
    turn = Turn(Journal())
    router = Router(turn)
    peer = Peer(turn, 0, b"node", lambda batch: True)
    router.foreign.receivers.add_node(peer)
    meter = ProcessMeter([os.getpid()])

    def add(numbers: range) -> None:
        for number in numbers:
            topic_filter = _filter(number // SHARERS if shared else number)
            router.foreign.subscribe(b"device-%08d" % number, number + 1, topic_filter, 1, 0)
            router.foreign.route(peer, topic_filter, 8)

    add(range(count, count + WARM_UP))
    before = meter.resident_bytes()
    add(range(count))
    size = (meter.resident_bytes() - before) / count
    rng = random.Random(1)
    some = [rng.randrange(count) for _ in range(SAMPLES)]
    topics = [_topic(number // SHARERS if shared else number) for number in some]
    changes = [(b"device-%08d" % number, number + 1, b"more/%d/%d" % (number, at)) for at, number in enumerate(some)]
    match, change = router.filters.match_many, router.foreign.subscribe
    return {
        "bytes": size,
        "first": _timed(lambda: [match(topic, 1) for topic in topics]) / SAMPLES,
        "match": _timed(lambda: [match(topic, 1) for topic in topics]) / SAMPLES,
        "change": _timed(lambda: [change(*fields, 1, 0) for fields in changes]) / SAMPLES,
    }


def _filter(number: int) -> bytes:
    """A filter of 21 bytes, of one of eight shapes; each fits all topic names."""
    levels = [b"f%03d" % (number // 10_000 % 1000), b"d%08d" % number, b"cmd", b"x"]
    wild = number % 100
    if 0 < wild < 8:  # few: most devices have a filter without wildcards
        levels = [b"+" if wild >> at & 1 else level for at, level in enumerate(levels)]
        levels[1] = b"d%08d" % number
    return b"/".join(levels)


def _topic(number: int) -> bytes:
    return b"f%03d/d%08d/cmd/x" % (number // 10_000 % 1000, number)


def _timed(work: Callable[[], object]) -> float:
    """Microseconds of CPU time."""
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1000


def run(count: int, kind: str) -> dict[str, float]:
    """As `measure`, in another process; `kind` is `own` or `shared`."""
    command = [sys.executable, "-m", __name__, str(count), kind]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2] == "shared")))
