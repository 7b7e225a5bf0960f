"""Real clients over TLS, WebSocket and Unix sockets: mosquitto, paho-mqtt, MQTT.js, and ours."""

import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.paho_client import Paho, limits_of_a_client, paho, request_and_response
from tests.clients.test_mqttjs import node_js, run_scenarios
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.certificates import Authority, Pair
from tests.harness.deadline import DEADLINE
from tests.harness.transports import make_node, ports, tls_settings

__all__ = ["node_js"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def lamp(authority: Authority) -> Pair:
    return authority.client("lamp")


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("clients")
    settings = tls_settings(authority.server())
    strict = {"client_ca": authority.ca, "client_certificate": "required", "username_from": "cn"}
    settings |= tls_settings(authority.server(), "mqtts://127.0.0.1:0", "strict", **strict)
    settings |= tls_settings(authority.server("other", ["other.example"]), "mqtts://127.0.0.1:0", "other")
    settings |= {"listeners.near.listen": f"unix:{place / 's'}"}
    running = make_node(place / "node", settings)
    yield running
    assert running.stop() == 0
    running.check()


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())


FLOCKMQ = (sys.executable, "-m", "flockmq.broker.cli")


@pytest.mark.parametrize("program", ["mosquitto", "flockmq"])
@pytest.mark.parametrize("listener", ["open", "strict", "near"])
def test_command_lines(
    node: BrokerProcess, authority: Authority, lamp: Pair, tmp_path: Path, program: str, listener: str
) -> None:
    pub = ["mosquitto_pub"] if program == "mosquitto" else [*FLOCKMQ, "pub"]
    sub = ["mosquitto_sub"] if program == "mosquitto" else [*FLOCKMQ, "sub"]
    flags = ["--unix", node.wait_for_log("^listener$", name="near")["listen"].removeprefix("unix:")]
    if listener != "near":
        flags = ["-h", "localhost", "-p", str(ports(node, listener)["mqtts"]), "--cafile", authority.ca]
    if listener == "strict":
        flags += ["--cert", lamp.cert, "--key", lamp.key]
    topic = f"{program}/{listener}"
    done = run(*pub, *flags, "-t", topic, "-m", "hello", "-q", "1", "-r")
    assert done.returncode == 0, done.stderr
    done = run(*sub, *flags, "-t", topic, "-C", "1", "-v")
    assert done.stdout == f"{topic} hello\n"
    if listener == "strict":
        assert node.wait_for_log("client connected", listener="strict", certificate="lamp")
        refused = run(*pub, *flags[:6], "-t", topic, "-m", "x", "-q", "1")
        assert refused.returncode != 0


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_flockmq_over_websocket(node: BrokerProcess, authority: Authority, tmp_path: Path, scheme: str) -> None:
    """By a URL and by flags, a payload that is larger than all buffers, each QoS."""
    port = ports(node)[scheme]
    trust = ["--cafile", authority.ca] if scheme == "wss" else []
    payload = tmp_path / "payload"
    payload.write_bytes(bytes(range(256)) * 4000)
    for qos in "012":
        topic = f"web/{scheme}/{qos}"
        url = f"{scheme}://localhost:{port}/{topic}"
        done = run(*FLOCKMQ, "pub", "-L", url, *trust, "-f", payload, "-q", qos, "-r")
        assert done.returncode == 0, done.stderr
        flags = ["-h", "localhost", "-p", str(port), "--ws", *trust]
        done = run(*FLOCKMQ, "sub", *flags, "-t", topic, "-C", "1", "-q", qos, "-F", "%t %l %q %x")
        *words, content = done.stdout.split()
        assert words == [topic, str(256 * 4000), qos]
        assert bytes.fromhex(content) == payload.read_bytes(), "another payload"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ws", "--ws-path", "/elsewhere"], "/elsewhere: the reply to its WebSocket request has status 404"),
        (["--ws", "-p", "1"], "cannot connect to ws://localhost:1/mqtt: connection refused"),
        (["--ws", "-h", "no-such-host.invalid"], "cannot find host 'no-such-host.invalid'"),
        (["-L", "wss://localhost:PORT/a"], "its certificate can't be trusted: unable to get local issuer certificate"),
        (["-L", "wss://127.0.0.1:WS/a"], "cannot connect to wss://127.0.0.1:"),
    ],
)
def test_no_connection_over_websocket_is_one_line(node: BrokerProcess, flags: list[str], words: str) -> None:
    here = {"PORT": ports(node)["wss"], "WS": ports(node)["ws"]}
    line = [re.sub("PORT|WS", lambda found: str(here[found[0]]), flag) for flag in flags]
    port = [] if {"-p", "-L"} & {*flags} else ["-p", str(here["WS"])]
    done = run(*FLOCKMQ, "pub", *port, *line, *([] if "-L" in flags else ["-t", "a"]), "-m", "x")
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["--tls"],
            "its certificate can't be trusted: unable to get local issuer certificate; "
            "--cafile names the authorities to trust",
        ),
        (["--cafile", "CA"], "its certificate can't be trusted: Hostname mismatch"),
        (["--cafile", "CA", "--insecure"], ""),
    ],
)
def test_flockmq_trusts_nobody_else(node: BrokerProcess, authority: Authority, more: list[str], words: str) -> None:
    flags = ["-p", str(ports(node, "other")["mqtts"]), *(authority.ca if word == "CA" else word for word in more)]
    done = run(*FLOCKMQ, "pub", "-h", "localhost", *flags, "-t", "a", "-m", "x", "-q", "1")
    assert (done.returncode == 0) == (not words)
    assert words in done.stderr


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_paho(node: BrokerProcess, authority: Authority, scheme: str) -> None:
    messages: queue.Queue[bytes] = queue.Queue()
    transport = "tcp" if scheme == "mqtts" else "websockets"
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"paho-{scheme}", transport=transport)
    if transport == "websockets":
        client.ws_set_options(path="/mqtt")
    if scheme != "ws":
        client.tls_set(ca_certs=authority.ca)
    client.on_message = lambda _, __, message: messages.put(message.payload)
    client.on_connect = lambda *_: client.subscribe(f"paho/{scheme}", 2)
    client.on_subscribe = lambda *_: [client.publish(f"paho/{scheme}", bytes(n * 3000), qos=n % 3) for n in range(30)]
    client.connect("localhost", ports(node)[scheme])
    client.loop_start()
    try:
        sizes = sorted(len(messages.get(timeout=DEADLINE)) for _ in range(30))
    finally:
        client.disconnect()
        client.loop_stop()
    assert sizes == [n * 3000 for n in range(30)]


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_paho_at_level_5(node: BrokerProcess, authority: Authority, scheme: str) -> None:
    """Aliases, a request and its response, Receive Maximum 1, Maximum Packet Size 128."""
    made: list[Paho] = []

    def client(level: int, client_id: str, **options: Any) -> Paho:
        one = Paho(ports(node)[scheme], level, client_id, scheme, authority.ca, **options)
        made.append(one)
        assert one.answer() == (False, 0)
        return one

    try:
        request_and_response(client, f"{scheme}/")
        limits_of_a_client(client, 2, f"{scheme}/")
    finally:
        for one in made:
            one.leave()


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_mqttjs(node_js: str, node: BrokerProcess, authority: Authority, scheme: str, level: int) -> None:
    url = f"{scheme}://localhost:{ports(node)[scheme]}/mqtt"
    run_scenarios(node_js, url, level, {"NODE_EXTRA_CA_CERTS": authority.ca})
