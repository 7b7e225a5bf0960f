"""Three nodes behind the HAProxy that is deployed: clients don't notice what happens to nodes, or are soon back."""

import os
import signal
import subprocess

import pytest

from flockmq._speedups.codec.packets import Publish
from tests.conftest import StartBalanced
from tests.deploy.exchange import exchange
from tests.deploy.newcomers import Newcomers
from tests.harness.balanced_cluster import BalancedCluster
from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE
from tests.harness.haproxy_process import CONFIGURATION
from tests.harness.socket_client import SocketClient


def connect(balanced: BalancedCluster, client_id: str, **connect: object) -> tuple[SocketClient, str]:
    """A client, and the name of the node that has it."""
    client = SocketClient(balanced.port, client_id, **connect)
    # The node sees the client's address, not HAProxy's.
    address = "{}:{}".format(*client.socket.getsockname())
    return client, str(balanced.connected(client_id, address=address)["node"])


def one_at_each(balanced: BalancedCluster, prefix: str) -> dict[str, SocketClient]:
    """A client at each node, which subscribes to `news`: HAProxy gives each to the node that has the fewest."""
    found = {}
    for number in range(3):
        client, node = connect(balanced, f"{prefix}-{number}")
        client.subscribe(("news", 1))
        found[node] = client
    assert sorted(found) == ["a", "b", "c"]
    return found


def test_clients_are_spread_and_hear_of_each_other(start_balanced: StartBalanced) -> None:
    balanced = start_balanced({"log.level": "debug"})
    one_at_each(balanced, "subscriber")
    exchange("127.0.0.1", balanced.port, "someone", "another")
    assert balanced.connected("someone")["node"] != balanced.connected("another")["node"]
    assert balanced.haproxy.states() == {"node-1": "UP", "node-2": "UP", "node-3": "UP"}
    assert "haproxy_backend_active_servers" in balanced.haproxy.get("/metrics")


def test_a_node_that_is_drained_is_not_missed(start_balanced: StartBalanced) -> None:
    balanced = start_balanced({"log.level": "debug", "http.drain": "4 s"})  # HAProxy notices within 2
    clients = one_at_each(balanced, "early")
    leaving = balanced["b"]
    with Newcomers("127.0.0.1", balanced.port) as newcomers:
        newcomers.wait_for_more()
        leaving.signal(signal.SIGTERM)
        stopping = f"Server nodes/{balanced.server(leaving)} is stopping"  # NOLB, until it has left
        until(lambda: stopping in balanced.haproxy.log_text(), "it gets no new clients, and keeps its clients")
        newcomers.wait_for_more()  # connections that were on their way to it
        seen = len(leaving.log)
        newcomers.wait_for_more()
        assert not [line for line in leaving.log[seen:] if line["event"] == "client connected"]
        # It still serves whom it has.
        clients["b"].send(Publish("news", b"still here", 0))
        for client in clients.values():
            message = client.receive()
            assert isinstance(message, Publish) and message.payload == b"still here"
        assert leaving.running
        assert leaving.wait() == 0
        newcomers.wait_for_more()
        leaving.start()
        balanced.haproxy.wait_for(balanced.server(leaving), "UP")
        newcomers.wait_for_more()
    assert clients["b"].receive() is None
    for name in "ac":
        assert clients[name].ping() == []


def test_clients_of_a_node_that_is_killed_come_back_through_another(start_balanced: StartBalanced) -> None:
    balanced = start_balanced({"log.level": "debug"})
    clients = {}
    for number in range(3):
        client, node = connect(balanced, f"durable-{number}", clean_start=False)
        client.subscribe(("news", 1))
        clients[node] = (client, f"durable-{number}")
    killed = balanced["c"]
    killed.kill()
    gone, client_id = clients.pop("c")
    assert gone.receive() is None
    # No check has failed yet: a client that is sent to the dead node is sent on to another.
    publisher, _ = connect(balanced, "publisher")
    publisher.send(Publish("news", b"while away", 1, packet_id=1))
    publisher.receive()
    back, node = connect(balanced, client_id, clean_start=False)
    assert node != "c"
    assert back.connack is not None and back.connack.session_present
    for client in (back, *(client for client, _ in clients.values())):
        message = client.receive()
        assert isinstance(message, Publish) and message.payload == b"while away"
    balanced.haproxy.wait_for(balanced.server(killed), "DOWN")
    killed.start()
    balanced.haproxy.wait_for(balanced.server(killed), "UP")


def test_clients_of_a_node_that_is_silent_are_closed(start_balanced: StartBalanced) -> None:
    """Its machine is off, or it hangs: no FIN, no RST. Clients need not wait for their keep alive."""
    balanced = start_balanced({"log.level": "debug", "cluster.lease": 600})  # else it notices that it was declared dead
    clients = one_at_each(balanced, "early")
    silent = balanced["c"]
    silent.signal(signal.SIGSTOP)
    try:
        assert clients["c"].receive() is None
        assert balanced.haproxy.states()[balanced.server(silent)] == "DOWN"
        for name in "ab":
            assert clients[name].ping() == []
    finally:
        silent.signal(signal.SIGCONT)
    balanced.haproxy.wait_for(balanced.server(silent), "UP")


def test_clients_stay_connected_while_nodes_have_no_redis(start_balanced: StartBalanced) -> None:
    """No node takes clients then, and none is dead."""
    balanced = start_balanced({"log.level": "debug"})
    clients = one_at_each(balanced, "early")
    balanced.cluster.redis.kill()
    for node in balanced.cluster.nodes:
        balanced.haproxy.wait_for(balanced.server(node), "NOLB")
    assert not _gets_in(balanced.port)
    for client in clients.values():
        assert client.ping() == []
    balanced.cluster.redis.restart()
    for node in balanced.cluster.nodes:
        balanced.haproxy.wait_for(balanced.server(node), "UP")
    for client in clients.values():
        assert client.ping() == []


def test_haproxy_says_whether_there_is_a_node(start_balanced: StartBalanced) -> None:
    balanced = start_balanced()
    for node in balanced.cluster.nodes:
        node.kill()
    until(lambda: not balanced.haproxy.get("/healthz"), "no node, no health")
    balanced.cluster.start()
    until(lambda: balanced.haproxy.get("/healthz"), "health is back")
    exchange("127.0.0.1", balanced.port, "a", "b")


def test_connections_of_one_address_can_be_limited(start_balanced: StartBalanced) -> None:
    balanced = start_balanced(variables={"SOURCE_CONNECTIONS": "2", "SOURCE_RATE": "1000"})
    clients = [SocketClient(balanced.port, f"client-{number}") for number in range(2)]
    assert not _gets_in(balanced.port)
    clients.pop().close()
    until(lambda: _gets_in(balanced.port), "there is room again")


def _gets_in(port: int) -> bool:
    try:
        SocketClient(port, "late").close()
        return True
    except (AssertionError, OSError):
        return False


@pytest.mark.parametrize(
    "variables",
    [{}, {"NODES": "nodes.example:1884", "MAXCONN": "1000"}, {"NODE_1": "10.0.0.1:1884", "NODE_5": "10.0.0.5:1884"}],
)
def test_the_configuration_is_valid(variables: dict[str, str]) -> None:
    checked = subprocess.run(
        ["haproxy", "-c", "-f", str(CONFIGURATION)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert checked.returncode == 0, checked.stderr
    assert "[WARNING]" not in checked.stderr
