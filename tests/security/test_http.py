"""Attacks on the HTTP port: each ends its own request, and no one else notices."""

import contextlib
import json
import socket
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker.admin.http.tokens import add
from flockmq.broker.cli import main
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.certificates import Authority
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

StartBroker = Callable[..., BrokerProcess]
pytestmark = pytest.mark.parametrize("store", ["memory"])
HTTP = {"http.listen": "127.0.0.1:0"}


def answer(connection: socket.socket) -> bytes:
    """All that comes until the end of the connection."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionError:
        pass
    connection.close()
    return data


@pytest.fixture
def api(start_broker: StartBroker) -> HttpClient:
    """Of a node without tokens."""
    return HttpClient(start_broker(HTTP))


@pytest.fixture
def guarded(start_broker: StartBroker, tmp_path: Path) -> tuple[HttpClient, dict[str, str]]:
    """A node with tokens, as who has none; and a token of each role."""
    tokens = {role: add(tmp_path / "tokens", role, role) for role in ("viewer", "admin")}
    return HttpClient(start_broker({**HTTP, "http.tokens_file": tmp_path / "tokens"})), tokens


def test_dns_rebinding(api: HttpClient) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", ""):
        for path in ("//", "/clients", "//main.js"):
            reply = api.ask("GET", path, headers={"Host": host})
            assert reply.status == 403, (host, path)
    for host in ("localhost", "127.0.0.1:1", "[::1]:8080", "LOCALHOST:80"):
        assert api.ask("GET", "/clients", headers={"Host": host}).status == 200
    assert api.ask("GET", "//healthz", headers={"Host": "evil.example"}).status == 200  # balancers send any name


def test_cross_site_requests(api: HttpClient) -> None:
    message = {"topic": "t", "payload": "x"}
    for origin in ("http://evil.example", "null", "http://localhost.evil.example", f"http://127.0.0.1:{api.port + 1}"):
        assert api.ask("POST", "/messages", message, {"Origin": origin}).status == 403
        assert api.ask("DELETE", "/retained", None, {"Origin": origin}, filter="#").status == 403
    assert api.ask("POST", "/messages", message, {"Sec-Fetch-Site": "cross-site"}).status == 403
    for path in ("/clients", "/events", "/trace"):  # 32 of them would take all streams of the node
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert api.ask("GET", path, headers=headers).status == 403
    assert api.ask("GET", "/clients", headers={"Sec-Fetch-Site": "none"}).status == 200
    assert api.ask("GET", "//", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert api.ask("POST", "/messages", json.dumps(message).encode(), {"Content-Type": kind}).status == 415
    assert api.ask("POST", "/messages", message, {"Origin": api.url}).status == 200
    preflight = api.ask("OPTIONS", "/messages", None, {"Origin": "http://evil.example"})
    assert not [name for name in preflight.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "head",
    [
        "GET /api/v1/clients HTTP/1.0\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n",  # nginx by default
        "GET / HTTP/1.0\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n",
        *(
            f"GET /api/v1/clients HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n"
            for header in (
                "X-Forwarded-For: 192.0.2.7",
                "x-forwarded-proto: https",
                "X-Real-IP: 192.0.2.7",
                "Forwarded: for=192.0.2.7",
                "Via: 1.1 proxy",
                "X-Forwarded: for=192.0.2.7",
                "X-Original-Forwarded-For: 192.0.2.7",
                "CF-Connecting-IP: 192.0.2.7",
                "True-Client-IP: 192.0.2.7",
                "X-Cluster-Client-IP: 192.0.2.7",
                "Client-IP: 192.0.2.7",
                "X-Envoy-External-Address: 192.0.2.7",
                "CDN-Loop: proxy",
            )
        ),
    ],
)
def test_a_proxy_on_this_machine(api: HttpClient, head: str) -> None:
    """It sent `Host: 127.0.0.1:8080`, and gave API, page and bans to everybody without a token."""
    data = answer(api.raw(head.encode()))
    assert data[9:12] == b"403"
    assert b"http.tokens_file" in data
    health = head.replace("/api/v1/clients", "/healthz").replace("GET / ", "GET /healthz ")
    assert answer(api.raw(health.encode()))[9:12] == b"200"


def test_a_socket_from_another_site(api: HttpClient) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "mqtt",
    }
    assert api.ask("GET", "//mqtt", None, {**upgrade, "Origin": "http://evil.example"}).status == 403
    assert api.ask("GET", "//mqtt", None, {**upgrade, "Sec-WebSocket-Protocol": "other"}).status == 400
    assert api.ask("GET", "//mqtt").status == 400


def test_smuggling(api: HttpClient) -> None:
    head = b"POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    second = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for attack in (
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 4\r\n\r\nxxxx",
        b"Content-Length: +4\r\n\r\nxxxx",
        b"Content-Length: 4, 4\r\n\r\nxxxx",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"A: b\r\n Content-Length: 4\r\n\r\nxxxx",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
        b"A\0: b\r\n\r\n",
    ):
        data = answer(api.raw(head + attack + second))
        assert data[:10] in (b"HTTP/1.0 4", b"HTTP/1.1 4"), (attack, data)
        assert b"flockmq_info" not in data, attack


def test_slowloris(start_broker: StartBroker) -> None:
    """Connections that send little, or nothing, or read nothing, go; proper requests are answered all the time."""
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    began = time.monotonic()
    slow = [api.raw(start) for start in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"G") for _ in range(20)]
    head = b"POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    slow += [api.raw(head + b"Content-Length: 99\r\n\r\n{") for _ in range(20)]
    assert api.ask("GET", "//healthz").status == 200
    for connection in slow[:60]:
        assert answer(connection) == b""
    for connection in slow[60:]:
        assert answer(connection).startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))
    assert time.monotonic() - began < 30
    with SocketClient(broker.port, "c") as client:
        assert client.ping() == []


def test_too_many_watch(api: HttpClient) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(32):
            next(stack.enter_context(api.events("/events" if number % 2 else "/trace?topic=%23")))
        assert api.ask("GET", "/events").status == api.ask("GET", "/trace", topic="a").status == 503
        assert api.ask("GET", "//healthz").status == 200
    until(lambda: watched(api))


def watched(api: HttpClient) -> bool:
    """Whether one more may watch."""
    connection = api.raw(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with connection:
        return connection.recv(12) == b"HTTP/1.1 200"


def test_header_floods(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    many = b"".join(b"A%d: b\r\n" % number for number in range(10_000))

    def flood() -> int:
        """12 MB of heads; returns the memory of the node after that."""
        for head in (many, b"A: " + b"x" * 100_000 + b"\r\n", b"x" * 1_000_000):
            for _ in range(10):
                try:
                    data = answer(api.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n"))
                except ConnectionError:
                    data = b""
                assert data[8:12] in (b"", b" 400") and b"aiohttp" not in data
        return broker.rss()

    grown = [flood() for _ in range(6)]  # the allocator keeps some at first
    assert grown[5] - grown[2] < 20 << 20, grown
    long = answer(api.raw(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert long[8:12] in (b"", b" 400")
    assert api.ask("GET", "//healthz").status == 200
    assert not [line for line in broker.log if line["level"] in ("warning", "error")]  # nor can it fill the log


def test_a_body_that_is_too_large_or_too_deep(api: HttpClient) -> None:
    reply = api.ask("POST", "/messages", b'{"topic": "t", "payload": "' + b"x" * (5 << 20) + b'"}')
    assert reply.status == 413
    assert reply.json["detail"] == "a body has at most 4 MiB"
    assert api.ask("POST", "/messages", b"[" * 200_000).status == 400
    assert api.ask("POST", "/messages", b'{"topic": "t", "qos": ' + b"9" * 5000 + b"}").status == 400
    assert api.ask("POST", "/messages", b'{"topic": "\\ud800"}').status == 400
    assert api.ask("POST", "/messages", b"\xff").status == 400


def test_guessing_tokens(guarded: tuple[HttpClient, dict[str, str]]) -> None:
    api, tokens = guarded
    guess = HttpClient.__new__(HttpClient)
    guess.__dict__ = {**api.__dict__, "token": "guess"}
    replies = [guess.ask("GET", "/me") for _ in range(8)]
    assert [reply.status for reply in replies] == [401] * 5 + [403] * 3
    assert int(replies[-1].headers["retry-after"]) >= 1
    guess.token = tokens["viewer"]  # whose token is good is not locked out by others behind the same address
    assert guess.ask("GET", "/me").json == {"name": "viewer", "role": "viewer", "tenant": ""}
    assert guess.get("/metrics")["nodes"]["node"]["http_auth_failures"] == 5


def test_roles(guarded: tuple[HttpClient, dict[str, str]]) -> None:
    api, tokens = guarded
    assert api.ask("GET", "/clients").status == 401
    assert api.ask("GET", "//").status == 200  # the page holds nothing, and asks for the token itself
    assert api.ask("GET", "//metrics").status == api.ask("GET", "//healthz").status == 200
    api.token = tokens["viewer"]
    assert api.ask("GET", "/clients").status == 200
    for method, path, body in (
        ("POST", "/messages", {"topic": "t"}),
        ("DELETE", "/retained?filter=x", None),
        ("DELETE", "/session?client_id=x", None),
        ("DELETE", "/client/connection?client_id=x", None),
        ("POST", "/bans", {"kind": "client_id", "value": "x"}),
        ("PUT", "/log-level", {"level": "debug"}),
    ):
        assert api.ask(method, path, body).status == 403, path
    api.token = tokens["admin"]
    assert api.ask("POST", "/messages", {"topic": "t"}).status == 200


def test_others_are_served_no_api_without_tokens(start_broker: StartBroker) -> None:
    api = HttpClient(start_broker({"http.listen": "0.0.0.0:0"}))
    for path in ("//", "//main.js", "/clients", "/openapi.json", "//mqtt"):
        reply = api.ask("GET", path)
        assert reply.status == 403 and "flockmq token" in reply.json["detail"], path
    for path in ("//healthz", "//readyz", "//metrics"):
        assert api.ask("GET", path).status == 200


def test_metrics_may_take_a_token(start_broker: StartBroker, tmp_path: Path) -> None:
    token = add(tmp_path / "tokens", "prometheus", "viewer")
    closed = HttpClient(start_broker({"http.listen": "0.0.0.0:0", "http.metrics_token": True}))
    assert closed.ask("GET", "//metrics").status == 403  # there is no token yet
    broker = start_broker({**HTTP, "http.tokens_file": tmp_path / "tokens", "http.metrics_token": True})
    assert HttpClient(broker).ask("GET", "//metrics").status == 401
    assert HttpClient(broker, token).ask("GET", "//metrics").status == 200


def test_a_file_of_tokens_that_changes_or_breaks(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    first = add(path, "ann", "admin")
    broker = start_broker({**HTTP, "http.tokens_file": path})
    api = HttpClient(broker, first)
    assert api.ask("GET", "/me").status == 200
    api.token = add(path, "ann", "admin")
    until(lambda: api.ask("GET", "/me").status == 200)
    stale = HttpClient(broker, first)
    assert stale.ask("GET", "/me").status in (401, 403)
    path.write_text("ann:admin:what is this\n")
    until(lambda: api.ask("GET", "/me").status in (401, 403))
    path.unlink()
    until(lambda: api.ask("GET", "/me") and any("invalid file of tokens" in line["event"] for line in broker.log))
    assert api.ask("GET", "/clients").status in (401, 403)


def test_a_new_token_keeps_the_other_lines(tmp_path: Path, store: str) -> None:
    path = tmp_path / "tokens"
    add(path, "ada", "viewer")
    path.write_text(f"# of the page\n\n{path.read_text()}  # end\n")
    before = path.read_text()
    add(path, "bob", "viewer")
    assert path.read_text().startswith(before)
    add(path, "bob", "admin")
    assert path.read_text().startswith(before) and path.read_text().count("\n") == 5


def test_a_token_is_nobody_elses_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str) -> None:
    path = tmp_path / "tokens"
    assert main(["token", str(path), "ann", "--role", "admin"]) == 0
    token = capsys.readouterr().out.strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 43 and token not in path.read_text()
    assert main(["token", str(path), "a:b"]) == 2


def test_path_traversal(api: HttpClient) -> None:
    for path in (
        b"/../http_server.py",
        b"/..%2fhttp_server.py",
        b"/%2e%2e/http_server.py",
        b"/page/../../tokens.py",
        b"//etc/passwd",
        b"/index.html/../../api.py",
        b"/..\\http_server.py",
        b"/index.html%00.js",
        b"/.",
        b"/api/v1/../../http_server.py",
    ):
        data = answer(api.raw(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        assert data[8:12] in (b" 404", b" 400") or b"<title>FlockMQ" in data, path
        assert b"import" not in data and b"root:" not in data, path


def test_log_injection(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    evil = "x\r\n2026-11-21 info    all is well\x1b[2J\u202e"
    assert api.ask("DELETE", "/session", client_id=evil).status == 404
    assert api.ask("POST", "/bans", {"kind": "client_id", "value": evil, "reason": evil}).status == 200
    assert api.ask("GET", "//metrics", None, {"User-Agent": "\x1b[2J"}).status == 400
    operations = ("end_session", "ban")
    until(lambda: sum(line.get("operation") in operations for line in broker.log) == 2)
    told = [line for line in broker.log if line.get("operation") in operations]
    assert not [line for line in broker.log if line["level"] == "raw"]
    for line in told:
        assert not set("\r\n\x1b\u202e") & set(str(line["arguments"]))


def test_headers_that_keep_the_page_alone(api: HttpClient) -> None:
    for path in ("//", "//main.js", "/clients", "/nothing", "//healthz", "/messages"):
        headers = api.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "aiohttp" not in headers["server"].lower() and "python" not in headers["server"].lower()
    page = api.ask("GET", "//").data.decode()
    assert "style=" not in page and "<script>" not in page and "onclick" not in page


def test_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.server()
    tls = {"http.listen": "https://127.0.0.1:0", "tls.certificate": pair.cert, "tls.key": pair.key}
    tls["tls.min_version"] = "1.3"
    broker = start_broker(tls)
    api = HttpClient(broker)
    assert api.url.startswith("https://")

    def serial() -> str:
        with context.wrap_socket(api.raw(b""), server_hostname="localhost") as connection:
            shown = connection.getpeercert() or {}
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(connection).startswith(b"HTTP/1.1 200")
            return str(shown["serialNumber"])

    context = ssl.create_default_context(cafile=authority.ca)
    first = serial()
    authority.server()  # the same files, another certificate
    until(lambda: serial() != first)
    Path(pair.cert).write_text("nothing of the kind")
    until(lambda: serial() and any("certificate reload failed" in line["event"] for line in broker.log))
    assert not answer(api.raw(b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        serial()


def test_tls_with_several_certificates(start_broker: StartBroker, tmp_path: Path) -> None:
    """The requested name selects one, an exact name before a wildcard, as at the listeners; also of new files."""
    authority = Authority(tmp_path / "ca")
    first, more = authority.server(), tmp_path / "more"
    (more / "other.example").mkdir(parents=True)
    other = authority.server("other", ["other.example"])
    (more / "other.example" / "fullchain.pem").write_bytes(Path(other.cert).read_bytes())
    (more / "other.example" / "privkey.pem").write_bytes(Path(other.key).read_bytes())
    (more / "any.pem").write_bytes(authority.server("any", ["*.fleet.example"]).both())
    settings = {"tls.certificate": first.cert, "tls.key": first.key, "tls.certificates": more}
    broker = start_broker({"http.listen": "https://127.0.0.1:0", **settings})
    api = HttpClient(broker)
    context = ssl.create_default_context(cafile=authority.ca)

    def shown(name: str) -> str:
        """The common name of the certificate that a client gets, which verifies the name."""
        with context.wrap_socket(api.raw(b""), server_hostname=name) as connection:
            connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 ")
            subject: Any = (connection.getpeercert() or {})["subject"]
            return str(subject[0][0][1])

    assert [shown(name) for name in ("localhost", "broker.example", "127.0.0.1")] == ["localhost"] * 3
    assert [shown(name) for name in ("other.example", "third.fleet.example")] == ["other.example", "*.fleet.example"]
    (more / "third.pem").write_bytes(authority.server("third", ["third.fleet.example"]).both())
    until(lambda: shown("third.fleet.example") == "third.fleet.example", "the new file is read")
    (more / "third.pem").write_bytes(b"nothing of the kind")
    until(lambda: shown("third.fleet.example") and any("reload failed" in line["event"] for line in broker.log))
    assert shown("third.fleet.example") == "third.fleet.example", "the previous certificates stay in use"


def test_tls_with_a_further_certificate_that_cant_be_used(tmp_path: Path, store: str) -> None:
    authority = Authority(tmp_path / "ca")
    first, other = authority.server(), authority.server("other")
    bad = tmp_path / "bad.pem"
    bad.write_bytes(Path(first.cert).read_bytes() + Path(other.key).read_bytes())
    settings = {"tls.certificate": first.cert, "tls.key": first.key, "tls.certificates": bad}
    broker = BrokerProcess(tmp_path, store=store, settings={"http.listen": "https://127.0.0.1:0", **settings})
    broker.spawn()
    assert broker.wait() == 2
    assert str(bad) in broker.log[-1]["event"]


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "], ids=["nothing", "a slow header"])
def test_silent_connections_lock_nobody_out(start_broker: StartBroker, start: bytes) -> None:
    """128 of them took all places: no health check was answered, and an orchestrator restarts such a node."""
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(contextlib.closing(api.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")))
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        for _ in range(3):
            for _ in range(150):
                stack.enter_context(contextlib.closing(api.raw(start)))
            assert api.ask("GET", "//healthz").status == 200
            assert api.ask("GET", "/clients").status == 200
        line = broker.wait_for_log("all HTTP connections are taken: the oldest that send nothing are dropped")
        assert (line["most_of"], line["limit"]) == ("127.0.0.1", 128)
