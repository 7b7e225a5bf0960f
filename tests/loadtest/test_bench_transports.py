"""`flockmq bench --url` over TLS and WebSocket: every message arrives, and connections leave nothing behind."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flockmq.loadtest.commands.bench import resolve
from flockmq.loadtest.generator.runs import LoadError
from tests.harness.broker_process import ROOT, BrokerProcess, environment
from tests.harness.certificates import Authority
from tests.harness.deadline import DEADLINE
from tests.harness.transports import make_node, ports, tls_settings


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("transports")
    settings = tls_settings(Authority(place / "certificates").server()) | {"log.level": "info"}
    running = make_node(place / "node", settings)
    yield running
    assert running.stop() == 0
    running.check()


def bench(node: BrokerProcess, scheme: str, *arguments: str) -> dict[str, Any]:
    url = f"{scheme}://localhost:{ports(node)[scheme]}"
    command = [sys.executable, "-m", "flockmq.broker.cli", "bench", *arguments, "--url", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment(), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)["figures"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
@pytest.mark.parametrize("arguments", [("--payload", "64", "--batch", "7"), ("--payload", "70000", "--qos", "2")])
def test_messages(node: BrokerProcess, scheme: str, arguments: tuple[str, ...]) -> None:
    found = bench(node, scheme, "pairs", "--publishers", "3", "--count", "500", *arguments)
    assert found["received"] == 500
    assert found["cpu_us_per_delivery"] > 0


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_connections_leave_nothing_behind(node: BrokerProcess, scheme: str) -> None:
    bench(node, scheme, "connects", "--parallel", "20", "--seconds", "0.5")
    before = node.rss()
    bench(node, scheme, "connects", "--parallel", "20", "--seconds", "1")
    assert node.rss() - before < 2 << 20
    bench(node, scheme, "take-overs", "--clients", "20", "--rate", "100", "--seconds", "0.3")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1", ("127.0.0.1", 1883, "mqtt", "/mqtt")),
        ("mqtt://127.0.0.1:5/", ("127.0.0.1", 5, "mqtt", "/mqtt")),
        ("mqtts://127.0.0.1", ("127.0.0.1", 8883, "mqtts", "/mqtt")),
        ("wss://127.0.0.1/fleet", ("127.0.0.1", 443, "wss", "/fleet")),
    ],
)
def test_resolve(address: str, found: tuple[str, int, str, str]) -> None:
    assert resolve(address) == found


@pytest.mark.parametrize("address", ["http://a", "ws://", "wss://:1", "mqtts://a:x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(LoadError):
        resolve(address)
