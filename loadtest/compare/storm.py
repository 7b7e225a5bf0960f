"""`python -m flockmq.loadtest.storm`: many persistent clients return to a cluster of three nodes, as Markdown.

Each client has a persistent session with one subscription of its own. As many clients as open files allow are connected
at a time; they disconnect, and the next ones connect. Figures are CPU time per client of Redis, and of all nodes
together, from the first CONNECT of a wave to the last reply, and from the first DISCONNECT until Redis is idle.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connect, Disconnect, Subscribe
from ..generator.cost import ProcessMeter
from .benchmark import describe_machine
from .cluster import Cluster, start_cluster

NODES = 3
SPARE_FILES = 500  # of a process, beside the sockets of its clients
HANDSHAKES = 64  # at once, at each node
PATIENCE = 60.0  # seconds for the next reply
IDLE_SHARE = 0.02  # of a core: Redis uses less when nothing is left to do
IDLE_SECONDS = 0.3
SUBACK_BYTES = 5
CONNACK_BYTES = 4

Cpu = tuple[float, float]  # seconds: of Redis, of all nodes


class Step(NamedTuple):
    """All clients connect once, and disconnect."""

    title: str
    subscribes: bool
    shift: int  # clients connect to the node after as many others as before


STEPS = (
    Step("first connect, and SUBSCRIBE", True, 0),
    Step("return to the same node", False, 0),
    Step("return to another node", False, 1),
    Step("return to the same node, and SUBSCRIBE again", True, 1),
)


COME_BACK = STEPS[1]
EVENTS = "$SYS/broker/events/#"


class StormError(Exception):
    """A node did not reply, or refused a client."""


class Clients:
    """Clients of one node, in a process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[socket.socket] = []

    def connect(self, numbers: Sequence[int], subscribes: bool) -> None:
        """Connect these clients, some at a time, and wait for their replies."""
        waiting: dict[int, tuple[socket.socket, int]] = {}
        poll = select.epoll()
        rest = iter(numbers)
        expected = CONNACK_BYTES + (SUBACK_BYTES if subscribes else 0)
        while True:
            while len(waiting) < HANDSHAKES and (number := next(rest, None)) is not None:
                client = socket.socket()
                client.bind((f"127.0.{number % 250 + 1}.1", 0))  # more ports than one address has
                client.connect(("127.0.0.1", self._port))
                client.sendall(first_packets(number, subscribes))
                waiting[client.fileno()] = (client, 0)
                poll.register(client, select.EPOLLIN)
                self._open.append(client)
            if not waiting:
                return
            ready = poll.poll(PATIENCE)
            if not ready:
                raise StormError(f"no reply within {PATIENCE:g} s")
            for descriptor, _ in ready:
                client, have = waiting.pop(descriptor)
                data = client.recv(64)
                if not data or (have == 0 and len(data) >= CONNACK_BYTES and data[3]):
                    raise StormError(f"the node has refused a client: {data!r}")
                if have + len(data) < expected:
                    waiting[descriptor] = (client, have + len(data))
                else:
                    poll.unregister(descriptor)

    def disconnect(self) -> None:
        """Disconnect all, and wait until the node has closed their connections."""
        packet = encode(Disconnect(), 4)
        for client in self._open:
            client.sendall(packet)
        for client in self._open:
            client.recv(1)
            client.close()
        self._open.clear()


def first_packets(number: int, subscribes: bool) -> bytes:
    """The packets that a client sends at once: it does not wait for CONNACK."""
    client_id = f"device-{number:08d}"
    packets = encode(Connect(client_id=client_id, clean_start=False, keep_alive=0, protocol_level=4), 4)
    if subscribes:
        packets += encode(Subscribe(packet_id=1, topic_filters=[(f"fleet/{client_id}/#", 1)]), 4)
    return packets


def serve_orders(port: int, orders: Connection) -> None:
    """The main function of a process with the clients of a node: orders are arguments of `connect`, or None."""
    clients = Clients(port)
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        try:
            if order is None:
                clients.disconnect()
            else:
                clients.connect(*order)
        except (OSError, StormError) as error:
            orders.send(str(error))
            return
        orders.send("")


class Storm:
    """A cluster, and a process with clients for each of its nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._redis = ProcessMeter([cluster.redis_pid])
        self._nodes = ProcessMeter(cluster.pids)
        self._orders: list[Connection] = []
        context = multiprocessing.get_context("fork")
        for port in cluster.ports:
            ours, theirs = context.Pipe()
            context.Process(target=serve_orders, args=(port, theirs), daemon=True).start()
            self._orders.append(ours)

    def run(self, step: Step, clients: int, online: int) -> tuple[Cpu, Cpu]:
        """Let all clients connect and disconnect; returns the CPU seconds of both, summed over the waves."""
        connecting, leaving = (0.0, 0.0), (0.0, 0.0)
        for first in range(0, clients, online):
            numbers = range(first, min(first + online, clients))
            at_node = [[n for n in numbers if (n + step.shift) % NODES == node] for node in range(NODES)]
            connecting = _sum(connecting, self._measure(partial(self._all, at_node, step.subscribes)))
            leaving = _sum(leaving, self._measure(self._none))
        return connecting, leaving

    def _all(self, at_node: Sequence[Sequence[int]], subscribes: bool) -> None:
        self._order([(numbers, subscribes) for numbers in at_node])

    def _none(self) -> None:
        self._order([None] * NODES)

    def _order(self, orders: Sequence[object]) -> None:
        for pipe, order in zip(self._orders, orders, strict=True):
            pipe.send(order)
        for pipe in self._orders:
            if said := pipe.recv():
                raise StormError(said)

    def _measure(self, act: Callable[[], None]) -> Cpu:
        before = self._cpu()
        act()
        self._settle()
        after = self._cpu()
        return after[0] - before[0], after[1] - before[1]

    def _settle(self) -> None:
        """Wait until Redis has executed all."""
        last = self._redis.cpu_seconds()
        while True:
            time.sleep(IDLE_SECONDS)
            now = self._redis.cpu_seconds()
            if now - last < IDLE_SECONDS * IDLE_SHARE:
                return
            last = now

    def _cpu(self) -> Cpu:
        return self._redis.cpu_seconds(), self._nodes.cpu_seconds()


class Reader:
    """A client that reads all events of the cluster, in a thread.

    Args:
        port: of a node.
    """

    def __init__(self, port: int) -> None:
        self._client = socket.create_connection(("127.0.0.1", port))
        packets = encode(Connect(client_id="reader", keep_alive=0, protocol_level=4), 4)
        self._client.sendall(packets + encode(Subscribe(packet_id=1, topic_filters=[(EVENTS, 0)]), 4))
        self.events = 0  # received
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ConnectionError):  # the node may close first
            while data := self._client.recv(1 << 20):
                self.events += data.count(b'"event":')

    def close(self) -> None:
        """Disconnect."""
        self._client.sendall(encode(Disconnect(), 4))
        self._thread.join()
        self._client.close()


def measure_steps(storm: Storm, clients: int, online: int) -> list[str]:
    """The cost of all steps, as a table."""
    lines = [
        "| | connect: Redis | all nodes | disconnect: Redis | all nodes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for step in STEPS:
        print(step.title, file=sys.stderr, flush=True)
        figures = [seconds * 1e6 / clients for cpu in storm.run(step, clients, online) for seconds in cpu]
        lines.append(f"| {step.title} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    return lines


def measure_events(storm: Storm, port: int, clients: int, online: int, rounds: int) -> list[str]:
    """The cost of events, as a table: all clients come back while nobody reads events, and while one client does."""
    storm.run(STEPS[0], clients, online)
    storm.run(COME_BACK, clients, online)
    found: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
    for number in range(2 * rounds):
        is_read = number % 4 in (1, 2)  # neither is always the second
        reader = Reader(port) if is_read else None
        began = time.perf_counter()
        cpu = _sum(*storm.run(COME_BACK, clients, online))
        found[is_read].append(tuple(seconds * 1e6 / clients for seconds in cpu))
        if reader is not None:
            reader.close()
            print(f"{reader.events} events in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    lines = ["| | Redis | all nodes |", "| --- | --- | --- |"]
    for is_read, title in ((False, "nobody reads events"), (True, "a client reads all events")):
        figures = [
            f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"
            for values in zip(*found[is_read], strict=True)
        ]
        lines.append(f"| {title} | {' | '.join(figures)} |")
    return lines


def _sum(one: Cpu, other: Cpu) -> Cpu:
    return one[0] + other[0], one[1] + other[1]


def online_at_once(clients: int) -> int:
    """The clients that can be connected at a time: a process opens a file for each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # nodes inherit it
    return min(clients, NODES * (hard - SPARE_FILES))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m flockmq.loadtest.storm", description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--online", type=int, help="clients at a time; default: as many as open files allow")
    parser.add_argument(
        "--events", type=int, default=0, metavar="N", help="measure the cost of lifecycle events instead, N times"
    )
    parser.add_argument("--output", help="file for the table")
    options = parser.parse_args(arguments)
    online = min(options.online or options.clients, online_at_once(options.clients))
    text = [f"- {name}: {value}" for name, value in describe_machine([]).items()]
    text += [
        f"- {options.clients:,} persistent clients, each with a subscription of its own, {online:,} at a time, "
        f"at {NODES} nodes; {HANDSHAKES} handshakes at once at each",
        "- CPU us per client",
        "",
    ]
    with start_cluster("FlockMQ", set(os.sched_getaffinity(0)), nodes=NODES) as cluster:
        storm = Storm(cluster)
        if options.events:
            text += measure_events(storm, cluster.ports[0], options.clients, online, options.events)
        else:
            text += measure_steps(storm, options.clients, online)
    print("\n".join(text))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write("\n".join(text) + "\n")
    return 0
