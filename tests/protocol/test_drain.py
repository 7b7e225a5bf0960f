"""SIGTERM with `http.drain`: load balancers are told first, clients are served until they have noticed."""

import signal
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker, ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire

pytestmark = pytest.mark.one_process
StartBroker = Callable[..., Broker]
StartCluster = Callable[..., ClusterProcess]


def ready(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=DEADLINE) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_clients_are_served_while_load_balancers_notice(start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0", "http.drain": "1s"})
    url = broker.wait_for_log("HTTP server is listening")["listen"]
    assert ready(url) == 200
    with Wire(broker.port, name="old") as old:
        old.connect().subscribe("t:0")
        broker.signal(signal.SIGTERM)
        until(lambda: ready(url) == 503)
        with Wire(broker.port, name="new") as new:
            new.connect()
            new.send("publish t hello")
            old.expect("publish t hello")
            new.expect(None)
        old.expect(None)
    assert broker.wait() == 0


def test_without_it_the_end_is_prompt(start_broker: StartBroker) -> None:
    broker = start_broker({"http.drain": "0s"})
    with Wire(broker.port, name="old") as old:
        old.connect()
        broker.signal(signal.SIGTERM)
        old.expect(None)
    assert broker.wait() == 0


def test_a_node_that_began_anew_lets_them_notice_too(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"cluster.lease": "3s", "http.listen": "127.0.0.1:0", "http.drain": "1s"}, nodes="ab")
    node = cluster["a"]
    node.begin_anew()
    url = node.wait_for_log("HTTP server is listening")["listen"]
    node.signal(signal.SIGTERM)
    until(lambda: ready(url) == 503)
    with Wire(node.port, name="new") as new:
        new.connect()
    assert node.wait() == 0
