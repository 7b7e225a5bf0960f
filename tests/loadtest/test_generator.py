"""The load generator against Mosquitto: its checks find nothing wrong there, and find what is wrong elsewhere."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq.loadtest.compare.brokers import find_mosquitto
from flockmq.loadtest.generator.checker import check_sequence
from flockmq.loadtest.generator.generator import Generator
from flockmq.loadtest.generator.runs import (
    LoadError,
    connect_load,
    find_faults,
    hold_connections,
    publish_load,
    take_over_load,
)
from flockmq.loadtest.generator.settings import Settings
from flockmq.loadtest.generator.target import IdleLoad, ReconnectLoad, TakeOverLoad, Target, WillsLoad, Workload
from flockmq.loadtest.generator.wills import delayed_wills_load
from tests.harness.broker_process import BrokerProcess
from tests.harness.ports import free_port

MOSQUITTO = find_mosquitto()

CLIENTS: dict[str, dict[str, Any]] = {
    "pairs": {"publishers": 5, "subscribers": 5},
    "fanout": {"publishers": 2, "subscribers": 40},
    "fanin": {"publishers": 20, "subscribers": 2},
    "shared": {"publishers": 5, "subscribers": 4},
    "wild": {"publishers": 3, "subscribers": 40, "topics": 10_000, "filters": 20},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Start Mosquitto; yield its port and process id."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    config: Path = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\nlog_dest none\n"
    )
    process = subprocess.Popen([MOSQUITTO, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("shape", CLIENTS)
def test_every_message_arrives_once_and_in_order(broker: tuple[int, int], shape: str, qos: int) -> None:
    port, pid = broker
    figures = publish_load(
        Target(port=port, pids=[pid]),
        Workload(shape=shape, qos=qos, count=2000, seconds=20, batch=4, **CLIENTS[shape]),
    )
    assert find_faults(figures) == []
    assert figures["published"] == 2000
    assert figures["received"] == figures["expected"] >= 2000 * (shape != "wild")
    assert figures["received"] > 0
    assert figures["acknowledged"] == (2000 if qos else 0)
    assert figures["cpu_us_per_delivery"] > 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("properties", [0, 60, 300])
@pytest.mark.parametrize("shape", CLIENTS)
def test_level_5(broker: tuple[int, int], shape: str, properties: int, qos: int) -> None:
    load = Workload(
        shape=shape, qos=qos, count=1000, seconds=20, properties=properties, ids=properties > 0, **CLIENTS[shape]
    )
    figures = publish_load(Target(port=broker[0], level=5), load)
    assert find_faults(figures) == []
    assert figures["received"] == figures["expected"] > 0
    assert figures["acknowledged"] == (1000 if qos else 0)


@pytest.mark.parametrize("alias", ["in", "out", "both"])
@pytest.mark.parametrize("shape", ["pairs", "fanout", "fanin"])
def test_topic_aliases(tmp_path: Path, shape: str, alias: str) -> None:
    """Also with a payload of level 5's properties beside the alias."""
    node = BrokerProcess(tmp_path).start()
    target = Target(port=node.port, level=5)
    for properties in (0, 60):
        load = Workload(shape=shape, count=1000, seconds=20, properties=properties, alias=alias, **CLIENTS[shape])
        figures = publish_load(target, load)
        assert find_faults(figures) == []
        assert figures["received"] == figures["expected"] > 0
    node.close()


def test_delayed_wills(tmp_path: Path) -> None:
    node = BrokerProcess(tmp_path).start()
    figures = delayed_wills_load(Target(port=node.port, level=5), WillsLoad(wills=100, delay=3))
    node.close()
    assert figures["lost"] == 0 and figures["probes"] > 0
    assert figures["others_latency_max_us"] > 0


@pytest.mark.parametrize("qos", [1, 2])
def test_the_brokers_receive_maximum_is_kept(tmp_path: Path, qos: int) -> None:
    node = BrokerProcess(tmp_path, settings={"limits.receive_maximum": 3}).start()
    load = Workload(qos=qos, publishers=2, subscribers=2, count=400, window=50, batch=20, seconds=20)
    figures = publish_load(Target(port=node.port, level=5), load)
    node.close()
    assert find_faults(figures) == []
    assert figures["acknowledged"] == 400 and figures["received"] == figures["expected"]


def test_level_5_of_other_runs(broker: tuple[int, int]) -> None:
    target = Target(port=broker[0], level=5)
    assert connect_load(target, ReconnectLoad(parallel=3, persistent=True, seconds=0.2))["connects"] > 0
    figures = hold_connections(target, IdleLoad(connections=20, subscribe=True, seconds=0.2, settle=0))
    assert find_faults(figures) == []
    figures = take_over_load(target, TakeOverLoad(clients=10, rate=100, seconds=0.5))
    assert find_faults(figures) == [] and figures["take_overs"] > 0


def test_level_4_has_no_properties() -> None:
    for more in ({"properties": 20}, {"ids": True}, {"alias": "in"}):
        with pytest.raises(ValueError, match="need level 5"):
            Settings(target=Target(port=1), workload=Workload(**more))


def test_persistent_sessions(broker: tuple[int, int]) -> None:
    figures = publish_load(
        Target(port=broker[0]), Workload(qos=1, count=1000, seconds=20, persistent=True, **CLIENTS["pairs"])
    )
    assert find_faults(figures) == []
    assert figures["received"] == 1000


def test_payloads_larger_than_a_read(broker: tuple[int, int]) -> None:
    figures = publish_load(
        Target(port=broker[0]), Workload(qos=1, count=20, seconds=20, payload=400_000, **CLIENTS["pairs"])
    )
    assert find_faults(figures) == []
    assert figures["received"] == 20


def test_rate_is_kept_and_latency_measured(broker: tuple[int, int]) -> None:
    figures = publish_load(Target(port=broker[0]), Workload(rate=500, seconds=1, warm_up=0.1, **CLIENTS["pairs"]))
    assert find_faults(figures) == []
    assert 0 < figures["published_per_s"] < 600
    assert 0 < figures["latency_p50_us"] <= figures["latency_p99_us"] <= figures["latency_max_us"]


def test_connections_are_held_with_pings(broker: tuple[int, int]) -> None:
    port, pid = broker
    figures = hold_connections(
        Target(port=port, pids=[pid]),
        IdleLoad(connections=300, subscribe=True, seconds=1, settle=0.1, keep_alive=1),
    )
    assert find_faults(figures) == []
    assert figures["pings"] >= 300
    assert figures["pongs"] > 0
    assert figures["memory_bytes"] >= figures["memory_before_bytes"] > 0


def test_connects_are_counted(broker: tuple[int, int]) -> None:
    port, pid = broker
    figures = connect_load(Target(port=port, pids=[pid]), ReconnectLoad(parallel=10, seconds=0.5, warm_up=0))
    assert find_faults(figures) == []
    assert figures["connects"] > 0
    assert figures["connect_failures"] == 0
    assert figures["cpu_us_per_connect"] > 0


def test_nobody_listens() -> None:
    with pytest.raises(LoadError, match="Connection refused"):
        publish_load(Target(port=free_port()), Workload())


def test_hosts_are_addresses() -> None:
    for host in ("example.org", "127.0.0.256", "::1"):
        with pytest.raises(ValueError, match="IPv4"):
            Generator(Settings(target=Target(host=host, port=1883), workload=Workload()))


@pytest.mark.parametrize(
    ("numbers", "sent", "lost", "duplicates", "reordered"),
    [
        ([1, 2, 3, 4], 4, 0, 0, 0),
        ([], 4, 4, 0, 0),
        ([1, 2, 4], 4, 1, 0, 0),
        ([1, 2, 3], 4, 1, 0, 0),
        ([1, 2, 2, 3, 4], 4, 0, 1, 0),
        ([1, 2, 3, 4, 1], 4, 0, 1, 0),
        ([1, 3, 2, 4], 4, 0, 0, 1),
        ([4, 3, 2, 1], 4, 0, 0, 3),
        ([2, 3, 3, 1, 1], 5, 2, 2, 1),
        ([*range(1, 3001), 2999, 3000], 3000, 0, 2, 0),
        ([1, 5000, 4999, 5000], 5000, 4997, 1, 1),
        ([2000, 1], 2000, 1998, 0, 1),  # too far behind to be sure: counts as late
    ],
)
def test_checker_counts(numbers: list[int], sent: int, lost: int, duplicates: int, reordered: int) -> None:
    counts = check_sequence(numbers, sent)
    assert (counts["lost"], counts["duplicates"], counts["reordered"]) == (lost, duplicates, reordered)
    assert counts["received"] == len(numbers) - duplicates


def test_checker_agrees_with_a_set() -> None:
    """Random faults within the window, judged by a model that remembers everything."""
    chance = random.Random(7)
    for _ in range(50):
        numbers: list[int] = []
        for number in range(1, 4000):
            if chance.random() < 0.95:
                numbers.append(number)
            if chance.random() < 0.05 and numbers:
                numbers.append(numbers[-chance.randint(1, min(400, len(numbers)))])
            if chance.random() < 0.05 and len(numbers) > 400:
                at = len(numbers) - chance.randint(2, 300)
                numbers.append(numbers.pop(at))
        seen: set[int] = set()
        duplicates = reordered = highest = 0
        for number in numbers:
            if number in seen:
                duplicates += 1
            elif number < highest:
                reordered += 1
            highest = max(highest, number)
            seen.add(number)
        counts = check_sequence(numbers, 3999)
        assert counts == {
            "received": len(seen),
            "lost": 3999 - len(seen),
            "duplicates": duplicates,
            "reordered": reordered,
        }


class FaultyBroker(threading.Thread):
    """Relays one publisher's QoS 0 messages to one subscriber in the order of `plan`, numbers from 0."""

    def __init__(self, plan: list[int]) -> None:
        super().__init__(daemon=True)
        self.plan = plan
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]

    def run(self) -> None:
        clients: dict[bytes, socket.socket] = {}
        with self.server:
            for _ in range(2):
                client = self.server.accept()[0]
                letter = b"s" if b"s0" in _read_frame(client) else b"p"
                clients[letter] = client
                client.sendall(b"\x20\x02\x00\x00")
                if letter == b"s":
                    _read_frame(client)
                    client.sendall(b"\x90\x03\x00\x01\x00")
        frames = [_read_frame(clients[b"p"]) for _ in range(max(self.plan) + 1)]
        clients[b"s"].sendall(b"".join(frames[number] for number in self.plan))
        for client in clients.values():
            while client.recv(4096):
                pass
            client.close()


def _read_frame(client: socket.socket) -> bytes:
    head = client.recv(2, socket.MSG_WAITALL)
    assert head[1] < 128
    return head + client.recv(head[1], socket.MSG_WAITALL)


@pytest.mark.parametrize(
    ("plan", "lost", "duplicates", "reordered"),
    [
        ([0, 1, 2, 3, 4], 0, 0, 0),
        ([0, 2, 4], 2, 0, 0),
        ([0, 1, 2, 2, 3, 4, 0], 0, 2, 0),
        ([0, 2, 1, 3, 4], 0, 0, 1),
        ([4, 1, 1], 3, 1, 1),
    ],
)
def test_faults_of_a_broker_are_found(plan: list[int], lost: int, duplicates: int, reordered: int) -> None:
    broker = FaultyBroker(plan)
    broker.start()
    figures = publish_load(
        Target(port=broker.port),
        Workload(publishers=1, subscribers=1, count=5, payload=32, seconds=5, drain_limit=1),
    )
    broker.join(10)
    assert (figures["lost"], figures["duplicates"], figures["reordered"]) == (lost, duplicates, reordered)
    assert bool(find_faults(figures)) == (plan != sorted(set(range(5))))


def test_lost_messages_do_not_hold_publishers_back_for_ever() -> None:
    """Two messages fill the backlog and never arrive; after a second the next two are sent all the same."""
    broker = FaultyBroker([3])
    broker.start()
    figures = publish_load(
        Target(port=broker.port),
        Workload(publishers=1, subscribers=1, count=4, backlog=2, payload=32, seconds=10),
    )
    broker.join(10)
    assert (figures["published"], figures["received"], figures["lost"]) == (4, 1, 3)
    assert figures["publish_s"] < 5
