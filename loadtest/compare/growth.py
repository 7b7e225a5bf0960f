"""`python -m flockmq.loadtest.growth`: the cost of a message while a FlockMQ grows, as Markdown and as a plot.

Each point is a fresh broker. Points of a line alternate over the rounds, so that a slow moment of the machine does not
hit one of them alone; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import median

from ..._speedups.codec.decode import Decoder
from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connect, Disconnect, Packet, Pingreq, Publish, Subscribe
from ..generator.cost import ProcessMeter
from ..generator.runs import connect_load, find_faults, publish_load
from ..generator.target import ReconnectLoad, Target, Workload
from . import foreign
from .benchmark import choose_cores, describe_machine
from .brokers import placed, start
from .cluster import start_cluster
from .growth_plot import Panel, plot

AT_ONCE = 500  # clients that connect
FILTERS_PER_PACKET = 1000
FILTERS_PER_CLIENT = 50_000  # below limits.max_subscriptions
CHUNK = 10_000  # messages per write
WARM_UP = 1000  # messages before memory is measured
STATE = bytes(64)

Prepare = Callable[[int, int], None]  # port, number


@dataclass(frozen=True)
class Growth:
    """Something that grows, and the costs that it may change or has."""

    title: str
    counts: tuple[int, ...]
    lines: dict[str, Callable[[int, float], float]]  # by label: number, seconds -> value
    unit: str = "CPU µs per message"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables, write the plot; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m flockmq.loadtest.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--quick", action="store_true", help="one round of half a second, two numbers each")
    parser.add_argument("--output", type=Path, help="file for the tables")
    parser.add_argument("--plot", type=Path, help="file for the plot, SVG")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds)
    text = [f"- {name}: {value}" for name, value in describe_machine([]).items()]
    text.append(f"- {rounds} rounds of {seconds:g} s, payload 64 bytes, no store; medians")
    panels = []
    for growth in GROWTHS:
        counts = growth.counts[:2] if options.quick else growth.counts
        found = measure(growth, counts, rounds, seconds)
        text += ["", *_table(growth, counts, found)]
        panels.append(Panel(growth.title, counts, found, growth.unit))
    print("\n".join(text))
    if options.output:
        options.output.write_text("\n".join(text) + "\n", encoding="utf-8")
    if options.plot:
        options.plot.write_text(plot(panels), encoding="utf-8")
    return 0


def measure(growth: Growth, counts: tuple[int, ...], rounds: int, seconds: float) -> dict[str, list[float]]:
    """The median cost for each number, by line."""
    found: dict[str, list[list[float]]] = {label: [[] for _ in counts] for label in growth.lines}
    for number in range(1, rounds + 1):
        for at, count in enumerate(counts):
            for label, run in growth.lines.items():
                print(f"{growth.title}, {label} {number}/{rounds}: {count:,}", file=sys.stderr, flush=True)
                found[label][at].append(run(count, seconds))
    return {label: [median(values) for values in points] for label, points in found.items()}


def _table(growth: Growth, counts: tuple[int, ...], found: dict[str, list[float]]) -> Iterator[str]:
    yield f"| {growth.unit} by {growth.title} | {' | '.join(f'{count:,}' for count in counts)} |"
    yield "| --- " * (len(counts) + 1) + "|"
    for label, values in found.items():
        yield f"| {label} | {' | '.join(f'{value:.3g}' for value in values)} |"


# ---- one node ----


def _alone(
    workload: Callable[[int], Workload], prepare: Prepare | None = None, *, apart: bool = False
) -> Callable[[int, float], float]:
    """A run on one node that is prepared first. `apart`: broker and clients have a core each."""

    def run(count: int, seconds: float) -> float:
        own, broker = choose_cores(apart)
        with placed(own), start("FlockMQ", "memory", broker) as running:
            if prepare is not None:
                prepare(running.port, count)
            return _cost(Target(port=running.port, pids=[running.pid]), workload(count), seconds)

    return run


def _memory(prepare: Prepare) -> Callable[[int, float], float]:
    """The growth of a node's resident memory while it is prepared, for each thing that it gets."""

    def run(count: int, seconds: float) -> float:
        own, broker = choose_cores(False)
        with placed(own), start("FlockMQ", "memory", broker) as running:
            prepare(running.port, WARM_UP)  # buffers and pools that the first messages need
            meter = ProcessMeter([running.pid])
            before = meter.resident_bytes()
            prepare(running.port, WARM_UP + count)
            return (meter.resident_bytes() - before) / count

    return run


def _cost(target: Target, load: Workload, seconds: float) -> float:
    figures = publish_load(target, replace(load, seconds=seconds))
    if faults := find_faults(figures):
        raise RuntimeError(f"{load}: {', '.join(faults)}")
    return float(figures["cpu_us_per_delivery"])


def _retain(port: int, count: int) -> None:
    with _Client(port, "retains") as client:
        for first in range(0, count, CHUNK):
            client.send(
                *(
                    Publish(f"retained/{number % 1000}/{number}", b"%016d" % number, retain=True)
                    for number in range(first, min(first + CHUNK, count))
                )
            )
        client.send(Pingreq())
        client.receive()


def _retain_states(port: int, count: int) -> None:
    """Messages of 64 bytes with topic names of 32 characters: ten sensors a device."""
    with _Client(port, "retains") as client:
        for first in range(0, count, CHUNK):
            client.send(
                *(
                    Publish(
                        f"site{number // 1000 % 100:03}/device{number // 10:09}/sensor-{number % 10}",
                        STATE,
                        retain=True,
                    )
                    for number in range(first, min(first + CHUNK, count))
                )
            )
        client.send(Pingreq())
        client.receive()


def _subscribe(port: int, count: int) -> None:
    """Filters that no message of the load matches. The clients stay away: their sessions are persistent."""
    for first in range(0, count, FILTERS_PER_CLIENT):
        end = min(first + FILTERS_PER_CLIENT, count)
        with _Client(port, f"subscribes {first}") as client:
            for at in range(first, end, FILTERS_PER_PACKET):
                filters = [
                    (f"other/{number % 1000}/+/{number}", 0) for number in range(at, min(at + FILTERS_PER_PACKET, end))
                ]
                client.send(Subscribe(packet_id=1, topic_filters=filters))
                client.receive()


class _Client:
    """A client with a persistent session."""

    def __init__(self, port: int, client_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._decoder = Decoder(4)
        self._packets: list[Packet] = []
        self.send(Connect(client_id=client_id, clean_start=False, keep_alive=0, protocol_level=4))

    def send(self, *packets: Packet) -> None:
        self._socket.sendall(b"".join(encode(packet, 4) for packet in packets))

    def receive(self) -> Packet:
        while not self._packets:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the broker has closed the connection")
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> _Client:
        self.receive()  # CONNACK
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- many nodes ----


def _generated(kind: str, figure: str) -> Callable[[int, float], float]:
    """A figure of sessions at other nodes, from generated changes: see `foreign.py`."""

    def run(count: int, seconds: float) -> float:
        return foreign.run(count, kind)[figure]

    return run


@cache
def _elsewhere(count: int, seconds: float) -> tuple[float, float]:
    """Real persistent sessions at the first node: bytes each, and the cost of a message, at the second one."""
    own, _ = choose_cores(False)
    with start_cluster("FlockMQ", set(own), nodes=2) as cluster:
        meter = ProcessMeter([cluster.pids[1]])
        _have_sessions(cluster.ports[0], 0, WARM_UP)
        before = meter.resident_bytes()
        _have_sessions(cluster.ports[0], WARM_UP, WARM_UP + count)
        size = (meter.resident_bytes() - before) / count
        return size, _cost(Target(port=cluster.ports[1], pids=[cluster.pids[1]]), WILD, seconds)


def _have_sessions(port: int, first: int, end: int) -> None:
    """Persistent sessions with a filter each, and no client. The other node has applied it before SUBACK."""
    for start_at in range(first, end, AT_ONCE):
        numbers = range(start_at, min(start_at + AT_ONCE, end))
        clients = [_Client(port, f"device-{number:08}") for number in numbers]
        for number, client in zip(numbers, clients, strict=True):
            client.send(Subscribe(packet_id=1, topic_filters=[(f"f{number // 10_000:03}/d{number:08}/cmd/x", 1)]))
        for client in clients:
            client.receive()  # CONNACK
            client.receive()
            client.send(Disconnect())
            client.close()


def _across(qos: int) -> Callable[[int, float], float]:
    """Publishers at the first node, subscribers at the second; further nodes have no clients. All processes count."""

    def run(count: int, seconds: float) -> float:
        cores = set(os.sched_getaffinity(0))
        with start_cluster("FlockMQ", cores, nodes=count) as cluster:
            target = Target(
                port=cluster.ports[min(1, count - 1)],
                publish_port=cluster.ports[0],
                pids=[*cluster.pids, cluster.redis_pid],
            )
            return _cost(target, Workload(qos=qos), seconds)

    return run


@lru_cache(1)
def _over_primaries(count: int, seconds: float) -> dict[str, float]:
    """One node, several Redis with a shard each: CPU time of a message of QoS 1 and of a connect, of Redis and node."""
    cores = set(os.sched_getaffinity(0))
    found: dict[str, float] = {}
    with start_cluster("FlockMQ", cores, nodes=1, primaries=count) as cluster:
        target = Target(port=cluster.ports[0], pids=[*cluster.pids, *cluster.primaries])
        target = replace(target, groups={"redis": cluster.primaries, "node": cluster.pids})
        commands = publish_load(target, replace(COMMANDS, seconds=seconds))
        connects = connect_load(target, ReconnectLoad(parallel=200, persistent=True, seconds=seconds))
        for figures, kind in ((commands, "delivery"), (connects, "connect")):
            if faults := find_faults(figures):
                raise RuntimeError(f"{kind}: {', '.join(faults)}")
            found |= {f"{group} {kind}": float(figures[f"cpu_us_per_{kind}_{group}"]) for group in ("redis", "node")}
    return found


def _of_primaries(figure: str) -> Callable[[int, float], float]:
    return lambda count, seconds: _over_primaries(count, seconds)[figure]


PAIRS = Workload()
COMMANDS = Workload(qos=1, persistent=True, publishers=200, subscribers=200)  # each message to a session of its own
WILD = Workload(shape="wild", publishers=10, subscribers=100)
GROWTHS = (
    Growth(
        "connections",
        (10, 100, 1000, 15_000),
        {
            "20 000/s, one per write": _alone(
                lambda count: Workload(publishers=count // 2, subscribers=count // 2, rate=20_000), apart=True
            ),
            "full speed": _alone(lambda count: Workload(publishers=count // 2, subscribers=count // 2)),
        },
    ),
    Growth(
        "retained messages",
        (0, 1000, 100_000, 1_000_000),
        {"full speed": _alone(lambda count: PAIRS, _retain)},
    ),
    Growth(
        "retained messages",
        (1000, 10_000, 100_000, 1_000_000),
        {"64 bytes, topic names of 32": _memory(_retain_states)},
        unit="bytes each",
    ),
    Growth(
        "subscriptions that don't match",
        (1000, 10_000, 100_000, 1_000_000),
        {
            "10 topics": _alone(lambda count: PAIRS, _subscribe),
            "a million topics, wildcards": _alone(lambda count: WILD, _subscribe),
        },
    ),
    Growth(
        "sessions at other nodes, generated",
        (1000, 10_000, 100_000, 1_000_000, 10_000_000),
        {"a filter and a route each": _generated("own", "bytes"), "filters shared": _generated("shared", "bytes")},
        unit="bytes each",
    ),
    Growth(
        "sessions at other nodes, generated",
        (1000, 10_000, 100_000, 1_000_000, 10_000_000),
        {"a topic name": _generated("own", "match"), "a change": _generated("own", "change")},
        unit="CPU µs",
    ),
    Growth(
        "sessions at another node",
        (1000, 10_000, 100_000),
        {"with a filter each": lambda count, seconds: _elsewhere(count, seconds)[0]},
        unit="bytes each",
    ),
    Growth(
        "sessions at another node",
        (1000, 10_000, 100_000),
        {"a million topics, wildcards": lambda count, seconds: _elsewhere(count, seconds)[1]},
    ),
    Growth(
        "Redis primaries",
        (1, 2, 4, 8),
        {"all Redis": _of_primaries("redis delivery"), "the node": _of_primaries("node delivery")},
    ),
    Growth(
        "Redis primaries",
        (1, 2, 4, 8),
        {"all Redis": _of_primaries("redis connect"), "the node": _of_primaries("node connect")},
        unit="CPU µs per connect",
    ),
    Growth("nodes", (1, 2, 3, 4), {"QoS 0, A to B": _across(0), "QoS 1, A to B": _across(1)}),
)
