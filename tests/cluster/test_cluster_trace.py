"""`flockmq trace`: the way of a message from a client at one node to clients at others, as a user sees it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartCluster
from tests.harness import nursery
from tests.harness.broker_process import environment
from tests.harness.cluster_process import ClusterProcess
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient

READY = "HTTP server is listening"


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"http.listen": "127.0.0.1:0"})


@contextmanager
def follow(cluster: ClusterProcess, node: str, *arguments: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The steps that `flockmq trace --json` prints at a node, from the moment at which all nodes follow."""
    url = cluster[node].wait_for_log(READY)["listen"]
    command = [sys.executable, "-m", "flockmq.broker.cli", "trace", "--url", url, "--json", *arguments]
    with nursery.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith("following")
        try:
            yield (json.loads(line) for line in process.stdout)
        finally:
            process.kill()


def told(steps: Iterator[dict[str, Any]], until: str) -> set[tuple[str, str, str]]:
    """(node, step, client) of all steps up to this one."""
    found = set()
    for step in steps:
        client = step["client"]
        found.add((step["node"][0], step["step"], client[:1] if step["step"] == "forwarded" else client))
        if step["step"] == until:
            return found
    raise AssertionError(found)


def test_a_message_is_followed_over_all_nodes(cluster: ClusterProcess) -> None:
    reader = SocketClient(cluster["b"].port, "reader")
    keeper = SocketClient(cluster["c"].port, "keeper", clean_start=False)
    reader.subscribe(("site/+", 1))
    keeper.subscribe(("site/#", 1))
    device = SocketClient(cluster["a"].port, "device")
    with follow(cluster, "c", "--topic", "site/7") as steps:
        device.send(Publish("site/8", b"other"), Publish("site/7", b"x", qos=1, packet_id=1))
        assert isinstance(device.receive(), Puback)
        for client in (reader, keeper):
            message = client.receive()
            while isinstance(message, Publish) and message.qos == 0:
                message = client.receive()
            assert isinstance(message, Publish)
            client.send(Puback(packet_id=message.packet_id))
        found = told(steps, "acknowledged") | told(steps, "acknowledged")
    assert found == {
        ("a", "received", "device"),
        ("a", "forwarded", "b"),
        ("a", "queued", "keeper"),
        ("a", "stored", "device"),
        ("a", "answered", "device"),
        ("b", "queued", "reader"),
        ("b", "sent", "reader"),
        ("b", "acknowledged", "reader"),
        ("c", "sent", "keeper"),
        ("c", "acknowledged", "keeper"),
    }


def test_what_a_client_publishes_is_found_at_other_nodes(cluster: ClusterProcess) -> None:
    reader = SocketClient(cluster["b"].port, "reader")
    reader.subscribe(("#", 0))
    device = SocketClient(cluster["a"].port, "device")
    with follow(cluster, "c", "--client", "device") as steps:
        SocketClient(cluster["b"].port, "noise").send(Publish("noise", b"1"))
        device.send(Publish("up", b"2"))
        found = told(steps, "sent")
    assert {("a", "received", "device"), ("b", "sent", "reader")} <= found
    assert not any(client == "noise" for _, _, client in found)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "trace needs a client id or a topic filter"),
        (("--topic", "a#"), "refuses: 'a#' can't be traced"),
        (("--topic", "a", "--url", "http://127.0.0.1:1"), "does not answer"),
        (("--topic", "a", "--url", "broker:8080"), "is no HTTP URL"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(cluster: ClusterProcess, arguments: tuple[str, ...], reason: str) -> None:
    url = cluster["a"].wait_for_log(READY)["listen"]
    command = [sys.executable, "-m", "flockmq.broker.cli", "trace", "--url", url, *arguments]
    done = nursery.run(command, capture_output=True, text=True, env=environment(), timeout=DEADLINE)
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode in (1, 2)
