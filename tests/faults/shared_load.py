"""Groups of workers under load in a cluster: publishers roam, workers die and return, and every message is counted.

Four groups get each message, all over the same topics:

========  ===========  ==========  ==============================================================================
strict    QoS 2        persistent  all messages, at QoS 2 exactly once, over all kills
mixed     QoS 1        both        all messages, at least once
clean     QoS 2        clean       none twice at QoS 2; a session's sent messages are discarded at its end
ordered   both         both        all messages, each publisher's in order (clean subscribers have QoS 1)
========  ===========  ==========  ==============================================================================
"""

import random
import time
from collections.abc import Callable, Iterable

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Packet, Puback, Pubrec
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import Ended, History, Taken
from tests.faults.client import FaultClient, Fleet
from tests.faults.failure import failure
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.web.http_client import HttpClient

WINDOW = 20  # shared.window
OUTSTANDING = 100  # messages that a publisher has under way
BACKLOG = 2000  # messages that a group has not got: publishers wait for the slowest one
FILTER = "$share/{}/t/#"
COMPLETE = ("strict", "mixed", "ordered")  # groups that get all messages


class QuickClient(FaultClient):
    """Sends its packets in one piece when it has acted: thousands of messages a second need that."""

    def __init__(self, history: History, client_id: str, *, clean: bool = False, level: int = 4) -> None:
        super().__init__(history, client_id, clean=clean, level=level)
        self._unsent = bytearray()

    def send(self, packet: Packet) -> None:
        if self.socket is not None:
            self._unsent += encode(packet, self.level)

    def flush(self) -> None:
        """Send what has been collected."""
        data, self._unsent = bytes(self._unsent), bytearray()
        if self.socket is not None and data:
            try:
                self.socket.sendall(data)
            except OSError:
                self.lose()

    def connect(self, port: int, **more: object) -> bool:
        self._unsent.clear()
        connected = super().connect(port)
        self.flush()
        return connected and self.socket is not None

    def _read(self, will: bytes | None = None) -> None:
        self.flush()
        if self.socket is not None:
            super()._read(will)
            self.flush()


class GroupSubscriber(QuickClient):
    """A worker of a group; a clean one subscribes with each connection."""

    def __init__(self, history: History, group: str, number: int, qos: int, *, clean: bool) -> None:
        super().__init__(history, f"{group} {number}", clean=clean, level=(4, 5, 5)[number % 3])
        self.group = group
        self.qos = qos
        self._joined = False

    def connect(self, port: int, **more: object) -> bool:
        if self.clean:
            self.subscriptions.clear()
        if not super().connect(port):
            return False
        if self.clean or not self._joined:
            self._joined = True
            self.subscribe((FILTER.format(self.group), self.qos))
            self.flush()
        return self.socket is not None


class SharedLoad:
    """Publishers, and the subscribers of four groups, over all nodes.

    Args:
        cluster: not started.
        seed: of the clients' acts.
    """

    def __init__(self, cluster: ClusterProcess, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.history = History()
        self.count = 0
        self.publishers = [QuickClient(self.history, f"publisher {number}", level=4) for number in range(4)]
        self.groups = {
            "strict": [GroupSubscriber(self.history, "strict", number, 2, clean=False) for number in range(4)],
            "mixed": [GroupSubscriber(self.history, "mixed", number, 1, clean=number % 2 == 1) for number in range(4)],
            "clean": [GroupSubscriber(self.history, "clean", number, 2, clean=True) for number in range(3)],
            "ordered": [
                GroupSubscriber(self.history, "ordered", number, 2 - number % 2, clean=number % 2 == 1)
                for number in range(4)
            ],
        }
        # A group whose last session ends is gone with its messages; this one is never there, and gets nothing.
        self.keeper = GroupSubscriber(self.history, "clean", 3, 2, clean=False)
        self.subscribers = [subscriber for subscribers in self.groups.values() for subscriber in subscribers]
        self.fleet = Fleet(*self.publishers, *self.subscribers)

    # ---- clients ----

    def start(self) -> None:
        """Start the cluster; all clients connect, and subscribe."""
        self.cluster.start()
        declared = HttpClient(self.cluster["a"]).ask(
            "PUT", "/group", {"strategy": "publisher"}, group=FILTER.format("ordered")
        )
        assert declared.status == 204, declared
        self.fleet.clients.append(self.keeper)
        self.until(lambda: all(client.socket is not None for client in self.fleet.clients), "connections")
        self.until(
            lambda: not any(subscriber.subscriptions for subscriber in (*self.subscribers, self.keeper)), "SUBACK"
        )
        self.fleet.clients.remove(self.keeper)
        self.keeper.lose()

    def reconnect(self, clients: Iterable[FaultClient]) -> None:
        """Clients without a connection try it once, each at any node."""
        for client in clients:
            if client.socket is None:
                client.connect(self.cluster.port)

    def until(self, condition: Callable[[], bool], words: str) -> None:
        """Serve the clients, and connect those again that have lost their connections, until a condition holds."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"it did not happen: {words}\n{self.cluster.log_text()}"
            self.reconnect(self.fleet.clients)
            self.fleet.run_for(0.1)

    def publish(self, publisher: QuickClient, count: int, topic: str = "") -> None:
        """Publish messages of both QoS, in one piece."""
        for _ in range(min(count, OUTSTANDING - len(publisher.outgoing))):
            self.count += 1
            name = topic or f"t/{self.rng.randrange(5)}"
            publisher.publish(name, b"%d" % self.count, self.rng.choice((1, 2)))
        publisher.flush()

    def act(self) -> None:
        """One thing that clients do."""
        chance = self.rng.random()
        if chance < 0.96:
            if self.count - min(self.received(name) for name in COMPLETE) < BACKLOG:
                self.publish(self.rng.choice(self.publishers), 20)
        elif chance < 0.965:
            self.rng.choice(self.publishers).lose()  # it roams: it returns at any node
        elif chance < 0.97:
            self.rng.choice(self.subscribers).lose()
        elif chance < 0.972:
            self.rng.choice(self.subscribers).silent = {Puback, Pubrec}  # it keeps what it has, until it is lost
        else:
            for client in self.fleet.clients:
                if client.silent and self.rng.random() < 0.1:
                    client.silent = set()
                    client.lose()
            self.reconnect(client for client in self.fleet.clients if self.rng.random() < 0.7)
        self.fleet.run_for(0.0005)

    def run(self, seconds: float) -> None:
        """Act for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.act()

    # ---- the end ----

    def finish(self) -> None:
        """All nodes and clients are there; all that is under way arrives; then nothing may be wrong."""
        self.cluster.start()
        for client in self.fleet.clients:
            client.silent = set()
            client.lose()
        self.until(lambda: not any(publisher.outgoing for publisher in self.publishers), "all acknowledged")
        for publisher in self.publishers:
            self.publish(publisher, 1, "t/last")
        self.until(lambda: not any(publisher.outgoing for publisher in self.publishers), "the last acknowledged")
        for name in COMPLETE:
            self.until(lambda: not self.missing(name), f"{name} has all")  # noqa: B023
        self.until(lambda: not any(subscriber.unreleased for subscriber in self.subscribers), "PUBREL")
        self.until(lambda: len(self.missing("clean")) <= self.discarded(), "clean has all but the discarded")
        findings = checker.check(self.history)
        for name in ("strict", "clean"):  # the other one asks for QoS 1
            findings += checker.doubled(self.history, self.workers(name))
        for name in COMPLETE:
            findings += checker.undelivered(self.history, self.workers(name), 0)
        findings += checker.disordered(self.history, self.workers("ordered"))
        assert findings == [], failure(findings, self.history, self.cluster.log_text())

    def workers(self, group: str) -> set[str]:
        return {subscriber.client_id for subscriber in self.groups[group]}

    def received(self, group: str) -> int:
        """Messages that the subscribers of a group have, some of them twice."""
        return sum(len(subscriber.taken) for subscriber in self.groups[group])

    def missing(self, group: str) -> set[bytes]:
        """The messages that no subscriber of a group has."""
        sent = {b"%d" % number for number in range(1, self.count + 1)}
        return sent.difference(*(subscriber.taken for subscriber in self.groups[group]))

    def discarded(self) -> int:
        """Messages that clean subscribers of QoS 2 may have had when their sessions ended."""
        workers = self.workers("clean")
        return WINDOW * sum(1 for event in self.history.of(Ended) if event.client in workers)

    def summary(self) -> str:
        taken = self.history.of(Taken)
        workers = self.workers("mixed")
        mixed = [event.payload for event in taken if event.client in workers]
        return (
            f"{self.count} messages, {len(taken)} deliveries: 0 lost, 0 doubled at QoS 2; "
            f"{len(mixed) - len(set(mixed))} twice at QoS 1, {len(self.missing('clean'))} discarded with clean sessions"
        )
