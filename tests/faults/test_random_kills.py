"""kill -9 at random moments under QoS 1 and 2 load, judged by the checker.

A failing run prints its seed. FLOCKMQ_TEST_SEED repeats what the clients do (not the moments of the machine),
FLOCKMQ_TEST_SECONDS is the length of the long form.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Pingreq, Pingresp
from tests.faults.fault_node import FaultNode
from tests.faults.load import SETTINGS, WINDOW, Load
from tests.harness.cluster_process import new_seed
from tests.harness.socket_client import SocketClient


@pytest.fixture
def seed() -> int:
    return new_seed()


def load_of(directory: Path, seed: int, sync: str) -> Load:
    """A node that compacts its store all the time."""
    node = FaultNode(directory, sync, SETTINGS)
    node.kill_at = "compacting:1"
    return Load(node, seed)


@pytest.fixture
def load(tmp_path: Path, seed: int, sync: str) -> Iterator[Load]:
    load = load_of(tmp_path, seed, sync)
    yield load
    status = load.broker.stop()
    load.broker.check()
    assert status == 0, load.broker.log_text()


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
        load = load_of(directory, seed, sync)
        try:
            run(load, min(20.0, max(5.0, end - time.monotonic())))
        finally:
            load.broker.stop()
        load.broker.check()
        shutil.rmtree(directory)
        seed = seed % (1 << 32) + 1


# ---- stopped, not killed ----


@pytest.mark.parametrize("sync", ["normal"])
def test_a_clean_stop_under_load_loses_nothing(load: Load) -> None:
    load.start()
    for _ in range(4):
        for _ in range(60):
            load.act()
        load.broker.signal(signal.SIGTERM)
        while load.broker.running:
            for publisher in load.publishers:
                if publisher.socket is not None and len(publisher.outgoing) < WINDOW:
                    publisher.publish("t/0", b"%s/%d" % (publisher.client_id.encode(), load.number()), 1)
            load.fleet.run_for(0.001)
        assert load.broker.wait() == 0
        load.fleet.lose()
        load.broker.start()
        load.reconnect()
    load.finish()


@pytest.mark.parametrize("sync", ["normal"])
def test_a_node_that_stood_still_for_a_while_times_nobody_out(load: Load) -> None:
    load.broker.start()
    clients = [SocketClient(load.broker.port, f"client {number}", keep_alive=1) for number in range(20)]
    for client in clients:
        client.ping()
    time.sleep(1.1)  # almost as long as a client may be silent
    load.broker.signal(signal.SIGSTOP)
    time.sleep(5)  # more than three keep alive periods: there is no event to wait for
    for client in clients:
        client.send(Pingreq())
    load.broker.signal(signal.SIGCONT)
    for client in clients:
        assert isinstance(client.receive(), Pingresp)
        client.close()
