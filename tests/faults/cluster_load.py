"""A cluster under load. A fault happens in a separate thread while the clients go on."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from flockmq.loadtest.prove import checker
from tests.faults.client import FaultClient
from tests.faults.failure import failure
from tests.faults.load import SETTINGS, Load
from tests.harness.cluster_process import ClusterNode, ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.logs import logged_rows

LEASE = 1.5  # seconds
GROUP = "$share/workers/t/#"
CLUSTER_SETTINGS: dict[str, object] = {
    **SETTINGS,
    "mqtt.sys_interval": 0,
    "cluster.lease": LEASE,
    "cluster.timeout": 0.7,
    "analytics.topics": "#",
    "analytics.log_bytes": "1 GiB",
}


class ClusterLoad(Load):
    """Clients that connect to any node, two of which are one: they have the same client id.

    Args:
        cluster: not started.
        seed: of the clients' acts.
    """

    def __init__(self, cluster: ClusterProcess, seed: int) -> None:
        super().__init__(cluster, seed)
        self.cluster = cluster
        self.workers = [FaultClient(self.history, f"worker {number}", level=(4, 5, 5)[number]) for number in range(3)]
        self.fleet.clients += self.workers
        self.twins = [FaultClient(self.history, "twin", clean=True) for _ in range(2)]

    def start(self) -> None:
        super().start()
        for worker in self.workers:
            worker.subscribe((GROUP, 2))
        self.until(lambda: not any(worker.subscriptions for worker in self.workers), "SUBACK of the group")
        self.shared_from = len(self.history.events)

    def act(self) -> None:
        super().act()
        if self.rng.random() < 0.03:
            self.rng.choice(self.workers).lose()

    def during(self, fault: Callable[[], None], pause: float = 0) -> None:
        """Act as long as the fault lasts, with so many seconds between two acts."""

        def act() -> None:
            self.act()
            self.fleet.run_for(pause)

        meanwhile(act, fault)

    def kill_one(self) -> ClusterNode:
        """kill -9 of a node while another runs; it stays dead."""
        node = self.rng.choice([node for node in self.cluster.nodes if node.running])
        node.kill()
        self.kills += 1
        return node

    def settle(self) -> None:
        """Wills of dead nodes have been published, sessions of dead nodes are offline."""
        self.cluster.start()
        with ExitStack() as stack:
            stores = [
                (stack.enter_context(address.client()), address.keys.prefix.decode())
                for address in self.cluster.addresses
            ]
            self.until(
                lambda: (
                    all(store.hlen(f"{prefix}nodes") == len(self.cluster.nodes) for store, prefix in stores)
                    and not any(store.exists(f"{prefix}dead") for store, prefix in stores)
                    and sum(store.hlen(key) for store, prefix in stores for key in store.scan_iter(f"{prefix}wills:*"))
                    == sum(mortal.socket is not None for mortal in self.mortals)
                ),
                "settled wills",
            )
        self.until(lambda: not [line for line in checker.wills(self.history) if "never came" in line], "wills")
        self.publishers[0].publish("t/after", b"after", 2)
        self.until(
            lambda: all(b"after" in client.taken and not client.unreleased for client in self.subscribers), "the rest"
        )
        workers = {worker.client_id for worker in self.workers}
        self.until(lambda: not checker.undelivered(self.history, workers, self.shared_from), "the group has all")
        self.until(lambda: not any(worker.unreleased for worker in self.workers), "PUBREL for the group")
        findings = checker.doubled(self.history, workers)
        assert findings == [], failure(findings, self.history, self.cluster.log_text())
        if self.cluster.shards > 1:  # a message of QoS 2 may be logged twice
            return
        findings = checker.logged(self.history, Counter(row.payload for row in logged_rows(self.cluster)))
        assert findings == [], failure(findings, self.history, self.cluster.log_text())

    def ports(self) -> list[int]:
        return [node.port for node in self.cluster.nodes]

    def finish_twins(self) -> None:
        """I4: of two that connect to different nodes with one client id, one is left.

        A node that could not renew its lease in time, and rejoins, refuses both or closes them: that does not count.
        """

        def connected() -> int:
            return sum(twin.socket is not None for twin in self.twins)

        rounds, end = 0, time.monotonic() + DEADLINE
        while rounds < 5:
            assert time.monotonic() < end, f"no twin stays\n{self.cluster.log_text()}"
            ports = self.rng.sample(self.ports(), 2)
            self.fleet.clients += self.twins
            threads = [
                threading.Thread(target=twin.connect, args=(port,))
                for twin, port in zip(self.twins, ports, strict=True)
            ]
            for twin in self.twins:
                twin.lose()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.fleet.run(lambda: connected() < 2, "one of two connections ends")
            self.fleet.run_for(0.05)
            assert connected() < 2
            rounds += connected()
            for twin in self.twins:
                self.fleet.clients.remove(twin)


def wait(seconds: float) -> None:
    """A fault lasts: there is no event to wait for."""
    time.sleep(seconds)


def meanwhile(act: Callable[[], None], fault: Callable[[], None]) -> None:
    """Act as long as the fault lasts."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fault()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        act()
    if failures:
        raise failures[0]
