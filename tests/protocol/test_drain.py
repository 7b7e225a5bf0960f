"""SIGTERM with `http.drain`: load balancers are informed first, clients are served until they have noticed."""

import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from flockmq._speedups.codec.packets import Connack, Disconnect
from flockmq._speedups.codec.reason_codes import ReasonCode
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker, ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.protocol.wire import Wire
from tests.web.http_client import HttpClient

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


def redirected(packet: object, kind: type, code: int, reference: str) -> None:
    assert isinstance(packet, kind) and isinstance(packet, Connack | Disconnect), packet
    assert packet.reason_code == code
    assert packet.properties["server_reference"] == reference


def test_a_node_that_stops_names_other_servers(start_broker: StartBroker) -> None:
    servers = ["broker-2.example:1883", "broker-3.example:1883"]
    broker = start_broker(
        {"http.listen": "127.0.0.1:0", "http.drain": "1s", "mqtt.server_reference": ",".join(servers)}
    )
    url = broker.wait_for_log("HTTP server is listening")["listen"]
    with (
        SocketClient(broker.port, "old", level=5) as old,
        SocketClient(broker.port, "small", level=5, properties={"maximum_packet_size": 60}) as small,
        SocketClient(broker.port, "tiny", level=5, properties={"maximum_packet_size": 40}) as tiny,
    ):
        broker.signal(signal.SIGTERM)
        until(lambda: ready(url) == 503)
        with SocketClient(broker.port, "new", level=5) as new:
            redirected(new.connack, Connack, ReasonCode.USE_ANOTHER_SERVER, " ".join(servers))
            assert new.receive() is None
        with Wire(broker.port, name="level-4") as level_4:
            level_4.connect()
            level_4.expect(None)
        for client in (old, small):  # the reason string goes first [5: MQTT-3.14.2-3]
            redirected(client.receive(), Disconnect, ReasonCode.USE_ANOTHER_SERVER, " ".join(servers))
        assert tiny.receive() == Disconnect(ReasonCode.USE_ANOTHER_SERVER)
    assert broker.wait() == 0


def test_a_node_that_has_moved(start_broker: StartBroker) -> None:
    broker = start_broker({"mqtt.moved_to": "elsewhere.example:1883"})
    with SocketClient(broker.port, "c", level=5) as client:
        redirected(client.connack, Connack, ReasonCode.SERVER_MOVED, "elsewhere.example:1883")
        assert client.receive() is None
    with SocketClient(broker.port, "c", level=5, properties={"maximum_packet_size": 40}) as client:  # no reason string
        assert client.connack == Connack(
            reason_code=ReasonCode.SERVER_MOVED, properties={"server_reference": "elsewhere.example:1883"}
        )
    with Wire(broker.port, name="level-4") as level_4:
        level_4.connect()


def test_without_other_servers_there_is_no_reference(start_broker: StartBroker) -> None:
    """A server reference stands only in packets that may have one [5: 4.11]."""
    broker = start_broker()
    with SocketClient(broker.port, "c", level=5) as client:
        broker.signal(signal.SIGTERM)
        packet = client.receive()
        assert isinstance(packet, Disconnect) and packet.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        assert "server_reference" not in packet.properties
    assert broker.wait() == 0


def test_a_node_is_drained_by_the_api(start_cluster: StartCluster) -> None:
    """Its clients go, no new ones are taken, and the other nodes serve on; the node itself is no other server."""
    own = f"{socket.gethostname()}:1883"
    servers = [own, "broker-2.example:1883"]
    settings = {"http.listen": "127.0.0.1:0", "http.drain": "0s", "mqtt.server_reference": ",".join(servers)}
    cluster = start_cluster(settings, nodes="ab")
    api = HttpClient(cluster["a"])
    nodes = {said["name"]: node for node, said in api.get("/nodes")["nodes"].items()}
    own_port = f"{socket.gethostname()}:{cluster['b'].port}"
    with (
        SocketClient(cluster["a"].port, "stays", level=5) as stays,
        SocketClient(cluster["b"].port, "five", level=5) as five,
        Wire(cluster["b"].port, name="four") as four,
    ):
        four.connect()
        reply = api.ask("POST", f"/nodes/{nodes['b']}/drain", {})
        assert (reply.status, reply.json) == (200, {"references": servers})  # it does not listen on port 1883
        redirected(five.receive(), Disconnect, ReasonCode.USE_ANOTHER_SERVER, " ".join(servers))
        four.expect(None)
        until(lambda: not api.get("/nodes")["nodes"][nodes["b"]]["ready"])
        reply = api.ask("POST", f"/nodes/{nodes['b']}/drain", {"reference": own_port})  # the operator's word counts
        assert reply.json == {"references": [own_port]}
        with SocketClient(cluster["b"].port, "new", level=5) as new:
            redirected(new.connack, Connack, ReasonCode.USE_ANOTHER_SERVER, own_port)
        with SocketClient(cluster["b"].port, "new") as old:
            assert old.connack is not None and old.connack.reason_code == 3
        stays.ping()
    assert api.ask("POST", "/nodes/none/drain", {}).status == 404
    assert api.ask("POST", f"/nodes/{nodes['b']}/drain", {"reference": "a  b"}).status == 400
    cluster["b"].signal(signal.SIGTERM)
    assert cluster["b"].wait() == 0


def test_a_drained_node_that_begins_anew_stays_drained(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"cluster.lease": "3s", "http.listen": "127.0.0.1:0", "http.drain": "5s"}, nodes="ab")
    node = cluster["b"]
    api = HttpClient(node)
    assert api.ask("POST", f"/nodes/{api.get('/nodes')['here']}/drain", {"reference": "other:1"}).status == 200
    with SocketClient(node.port, "served") as client:  # until load balancers have noticed
        assert client.connack is not None and client.connack.reason_code == 0
    node.begin_anew()
    with SocketClient(node.port, "new") as client:
        assert client.connack is not None and client.connack.reason_code == 3
    with SocketClient(node.port, "five", level=5) as client:
        redirected(client.connack, Connack, ReasonCode.USE_ANOTHER_SERVER, "other:1")


def test_a_reference_to_the_node_itself_is_left_out(start_broker: StartBroker) -> None:
    other = "broker-2.example:1883"
    broker = start_broker({"http.listen": "127.0.0.1:0", "http.drain": "0s"})
    names = [socket.gethostname(), f"{socket.gethostname()}.example", "127.0.0.1"]
    references = ",".join([*(f"{name}:{broker.port}" for name in names), other])
    broker.stop()
    broker.settings["mqtt.server_reference"] = references
    broker.start()
    api = HttpClient(broker)
    with SocketClient(broker.port, "c", level=5) as client:
        assert "there is no node nobody" in api.command("drain", "nobody", status=1)
        (name,) = (said["name"] for said in api.get("/nodes")["nodes"].values())
        assert api.command("drain", name) == f"{name} is drained; MQTT 5.0 clients are sent to: {other}\n"
        redirected(client.receive(), Disconnect, ReasonCode.USE_ANOTHER_SERVER, other)


def test_references_to_drained_nodes_are_left_out(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0", "http.drain": "0s"}, nodes="abc")
    references = [f"127.0.0.1:{cluster[name].port}" for name in "abc"]
    for name in "abc":
        cluster[name].stop()
        cluster[name].settings["mqtt.server_reference"] = ",".join(references)
    cluster.start()
    api = HttpClient(cluster["a"])
    nodes = {said["name"]: node for node, said in api.get("/nodes")["nodes"].items()}
    for name, rest in (("b", [references[0], references[2]]), ("c", references[:1]), ("a", [])):
        assert api.ask("POST", f"/nodes/{nodes[name]}/drain", {}).json == {"references": rest}


def test_a_drained_node_without_other_servers(start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": "127.0.0.1:0", "http.drain": "0s"})
    api = HttpClient(broker)
    with SocketClient(broker.port, "c", level=5) as client:
        assert api.ask("POST", f"/nodes/{api.get('/nodes')['here']}/drain", {}).json == {"references": []}
        packet = client.receive()
        assert isinstance(packet, Disconnect) and packet.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        with SocketClient(broker.port, "new", level=5) as new:
            assert new.connack is not None and new.connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
