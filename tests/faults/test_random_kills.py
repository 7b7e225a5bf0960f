"""kill -9 at random moments under QoS 1 and 2 load, judged by the checker.

A failing run prints its seed. FLOCKMQ_TEST_SEED repeats what the clients do (not the moments of the machine),
FLOCKMQ_TEST_SECONDS says how long the long form lasts.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from _speedups.packets import Pingreq, Pingresp, Publish
from tests.faults import checker
from tests.faults.client import FaultClient, Fleet
from tests.faults.fault_node import FaultNode
from tests.faults.history import History
from tests.socket_client import SocketClient

SETTINGS: dict[str, object] = {
    "limits.max_queued_messages": 1_000_000,
    "limits.max_queued_bytes": 1 << 30,
    "limits.max_inflight": 20,
}
WINDOW = 30  # messages that a publisher has under way


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("FLOCKMQ_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"FLOCKMQ_TEST_SEED={seed}")
    return seed


class Load:
    """A node under load, and all that clients do to it."""

    def __init__(self, directory: Path, seed: int, sync: str) -> None:
        self.rng = random.Random(seed)
        self.node = FaultNode(directory, sync, SETTINGS)
        self.node.kill_at = "compacting:1"
        self.history = History()
        self.publishers = [
            FaultClient(self.history, f"publisher {number}", level=4 - number % 2) for number in range(3)
        ]
        self.subscribers = [FaultClient(self.history, f"subscriber {number}") for number in range(3)]
        self.keeper = FaultClient(self.history, "keeper")
        self.mortals = [FaultClient(self.history, f"mortal {number}", clean=number % 2 == 0) for number in range(3)]
        self.fleet = Fleet(*self.publishers, *self.subscribers, self.keeper, *self.mortals)
        self.count = 0
        self.kills = 0

    def start(self) -> None:
        self.node.start()
        self.reconnect(everybody=True)
        for number, subscriber in enumerate(self.subscribers):
            subscriber.subscribe(("t/#", 2 if number else 1), ("will", 2))
        self.fleet.run(lambda: not any(client.subscriptions for client in self.subscribers), "SUBACK")

    def number(self) -> int:
        self.count += 1
        return self.count

    def reconnect(self, *, everybody: bool = False) -> None:
        for client in self.fleet.clients:
            if client.socket is None and (everybody or self.rng.random() < 0.7):
                will = b"will %d" % self.number() if client in self.mortals else None
                assert client.connect(self.node.port, will=will)

    def act(self) -> None:
        """One thing that clients do."""
        chance = self.rng.random()
        if chance < 0.80:
            publisher = self.rng.choice(self.publishers)
            for _ in range(self.rng.choice((1, 3, 10))):
                if len(publisher.outgoing) < WINDOW:
                    name, qos = self.rng.randrange(3), self.rng.choice((1, 2))
                    size = self.rng.choice((0, 0, 100, 5000))
                    payload = b"%s/%d %s" % (publisher.client_id.encode(), self.number(), bytes(size))
                    publisher.publish(f"t/{name}", payload, qos)
        elif chance < 0.86:
            if len(self.keeper.outgoing) < WINDOW:
                payload = b"" if self.rng.random() < 0.2 else b"value %d" % self.number()
                self.keeper.publish(f"kept/{self.rng.randrange(20)}", payload, 1, retain=True)
        elif chance < 0.92:
            self.rng.choice([*self.subscribers, *self.publishers, *self.mortals]).lose()
        elif chance < 0.94:
            self.rng.choice(self.mortals).leave()
        else:
            self.reconnect()
        self.fleet.run_for(self.rng.choice((0, 0, 0.002)))

    def kill(self) -> None:
        """kill -9, and everybody has to see how to go on."""
        self.node.kill()
        self.kills += 1
        self.fleet.lose()
        self.node.start()
        self.reconnect()

    def finish(self) -> None:
        """All that is under way arrives; then nothing may be wrong."""
        self.reconnect(everybody=True)
        self.fleet.run(lambda: not any(client.outgoing for client in self.fleet.clients), "all acknowledged")
        self.publishers[0].publish("t/last", b"last", 2)
        self.fleet.run(
            lambda: (
                all(b"last" in client.taken and not client.unreleased for client in self.subscribers)
                and not self.publishers[0].outgoing
            ),
            "all delivered",
        )
        findings = checker.check(self.history)
        assert findings == [], "\n".join(findings[:20])
        with SocketClient(self.node.port, "new subscriber") as client:
            client.subscribe(("kept/#", 0))
            values = {packet.topic_name: packet.payload for packet in client.ping() if isinstance(packet, Publish)}
        assert checker.retained(self.history, values) == []


@pytest.fixture
def load(tmp_path: Path, seed: int, sync: str) -> Iterator[Load]:
    load = Load(tmp_path, seed, sync)
    yield load
    status = load.node.stop()
    load.node.check()
    assert status == 0, load.node.log_text()


def run(load: Load, seconds: float) -> None:
    load.start()
    end = time.monotonic() + seconds
    next_kill = time.monotonic() + 0.3
    while time.monotonic() < end:
        load.act()
        if time.monotonic() > next_kill:
            load.kill()
            next_kill = time.monotonic() + load.rng.choice((0.0, 0.1, 0.5, 1.0))
    load.finish()
    print(f"{load.kills} kills, {load.count} messages, {len(load.history.events)} events")
    assert load.kills > 1


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_random_kills(load: Load) -> None:
    run(load, 5)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("sync", ["normal", "full"])
def test_random_kills_for_long(tmp_path: Path, seed: int, sync: str) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60")) / 2
    while time.monotonic() < end:  # in rounds, since a history is kept in memory
        print(f"FLOCKMQ_TEST_SEED={seed}")
        directory = tmp_path / str(seed)
        directory.mkdir()
        load = Load(directory, seed, sync)
        try:
            run(load, min(20.0, max(5.0, end - time.monotonic())))
        finally:
            load.node.stop()
        load.node.check()
        shutil.rmtree(directory)
        seed = seed % (1 << 32) + 1


# ---- stopped, not killed ----


@pytest.mark.parametrize("sync", ["normal"])
def test_a_clean_stop_under_load_loses_nothing(load: Load) -> None:
    load.start()
    for _ in range(4):
        for _ in range(60):
            load.act()
        load.node.signal(signal.SIGTERM)
        while load.node.running:
            for publisher in load.publishers:
                if publisher.socket is not None and len(publisher.outgoing) < WINDOW:
                    publisher.publish("t/0", b"%s/%d" % (publisher.client_id.encode(), load.number()), 1)
            load.fleet.run_for(0.001)
        assert load.node.wait() == 0
        load.fleet.lose()
        load.node.start()
        load.reconnect()
    load.finish()


@pytest.mark.parametrize("sync", ["normal"])
def test_a_node_that_stood_still_for_a_while_times_nobody_out(load: Load) -> None:
    load.node.start()
    clients = [SocketClient(load.node.port, f"client {number}", keep_alive=1) for number in range(20)]
    for client in clients:
        client.ping()
    time.sleep(1.1)  # almost as long as a client may be silent
    load.node.signal(signal.SIGSTOP)
    time.sleep(5)  # more than three keep alive periods: there is no event to wait for
    for client in clients:
        client.send(Pingreq())
    load.node.signal(signal.SIGCONT)
    for client in clients:
        assert isinstance(client.receive(), Pingresp)
        client.close()
