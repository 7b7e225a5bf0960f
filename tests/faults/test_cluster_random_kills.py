"""kill -9 of nodes at random moments under QoS 1 and 2 load, with a group, a link and a stream; a checker judges (F1).

A failing run prints its seed. FLOCKMQ_TEST_SEED repeats what the clients do, FLOCKMQ_TEST_SECONDS is the length of the
long form.
"""

import json
import os
import shutil
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from flockmq.loadtest.prove.client import RecordedClient
from flockmq.loadtest.prove.history import History, Published
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.faults.client import FaultClient
from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, ClusterLoad
from tests.faults.fault_node import FaultNode
from tests.faults.load import SETTINGS
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterNode, ClusterProcess, new_seed
from tests.links.test_wanted import HTTP, filters_of


def pause(node: ClusterNode, seconds: float) -> None:
    """A node stands still."""
    node.signal(signal.SIGSTOP)
    time.sleep(seconds)
    node.signal(signal.SIGCONT)


class WholeLoad(ClusterLoad):
    """Also a link to another broker, a subscriber there, and a client that reads all messages as a stream.

    Args:
        directory: for the stores.
        seed: of the clients' acts.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        for name in ("cluster", "far"):
            (directory / name).mkdir()
        self.other = FaultNode(directory / "far", settings=SETTINGS)
        self.network = TcpProxy(lambda: self.other.port)
        link = {"url": f"mqtt://127.0.0.1:{self.network.port}", "topics": ["t/# out 2"], "retry": 0.5, "keep_alive": 5}
        settings = {**CLUSTER_SETTINGS, **HTTP, "links": json.dumps({"far": link})}
        cluster = ClusterProcess(directory / "cluster", settings, redis="always", proxies=True, orderly=False)
        super().__init__(cluster, seed)
        self.far = FaultClient(self.history, "far")
        # A separate history: a stream has a roaming publisher's messages in the order of the nodes' logs.
        self.reader = FaultClient(History(), "reader", level=5)
        self.fleet.clients += [self.far, self.reader]

    def start(self) -> None:
        self.other.start()
        super().start()
        self.far.subscribe(("t/#", 2))
        self.reader.subscribe(("$stream/1h/t/#", 1))
        self.until(lambda: not self.far.subscriptions and not self.reader.subscriptions, "SUBACK of link and stream")
        until(lambda: filters_of(self.cluster["a"], "$link/far") == {"t/#"})

    def port_of(self, client: RecordedClient) -> int:
        return self.other.port if client is self.far else super().port_of(client)

    def disturb_link(self) -> None:
        """Its other broker is killed and starts again; or its network is cut, or silent or slow until the next time."""
        self.network.resume()
        if self.rng.random() < 0.4:
            self.rng.choice((self.network.cut, self.network.stall, lambda: self.network.slow(0.05)))()
            return
        self.other.kill()
        self.far.lose()
        self.other.start()

    def settle(self) -> None:
        self.network.resume()
        super().settle()

        def missing(client: FaultClient) -> set[bytes]:
            sent = {event.payload for event in self.history.of(Published) if event.topic.startswith("t/")}
            return sent.difference(client.taken)

        self.until(lambda: not missing(self.far), "the link's end has all")
        self.until(lambda: not missing(self.reader), "the reader of the stream has all")

    def close(self) -> None:
        """Stop the other broker."""
        self.network.close()
        assert self.other.stop() == 0, self.other.log_text()
        self.other.check()


def run(directory: Path, seed: int, seconds: float) -> None:
    """Some time of kills, pauses, cut links and restarts, and a good end."""
    load = WholeLoad(directory, seed)
    cluster, rng = load.cluster, load.rng
    with closing(load), cluster.judged():
        load.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            load.run(rng.choice((0.0, 0.1, 0.4, 1.0)))
            running = [node for node in cluster.nodes if node.running]
            dead = [node for node in cluster.nodes if not node.running]
            chance = rng.random()
            if chance < 0.5 and len(running) > 1:
                load.kill_one()
            elif chance < 0.6:
                rng.choice(running).proxy.cut()
            elif chance < 0.7:
                load.during(partial(pause, rng.choice(running), rng.choice((0.2, 2 * LEASE))))
            elif chance < 0.8:
                load.disturb_link()
            elif dead:
                rng.choice(dead).start()
        if not load.kills:  # chance would have it so
            load.kill_one()
            load.run(0.5)
        load.finish()
        load.finish_twins()
    print(f"{load.kills} kills, {load.count} messages, {len(load.history.events)} events")
    assert load.kills


def test_random_kills(tmp_path: Path) -> None:
    run(tmp_path, new_seed(), 8)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_random_kills_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    seed = new_seed()
    while time.monotonic() < end:  # in rounds, since a history is kept in memory
        print(f"FLOCKMQ_TEST_SEED={seed}")
        directory = tmp_path / str(seed)
        directory.mkdir()
        run(directory, seed, min(20.0, max(5.0, end - time.monotonic())))
        shutil.rmtree(directory)
        seed = seed % (1 << 32) + 1
