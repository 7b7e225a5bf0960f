"""A link between two clusters that exchange their filters: nodes are killed, its network is cut and silent.

A publisher is at one cluster, a subscriber at the other; their own nodes stay. The checker judges.
"""

import json
import random
import signal
import time

import pytest

from flockmq.broker.core.hidden_messages import ROOT
from flockmq.broker.core.secret import NAME
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import History
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.conftest import StartCluster
from tests.faults.client import FaultClient, Fleet
from tests.faults.load import SETTINGS
from tests.harness.broker_process import until
from tests.harness.cluster_process import new_seed
from tests.harness.deadline import DEADLINE
from tests.links.test_wanted import HTTP, filters_of

ROUNDS = 8
IN_ROUND = 40  # messages
MORE = {**SETTINGS, **HTTP, "cluster.lease": 1}
SECRET = (ROOT + NAME).encode()


@pytest.mark.parametrize("direction", ["out", "in"])
def test_nothing_wanted_is_lost_or_doubled_between_clusters(start_cluster: StartCluster, direction: str) -> None:
    rng = random.Random(new_seed())
    there = start_cluster(MORE, nodes="xyz")
    network = TcpProxy(there["x"].port)
    table = {
        "url": f"mqtt://127.0.0.1:{network.port}",
        "topics": [f"# {direction} 2"],
        "client_id": "x",
        "retry": 0.5,
        "keep_alive": 5,
        "wanted_only": True,
    }
    here = start_cluster({**MORE, "links": json.dumps({"far": table})}, nodes="abc")
    here.wait_for_log("link is connected")
    history = History()
    publisher, subscriber = FaultClient(history, "publisher"), FaultClient(history, "subscriber")
    home, away = (here["a"], there["y"]) if direction == "out" else (there["y"], here["a"])
    ports = {publisher: home.port, subscriber: away.port}
    fleet = Fleet(publisher, subscriber)

    def go_on(seconds: float) -> None:
        for client, port in ports.items():
            if client.socket is None:
                client.connect(port)
        fleet.run_for(seconds)

    def wait_until(is_so: str) -> None:
        end = time.monotonic() + DEADLINE
        while not (not publisher.outgoing if is_so == "acknowledged" else is_so.encode() in subscriber.taken):
            assert time.monotonic() < end, is_so
            go_on(0.02)

    go_on(0.05)
    subscriber.subscribe(("t/#", 2))
    fleet.run_for(0.5)
    session = "$link/far" if direction == "out" else "x"
    until(lambda: filters_of(home, session) == {"t/#"})
    number = 0
    for _ in range(ROUNDS):
        network.resume()
        fault = rng.choice(("cut", "stall", "here", "there", "both"))
        killed = []
        if fault in ("cut", "stall"):
            getattr(network, fault)()
        if fault in ("here", "both"):
            killed.append(here[rng.choice("bc")])
        if fault in ("there", "both"):
            killed.append(there[rng.choice("xz")])
        for node in killed:
            node.kill()
        for _ in range(IN_ROUND):
            number += 1
            publisher.publish(f"t/{number % 3}", b"%d" % number, rng.choice((1, 2)))
            publisher.publish("not/wanted", b"no %d" % number, 1)
            go_on(rng.choice((0, 0.005)))
        for node in killed:
            node.start()
        wait_until("acknowledged")
    network.resume()
    publisher.publish("t/last", b"last", 2)
    wait_until("last")
    wait_until("acknowledged")
    network.close()
    assert checker.check(history) == []
    assert all(payload == b"last" or not payload.startswith(b"no") for payload in subscriber.taken)


@pytest.mark.one_shard
def test_a_node_that_rejoins_makes_no_other_secret(start_cluster: StartCluster) -> None:
    """Its links asked for the broker's identity before it had the state: at other brokers they were other clients."""
    link = {"url": "mqtt://127.0.0.1:1", "topics": ["t/# out 2"], "retry": 0.1}  # no broker listens there
    links = json.dumps({f"far{i}": link for i in range(8)})
    cluster = start_cluster({**SETTINGS, "cluster.lease": 1, "links": links}, nodes="ab", proxies=True)
    with cluster.redis.client(decode_responses=False) as redis:

        def secret() -> bytes | None:
            found: bytes | None = redis.hget("mq:retained", SECRET)
            return found

        until(lambda: secret() is not None)
        before = secret()
        for name, other in ("ab", "ba"):
            since, there = len(cluster[name].log), len(cluster[other].log)
            cluster[name].signal(signal.SIGSTOP)
            cluster[other].wait_for_log("node left", there)
            cluster[name].proxy.slow(0.03)  # the join takes longer than the links wait
            cluster[name].signal(signal.SIGCONT)
            cluster[name].wait_for_log("joined the cluster", since)
            cluster[name].proxy.slow(0)
            cluster[name].wait_for_log("rejoined the cluster: the node is ready again", since)
            assert secret() == before
