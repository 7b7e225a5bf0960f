"""How many connections a user has, and how often a client may come."""

import contextlib
import signal
from pathlib import Path

import pytest

from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, UNAVAILABLE, AccessFiles, counted, login, refused
from tests.web.http_client import HttpClient


@pytest.fixture
def store() -> str:
    """Each node counts its own."""
    return "memory"


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    files = AccessFiles(tmp_path)
    files.users("ada", "bob")
    return files


def test_connections_of_a_user_are_counted(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker, quotas__max_connections_per_user=2)
    with login(broker, "ada", "1") as one, login(broker, "ada", "2") as two, login(broker, "bob", "3"):
        refused(broker, "user=ada pass=ada", UNAVAILABLE, "4")
        with login(broker, "ada", "2"):  # in place of the client before
            assert two.receive() is None
            one.close()
            until(lambda: connects(broker, "ada", "4"), "there is room again")


def connects(broker: Broker, user: str, client_id: str) -> bool:
    """Whether a user gets in."""
    with Wire(broker.port, name=client_id) as client:
        client.send(f"connect user={user} pass={user}")
        return bool(client.packet().reason_code == 0)


def test_who_comes_back_too_often_is_held_off(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker, quotas__flapping="3 in 600 s")
    for _ in range(3):
        login(broker, "ada", "flapping").close()
    refused(broker, "user=ada pass=ada", UNAVAILABLE, "flapping")
    login(broker, "ada", "steady").close()
    assert counted(broker, "flapping_refused") == 1


def test_new_rules_reach_many_clients(files: AccessFiles, start_broker: StartBroker) -> None:
    """More than are looked at in one slice, and also the clients of the last slice."""
    files.rules("topic read a")
    broker = files.start(start_broker, auth__allow_anonymous=True)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Wire(broker.port, name=f"c{n}")) for n in range(600)]
        for client in clients:
            client.connect()
        files.rules("topic read b")
        since = len(broker.log)
        broker.signal(signal.SIGHUP)
        broker.wait_for_log("configuration read", since=since)
        for client in clients:
            client.send("subscribe 1 a:0 b:0")
        for client in clients:
            client.expect("suback 1 0x80 0")


def test_a_connection_counts_and_can_be_banned_while_it_claims_its_session(
    files: AccessFiles, start_cluster: StartCluster
) -> None:
    """The other node does not release the session: that may take as long as its lease."""
    settings = files.settings(quotas__max_connections_per_user=1, cluster__lease=600)
    cluster = start_cluster(settings, nodes="ab")
    a, b = cluster["a"], cluster["b"]
    login(b, "ada", "before").close()  # its password is remembered: no thread has to verify it
    until(lambda: counted(b, "clients_connected") == 0, "it is gone")
    with login(a, "ada", "roamer"), Wire(b.port, name="roamer") as roamer, Wire(b.port, name="roamer") as again:
        a.signal(signal.SIGSTOP)
        try:
            roamer.send("connect user=ada pass=ada")
            refused(b, "user=ada pass=ada", UNAVAILABLE, "other")
            again.send("connect user=ada pass=ada")  # in the place of the client before
            refused(b, "", NOT_AUTHORIZED, "third")  # by now the node has read that
            assert HttpClient(b).ask("POST", "/bans", {"kind": "client_id", "value": "roamer"}).status == 200
            assert roamer.receive() is None and again.receive() is None
        finally:
            a.signal(signal.SIGCONT)  # it applies the changes that it has missed: only then others get CONNACK
        until(lambda: connects(b, "ada", "other"), "there is room again")
