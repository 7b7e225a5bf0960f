"""The long forms: a million malformed packets and a thousand slow connections, beside clients that go on working.

Latency is judged as a ratio in one run, and generously: on a small machine attackers take CPU from everybody.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flockmq._speedups.codec.packets import Publish
from tests.conftest import StartBroker
from tests.harness.broker_process import BrokerProcess
from tests.harness.socket_client import SocketClient

pytestmark = pytest.mark.soak
COUNT = int(os.environ.get("FLOCKMQ_TEST_MALFORMED", "1000000"))
MIB = 1 << 20
STARVED = 20  # times the latency: other work of the machine makes several of it, a client that is starved far more


@pytest.fixture
def store() -> str:
    return "memory"


@contextmanager
def attack(port: int, kind: str, count: int) -> Iterator["subprocess.Popen[str]"]:
    command = ["nice", sys.executable, "-m", "tests.security.attacks", str(port), kind, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def median_latency(client: SocketClient, rounds: int = 500) -> float:
    """Seconds that a message takes to the node and back."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        client.send(Publish("self", b"x"))
        client.receive()
        taken.append(time.perf_counter() - began)
        time.sleep(0.002)
    return statistics.median(taken)


@pytest.mark.timeout(3600)
def test_a_million_malformed_packets(start_broker: StartBroker) -> None:
    node = start_broker()
    assert isinstance(node, BrokerProcess)
    client = SocketClient(node.port, "witness")
    client.subscribe(("self", 0))
    with attack(node.port, "malformed", 20_000) as process:
        assert process.wait() == 0
    quiet, before = median_latency(client), node.rss()
    with attack(node.port, "malformed", COUNT) as process:
        busy = [median_latency(client)]
        while process.poll() is None:
            busy.append(median_latency(client))
            node.log.clear()  # a line for each of them
        assert process.returncode == 0
    ratio = statistics.median(busy) / quiet
    print(f"{COUNT} malformed packets: {(node.rss() - before) / MIB:.1f} MiB more, latency x {ratio:.2f}")
    assert node.rss() - before < 8 * MIB
    assert ratio < STARVED


@pytest.mark.timeout(600)
def test_a_thousand_slow_connections(start_broker: StartBroker) -> None:
    node = start_broker({"limits.connect_timeout": 5})
    assert isinstance(node, BrokerProcess)
    client = SocketClient(node.port, "witness")
    client.subscribe(("self", 0))
    quiet = median_latency(client)
    with attack(node.port, "slow", 1000) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        before, busy = node.rss(), [median_latency(client) for _ in range(10)]
        ratio = statistics.median(busy) / quiet
        print(f"1000 slow connections: {(node.rss() - before) / MIB:.1f} MiB more, latency x {ratio:.2f}")
        assert node.rss() - before < 8 * MIB
        assert ratio < STARVED
