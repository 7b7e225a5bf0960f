"""A proof: a broker under load, faults at random moments, and the judgement of the history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..._speedups.codec.packets import Publish
from . import checker
from .client import Fleet, RecordedClient
from .history import Fault, History, Published
from .load import Load
from .node import Node, ProveError
from .transactor import Transactor

FAULTS = ("kill", "pause", "cut", "stall")
CONNECT_SECONDS = 2.0  # until CONNACK; a node that stands still keeps the other clients waiting no longer
QUIET_SECONDS = 8.0  # without progress at the end, after which a message counts as lost
SETTLE_SECONDS = 1.0  # for wills and messages that may still arrive although they must not
BACKLOG = 500  # half of the queue that Mosquitto keeps for a client
KEPT = "kept/#"
GROUP = "$share/workers/t/#"


@dataclass(frozen=True)
class Plan:
    """The settings of a proof.

    Args:
        seconds: duration of the load.
        seed: of clients and faults; the machine's moments are not repeated.
        faults: kinds of faults, of FAULTS; empty: none.
        levels: protocol levels of the clients.
        shared: whether workers share a subscription too.
    """

    seconds: float = 30.0
    seed: int = 1
    faults: Sequence[str] = FAULTS
    levels: Sequence[int] = (4, 5)
    shared: bool = True


@dataclass(frozen=True)
class Proof:
    """The result of a proof."""

    plan: Plan
    findings: list[str]
    faults: Counter[str]
    history: History
    seconds: float

    @property
    def messages(self) -> int:
        """Different messages that were published."""
        return len({event.payload for event in self.history.of(Published)})


class NodesLoad(Load):
    """Clients that connect to any of the nodes, through their proxies."""

    def __init__(self, nodes: Sequence[Node], plan: Plan) -> None:
        level = [plan.levels[number % len(plan.levels)] for number in range(3)]
        super().__init__(plan.seed, patient_client, Fleet, backlog=BACKLOG, levels=(level, level[::-1], level))
        self.nodes = nodes
        self.workers = [
            patient_client(self.history, f"worker {number}", level=level[number]) for number in range(3 * plan.shared)
        ]
        self.transactors = [
            Transactor(self.history, f"transactor {number}", self.rng, clean=True, patience=CONNECT_SECONDS)
            for number in range(2 * (5 in plan.levels))
        ]
        self.fleet.clients += [*self.workers, *self.transactors]
        self.shared_from = 0
        self.died: list[str] = []  # nodes that ended by themselves; they are started again

    def port_of(self, client: RecordedClient) -> int:
        return self.rng.choice([node for node in self.nodes if node.is_up] or self.nodes).proxy.port

    def subscribe(self) -> None:
        super().subscribe()
        for worker in self.workers:
            worker.subscribe((GROUP, 2))

    def act(self) -> None:
        super().act()
        for transactor in self.transactors:
            transactor.transact()
            if self.rng.random() < 0.02:
                transactor.lose()
        if self.workers and self.rng.random() < 0.02:
            self.rng.choice(self.workers).lose()

    def progress(self) -> int:
        """A number that grows as long as messages arrive or are acknowledged."""
        return sum(len(client.taken) - len(client.outgoing) for client in self.fleet.clients)

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Read and reconnect until a condition holds; False: nothing has happened for some seconds."""
        progress, end = self.progress(), time.monotonic() + QUIET_SECONDS
        while not condition():
            for client in self.fleet.clients:
                if client.socket is None:
                    self.connect(client)
            self.fleet.run_for(0.02)
            if self.progress() != progress:
                progress, end = self.progress(), time.monotonic() + QUIET_SECONDS
            elif time.monotonic() > end:
                return False
        return True


def patient_client(history: History, client_id: str, **options: Any) -> RecordedClient:
    """A client that does not wait long for CONNACK, and subscribes again if its session is lost."""
    return RecordedClient(history, client_id, patience=CONNECT_SECONDS, subscribes_again=True, **options)


def prove(nodes: Sequence[Node], plan: Plan, note: Callable[[str], object] = lambda text: None) -> Proof:
    """Start the nodes, run clients and faults, and judge.

    Args:
        nodes: not started; they are stopped at the end.
        plan: the settings.
        note: called with a line for each fault.

    Raises:
        ProveError: a node does not start, or the clients can't subscribe.
    """
    began = time.monotonic()
    load = NodesLoad(nodes, plan)
    faults: Counter[str] = Counter()
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait()
        load.subscribe()
        if not load.wait(lambda: not any(client.subscriptions for client in load.fleet.clients)):
            raise ProveError("the clients can't connect and subscribe: is the address that of an MQTT broker?")
        load.shared_from = len(load.history.events)
        for kind in _play(load, plan):
            faults[kind] += 1
            note(f"{kind}: {faults.total()} faults, {load.count} messages")
        findings = _judge(load)
    finally:
        for node in nodes:
            node.stop()
    return Proof(plan, findings, faults, load.history, time.monotonic() - began)


# ---- faults ----


def _play(load: NodesLoad, plan: Plan) -> Iterator[str]:
    """Run the load for its time; yields the name of each fault after it has ended."""
    end = time.monotonic() + plan.seconds
    while time.monotonic() < end:
        _act_for(load, load.rng.choice((0.05, 0.2, 0.5, 1.0)))
        if plan.faults:
            kind = load.rng.choice(list(plan.faults))
            _break(load, load.rng.choice(list(load.nodes)), kind)
            yield kind


def _act_for(load: NodesLoad, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        load.act()


def _break(load: NodesLoad, node: Node, kind: str) -> None:
    """One fault of a node, with its end."""
    lasts = load.rng.choice((0.1, 0.5, 1.5))
    if node.has_died():
        load.died.append(node.name)
        kind = "kill"
    load.history.add(Fault(node.name, kind))
    if kind == "kill":
        node.kill()
        load.kills += 1
        load.fleet.run_for(0.02)  # the clients see that their connections have ended
        if len(load.nodes) > 1:
            _act_for(load, lasts)
        node.start()
        node.wait()
    elif kind == "pause":
        node.pause()
        _act_for(load, lasts)
        node.go_on()
    elif kind == "cut":
        node.proxy.cut()
    else:
        node.proxy.stall()
        _act_for(load, lasts)
        node.proxy.resume()
    load.history.add(Fault(node.name, f"{kind} is over"))


# ---- the end ----


def _judge(load: NodesLoad) -> list[str]:
    """Let everything arrive that is under way, and return the findings."""
    for node in load.nodes:
        if node.has_died():
            load.died.append(node.name)
            node.start()
            node.wait()
    findings = [f"I0 {name} has ended by itself" for name in load.died]
    load.wait(lambda: all(transactor.is_done for transactor in load.transactors))
    if not load.wait(lambda: not any(client.outgoing for client in load.fleet.clients)):
        waiting = sum(len(client.outgoing) for client in load.fleet.clients)
        findings.append(f"I1 {waiting} messages are not acknowledged although nothing is broken any more")
    load.publishers[0].publish("t/last", b"last", 2)
    load.wait(
        lambda: (
            all(b"last" in client.taken and not client.unreleased for client in load.subscribers)
            and not load.publishers[0].outgoing
            and not _missing(load)
        )
    )
    load.fleet.run_for(SETTLE_SECONDS)
    findings += load.findings()
    workers = {worker.client_id for worker in load.workers}
    if workers:
        findings += checker.undelivered(load.history, workers, load.shared_from)
        findings += checker.doubled(load.history, workers)
    for node in load.nodes:
        name = f" at {node.name}" if len(load.nodes) > 1 else ""
        findings += [finding + name for finding in checker.retained(load.history, _retained(node))]
    return findings


def _missing(load: NodesLoad) -> bool:
    """Whether wills, or messages to the workers, are yet to come."""
    workers = {worker.client_id for worker in load.workers}
    return any("never came" in line for line in checker.wills(load.history)) or bool(
        workers and checker.undelivered(load.history, workers, load.shared_from)
    )


def _retained(node: Node) -> dict[str, bytes]:
    """The retained messages that a new subscriber gets at a node."""
    history = History()
    client = RecordedClient(history, "new subscriber", clean=True, patience=CONNECT_SECONDS)
    end = time.monotonic() + QUIET_SECONDS
    while not client.connect(node.proxy.port):
        if time.monotonic() > end:
            return {}
    client.subscribe((KEPT, 1))
    fleet = Fleet(client)
    seen = -1
    while client.socket is not None and (client.subscriptions or len(client.seen) > seen):
        seen = len(client.seen)
        fleet.run_for(0.5)
    client.leave()
    return {packet.topic_name: packet.payload for packet in client.seen if isinstance(packet, Publish)}
