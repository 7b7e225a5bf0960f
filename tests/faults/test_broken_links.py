"""A link between two brokers, each killed at random moments, over a network that is cut, silent or slow.

The checker judges. Publishers are at one broker, subscribers at the other. Messages that the first has acknowledged
arrive, in order, and at QoS 2 once. Subscribers are of level 4, since a link of level 5 adds a user property.
"""

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.faults.client import FaultClient
from tests.faults.fault_node import FaultNode
from tests.faults.load import SETTINGS, Load
from tests.harness.broker_process import until
from tests.harness.cluster_process import new_seed
from tests.harness.mosquitto_process import MosquittoProcess
from tests.links.test_wanted import filters_of

HTTP = {"http.listen": "127.0.0.1:0"}
# Direction and version; "wanted": the subscribers' broker asks for its filters.
WAYS = (
    ("out", "3.1.1", ""),
    ("in", "3.1.1", ""),
    ("out", "5", ""),
    ("in", "5", ""),
    ("out", "5", "wanted"),
    ("in", "5", "wanted"),
)


def linked(name: str, port: int, direction: str, version: str, wanted: str) -> dict[str, object]:
    """The settings of a node with a link to the broker at this port."""
    table = {
        "url": f"mqtt://127.0.0.1:{port}",
        "topics": [f"# {direction} 2"] if wanted else [f"t/# {direction} 2", f"will {direction} 2"],
        "version": version,
        "client_id": name,
        "retry": 0.5,
        "keep_alive": 5,
        "wanted_only": bool(wanted),
    }
    return {**SETTINGS, **HTTP, "links": json.dumps({name: table})}


class LinkedLoad(Load):
    """Publishers at the broker, subscribers at another one; a link between them.

    Args:
        directory: for the stores.
        seed: of the clients' acts.
        direction: "out": the publishers' broker runs the link; "in": the other one.
        version: of the link.
        wanted: `wanted_only` of the link.
    """

    def __init__(self, directory: Path, seed: int, direction: str, version: str, wanted: str) -> None:
        for name in ("home", "away"):
            (directory / name).mkdir()
        home, away = self._make("home", directory, direction), self._make("away", directory, direction)
        super().__init__(home, seed)
        self.away = away
        self.killable = [node for node in (home, away) if isinstance(node, FaultNode)]
        self.subscribers = [FaultClient(self.history, f"subscriber {number}") for number in range(3)]
        self.fleet.clients[:] = [*self.publishers, *self.subscribers, self.keeper, *self.mortals]
        self.runner, other = (home, away) if direction == "out" else (away, home)
        self.network = TcpProxy(lambda: other.port)
        self.runner.settings = linked("between", self.network.port, direction, version, wanted)
        self.session = "$link/between" if direction == "out" else "between"  # of the link, at the publishers' broker

    def _make(self, name: str, directory: Path, direction: str) -> Any:
        """The broker at one end, not started."""
        return FaultNode(directory / name, settings=SETTINGS | HTTP)

    def start(self) -> None:
        self.away.start()
        self.broker.start()
        self.runner.wait_for_log("link is connected")
        self.reconnect_all()
        for subscriber in self.subscribers:
            subscriber.subscribe(("t/#", 2), ("will", 2))
        self.until(lambda: not any(client.subscriptions for client in self.subscribers), "SUBACK")
        self.wait_for_interest()

    def wait_for_interest(self) -> None:
        """The link sends what the subscribers get."""
        until(lambda: filters_of(self.broker, self.session) == {"t/#", "will"})

    def port_of(self, client: FaultClient) -> int:
        return self.away.port if client in self.subscribers else self.broker.port

    def kill(self) -> None:
        """kill -9 of one broker or of both; or the link's network is cut, silent or slow until the next fault."""
        self.network.resume()
        if self.rng.random() < 0.4:
            self.rng.choice((self.network.cut, self.network.stall, lambda: self.network.slow(0.05)))()
            return
        both, one = self.rng.random() < 0.2, self.rng.choice(self.killable)
        for node in self.killable:
            if both or node is one:
                node.kill()
                self.kills += 1
                for client in self.fleet.clients:
                    if self.port_of(client) == node.port:
                        client.lose()
                node.start()
        self.reconnect()

    def finish(self, *, behind: bool = False) -> None:
        self.network.resume()
        super().finish(behind=behind)

    def close(self) -> None:
        """Stop both brokers."""
        self.network.close()
        for node in self.killable:
            status = node.stop()
            node.check()
            assert status == 0, node.log_text()


class MosquittoLoad(LinkedLoad):
    """The same with a real Mosquitto at the end that does not run the link.

    It is not killed: it keeps no store here. Order is not judged: Mosquitto changes it at a reconnect of its clients.
    With `max_inflight_messages`, Mosquitto 2.0.11 acknowledges a QoS 1 message of a client that has as many of QoS 2
    under way, drops it, and closes the connection: no subscriber gets it. So there is no such limit here.
    """

    def _make(self, name: str, directory: Path, direction: str) -> Any:
        if name == ("home" if direction == "out" else "away"):
            return super()._make(name, directory, direction)
        return MosquittoProcess(directory / name, "max_queued_messages 0", "max_inflight_messages 0")

    def findings(self, *, behind: bool = False) -> list[str]:
        return [finding for finding in super().findings(behind=behind) if not finding.startswith("I3")]

    def wait_for_interest(self) -> None:
        pass  # the rules' filters are subscribed to before the link counts as connected

    def close(self) -> None:
        super().close()
        for broker in (self.broker, self.away):
            if isinstance(broker, MosquittoProcess):
                broker.kill()


@pytest.mark.skipif(not MosquittoProcess.is_installed(), reason="not installed: mosquitto")
@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_link_to_mosquitto(tmp_path: Path, direction: str, version: str) -> None:
    load = MosquittoLoad(tmp_path, new_seed(), direction, version, "")
    try:
        run(load, 5)
    finally:
        load.close()


@pytest.fixture(params=WAYS, ids=" ".join)
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LinkedLoad]:
    load = LinkedLoad(tmp_path, new_seed(), *request.param)
    yield load
    load.close()


def run(load: LinkedLoad, seconds: float) -> None:
    load.start()
    end = time.monotonic() + seconds
    next_fault = time.monotonic() + 0.3
    while time.monotonic() < end:
        load.act()
        if time.monotonic() > next_fault:
            load.kill()
            next_fault = time.monotonic() + load.rng.choice((0.0, 0.1, 0.5, 1.0))
    load.finish()
    print(f"{load.kills} kills, {load.count} messages, {len(load.history.events)} events")
    assert load.kills


def test_random_kills_of_both_brokers(load: LinkedLoad) -> None:
    run(load, 5)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_random_kills_of_both_brokers_for_long(tmp_path: Path) -> None:
    """In rounds, since a history is kept in memory. FLOCKMQ_TEST_MESSAGES=1000000: until so many have arrived."""
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    messages = int(os.environ.get("FLOCKMQ_TEST_MESSAGES", "0"))
    ways = itertools.cycle(WAYS)
    sent = delivered = 0
    while sent < messages if messages else time.monotonic() < end:
        seed = new_seed()
        directory = tmp_path / str(seed)
        directory.mkdir()
        load = LinkedLoad(directory, seed, *next(ways))
        try:
            run(load, 20)
            sent += load.count
            delivered += sum(len(subscriber.taken) for subscriber in load.subscribers)
            print(f"{sent} messages so far, {delivered} deliveries; 0 lost, 0 doubled", flush=True)
        finally:
            load.close()
        shutil.rmtree(directory)
