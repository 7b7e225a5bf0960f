"""TLS sessions that are resumed at another node of the cluster."""

import ssl
from pathlib import Path

import pytest

from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.certificates import Authority
from tests.harness.cluster_process import ClusterNode, ClusterProcess
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient
from tests.harness.transports import tls_settings, tls_socket, trusting

LISTEN = "listeners.open.listen"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def cluster(start_cluster: StartCluster, authority: Authority) -> ClusterProcess:
    """Nodes a and b with TLS; a has made the key."""
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0")
    made = start_cluster({"cluster.lease": 1.5, **settings}, nodes=(), running=False)
    for name in "ab":
        made.add(name, **{LISTEN: f"mqtts://127.0.0.1:{free_port()}"})
        made.start()
    return made


def connect(
    node: ClusterNode, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bool, ssl.SSLSession | None]:
    """Whether a connection has resumed the session, and the session for the next one."""
    port = int(str(node.settings[LISTEN]).rpartition(":")[2])
    connection = tls_socket(port, context, session=session)
    with SocketClient(0, "resumes", connected=connection) as client:  # the ticket comes after the handshake
        client.ping()
        return bool(connection.session_reused), connection.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_a_session_goes_from_node_to_node(
    cluster: ClusterProcess, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    is_resumed, session = connect(cluster["a"], context)
    assert not is_resumed
    for name in "bab":
        is_resumed, session = connect(cluster[name], context, session)
        assert is_resumed
    cluster["b"].begin_anew()
    is_resumed, session = connect(cluster["b"], context, session)
    assert is_resumed
    for end in (cluster.stop, cluster.kill):  # only Redis is left
        end()
        cluster.start()
        is_resumed, session = connect(cluster["a"], context, session)
        assert is_resumed


def test_nodes_that_start_at_once_come_to_share_sessions(start_cluster: StartCluster, authority: Authority) -> None:
    """Each may have made a key. All get all keys, and open each other's tickets."""
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0")
    cluster = start_cluster(settings, nodes=(), running=False)
    for name in "abc":
        cluster.add(name, **{LISTEN: f"mqtts://127.0.0.1:{free_port()}"})
    cluster.start()
    context = trusting(authority)
    sessions = [connect(node, context)[1] for node in cluster.nodes]
    for node in cluster.nodes:
        for session in sessions:
            until(lambda node=node, session=session: connect(node, context, session)[0])  # type: ignore[misc]
