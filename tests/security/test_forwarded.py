"""Clients behind reverse proxies: their addresses, which they can't choose. The proxy is a real nginx."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import InvalidMessage
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connect
from flockmq.broker.admin.http.authorization import FREE_FAILURES
from flockmq.broker.admin.http.tokens import add
from flockmq.broker.core.log_limiter import LINES
from flockmq.broker.listeners.bind import truster
from flockmq.broker.listeners.forwarded import client_of
from tests.harness.broker_process import BrokerProcess
from tests.harness.deadline import DEADLINE
from tests.harness.nginx_process import ADDRESS, NginxProcess
from tests.web.http_client import HttpClient

StartBroker = Callable[..., BrokerProcess]
Header = tuple[str, str]
TRUSTED = ["10.0.0.0/8", "fd00::/8"]
XFF = "X-Forwarded-For"


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [(XFF, "192.0.2.1")], "192.0.2.1"),
        ("10.0.0.1", [(XFF, "198.51.100.1, 192.0.2.1, 10.0.0.2")], "192.0.2.1"),
        ("10.0.0.1", [(XFF, "198.51.100.1"), (XFF, "192.0.2.1")], "192.0.2.1"),
        ("10.0.0.1", [(XFF, "10.0.0.3,10.0.0.2")], "10.0.0.3"),
        ("10.0.0.1", [(XFF, "192.0.2.1, unknown, 10.0.0.2")], "10.0.0.2"),
        ("10.0.0.1", [(XFF, "")], "10.0.0.1"),
        ("10.0.0.1", [(XFF, "192.0.2.1:5000")], "192.0.2.1"),
        ("10.0.0.1", [(XFF, "2001:db8::1")], "2001:db8::1"),
        ("10.0.0.1", [(XFF, "[2001:db8::1]:80")], "2001:db8::1"),
        ("10.0.0.1", [(XFF, "::ffff:192.0.2.1")], "192.0.2.1"),
        ("10.0.0.1", [(XFF, "fe80::1%x y")], "10.0.0.1"),
        ("::ffff:10.0.0.1", [(XFF, "192.0.2.1")], "192.0.2.1"),
        ("fd00::1", [(XFF, "192.0.2.1")], "192.0.2.1"),
        ("192.0.2.9", [(XFF, "192.0.2.1")], "192.0.2.9"),
        ("10.0.0.1", [("Forwarded", "for=198.51.100.1, for=192.0.2.1;proto=http, for=10.0.0.2")], "192.0.2.1"),
        ("10.0.0.1", [("Forwarded", 'for="[2001:db8::1]:80"')], "2001:db8::1"),
        ("10.0.0.1", [("Forwarded", "for=192.0.2.1, proto=http")], "10.0.0.1"),
        ("10.0.0.1", [("Forwarded", "for=_hidden")], "10.0.0.1"),
        ("10.0.0.1", [("Forwarded", 'by="a,for=192.0.2.7";for=192.0.2.1')], "192.0.2.1"),
        ("10.0.0.1", [("Forwarded", 'proto="x;for=192.0.2.7"')], "10.0.0.1"),
        ("10.0.0.1", [("Forwarded", "For=198.51.100.1"), ("Forwarded", "FOR = 192.0.2.1; proto=https")], "192.0.2.1"),
        ("10.0.0.1", [("Forwarded", "for=198.51.100.1"), (XFF, "192.0.2.1")], "10.0.0.1"),
        ("10.0.0.1", [("Forwarded", "for=192.0.2.1"), (XFF, "192.0.2.1")], "192.0.2.1"),
    ],
)
def test_the_client_of_a_request(peer: str, headers: list[Header], client: str) -> None:
    forwarded, x_forwarded_for = ([value for name, value in headers if name == header] for header in ("Forwarded", XFF))
    assert client_of(forwarded, x_forwarded_for, peer, truster(TRUSTED)) == client


@pytest.mark.parametrize("store", ["memory"])
def test_a_client_over_websocket(start_broker: StartBroker) -> None:
    """MQTT over WebSocket behind a proxy: the log, and the limit for an address, have the client's."""
    node = start_broker(
        {"http.trusted_proxies": "127.0.0.1", "log.level": "debug", "quotas.max_connections_per_address": 2},
        listen="ws://127.0.0.1:0",
    )
    url, subprotocols = f"ws://127.0.0.1:{node.port}/mqtt", [Subprotocol("mqtt")]
    with ExitStack() as stack:
        for number, client in enumerate(("192.0.2.1", "192.0.2.1", "2001:db8::1")):
            headers = {XFF: f"198.51.100.9, {client}"}
            socket = stack.enter_context(connect(url, subprotocols=subprotocols, additional_headers=headers))
            socket.send(encode(Connect(f"c{number}"), 4))
            assert socket.recv(DEADLINE)[:1] == b"\x20"
            address = f"[{client}]:0" if ":" in client else f"{client}:0"
            node.wait_for_log("client connected", client_id=f"c{number}", address=address)
        with pytest.raises(InvalidMessage):
            stack.enter_context(connect(url, subprotocols=subprotocols, additional_headers={XFF: "192.0.2.1"}))


class Site:
    """A node with tokens, and nginx before it."""

    def __init__(self, node: BrokerProcess, nginx: NginxProcess, token: str) -> None:
        self.node = node
        self.nginx = nginx
        self.token = token

    def ask(self, source: str, token: str, *, port: int = 0, method: str = "GET", path: str = "/nodes") -> int:
        """The status of a request from an address, with a forged header."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", port or self.nginx.port, DEADLINE, source_address=(source, 0)
        )
        headers = {"Authorization": f"Bearer {token}", XFF: "198.51.100.7", "Content-Type": "application/json"}
        body = '{"topic": "t", "payload": "x"}' if method == "POST" else None
        connection.request(method, f"/api/v1{path}", body, headers)
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture
def site(start_broker: StartBroker, tmp_path: Path) -> Iterator[Site]:
    token = add(tmp_path / "tokens", "ann", "admin")
    settings = {"http.listen": "127.0.0.1:0", "http.tokens_file": tmp_path / "tokens", "http.trusted_proxies": ADDRESS}
    node = start_broker({**settings, "log.level": "debug"})
    nginx = NginxProcess(tmp_path, HttpClient(node).port)
    yield Site(node, nginx, token)
    nginx.stop()


@pytest.mark.parametrize("store", ["memory"])
def test_a_client_behind_nginx_is_delayed_by_itself(site: Site) -> None:
    for _ in range(FREE_FAILURES):
        assert site.ask("127.0.0.3", "wrong") == 401
    assert site.ask("127.0.0.3", "wrong") == 403, "it is delayed"
    assert site.ask("127.0.0.4", "wrong") == 401, "another client is not"
    assert site.ask("127.0.0.3", site.token) == 200
    site.node.wait_for_log("wrong token over HTTP", address="127.0.0.4")
    found = {line["address"] for line in site.node.log if line["event"] == "wrong token over HTTP"}
    assert found == {"127.0.0.3", "127.0.0.4"}, "not the proxy's, and none that a client has made up"


@pytest.mark.parametrize("store", ["memory"])
def test_a_client_that_is_no_proxy_is_not_believed(site: Site) -> None:
    assert site.ask("127.0.0.5", "wrong", port=HttpClient(site.node).port) == 401
    site.node.wait_for_log("wrong token over HTTP", address="127.0.0.5")


@pytest.mark.parametrize("store", ["memory"])
def test_operations_and_consoles_have_the_address_of_their_client(site: Site) -> None:
    assert site.ask("127.0.0.3", site.token, method="POST", path="/messages") in (200, 204)
    site.node.wait_for_log("operation requested over HTTP", address="127.0.0.3")
    url = f"ws://127.0.0.1:{site.nginx.port}/mqtt"
    protocols = ["mqtt", f"flockmq.token.{site.token}"]
    with connect(url, subprotocols=protocols, proxy=None, source_address=("127.0.0.6", 0)) as console:  # type: ignore[arg-type]
        console.send(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04page")
        assert console.recv() == b"\x20\x02\x00\x00"
    assert site.node.wait_for_log("client connected", client_id="page")["address"].startswith("127.0.0.6:")


@pytest.mark.parametrize("store", ["memory"])
def test_wrong_tokens_of_one_network_are_summed_up(start_broker: StartBroker, tmp_path: Path) -> None:
    """A customer has 2^64 addresses of IPv6, and each is new to the delays."""
    add(tmp_path / "tokens", "ann", "admin")
    settings = {"http.listen": "127.0.0.1:0", "http.tokens_file": tmp_path / "tokens"}
    node = start_broker({**settings, "http.trusted_proxies": "127.0.0.1"})
    api = HttpClient(node, "wrong")
    for n in range(3 * LINES):
        assert api.ask("GET", "/nodes", headers={XFF: f"2001:db8::{n:x}"}).status == 401
    assert node.stop() == 0
    lines = [line for line in node.log if line["event"].startswith("wrong token over HTTP")]
    sums = [line for line in lines if "network" in line]
    assert {line["network"] for line in sums} == {"2001:db8::"}
    assert len(lines) - len(sums) + sum(line["lines"] for line in sums) == 3 * LINES


@pytest.mark.parametrize("store", ["memory"])
def test_without_tokens_nothing_passes_a_proxy(start_broker: StartBroker, tmp_path: Path) -> None:
    node = start_broker({"http.listen": "127.0.0.1:0", "http.trusted_proxies": ADDRESS})
    node.wait_for_log("every user of this machine may do everything over HTTP")
    nginx = NginxProcess(tmp_path, HttpClient(node).port)
    try:
        assert Site(node, nginx, "").ask("127.0.0.1", "none") == 403
    finally:
        nginx.stop()


@pytest.mark.parametrize("store", ["memory"])
def test_only_an_open_api_is_announced(site: Site) -> None:
    assert not any("every user of this machine" in line["event"] for line in site.node.log)
