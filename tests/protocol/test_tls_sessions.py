"""TLS sessions that clients resume, spoken by Python's ssl: their duration, and the reasons for their end."""

import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.broker_process import BrokerProcess
from tests.harness.certificates import Authority, Pair
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient
from tests.harness.transports import ports, tls_settings, tls_socket, trusting
from tests.harness.wall_clock import WallClock

StartNode = Callable[..., BrokerProcess]
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
HOUR = 3600
versions = pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_node(tmp_path: Path, authority: Authority) -> Iterator[StartNode]:
    """Starts a node with one listener: `start_node("sqlite", client_ca=...)`, with keys of its TLS."""
    started: list[BrokerProcess] = []

    def start(
        store: str = "memory",
        clock: WallClock | None = None,
        *,
        scheme: str = "mqtts",
        arguments: list[str] | None = None,
        **tls: object,
    ) -> BrokerProcess:
        directory = tmp_path / f"node-{len(started)}"
        directory.mkdir()
        settings = tls_settings(authority.server(), f"{scheme}://127.0.0.1:{free_port()}", **tls)
        node = BrokerProcess(directory, store, {"log.level": "debug", **settings}, arguments, fresh=clock is not None)
        node.variables = clock.variables if clock is not None else {}
        started.append(node)
        return node.start()

    yield start
    for node in started:
        assert node.stop() == 0
        node.check()


def client_context(authority: Authority | None, version: ssl.TLSVersion, pair: Pair | None = None) -> ssl.SSLContext:
    context = trusting(authority, pair)
    context.minimum_version = context.maximum_version = version
    return context


def connect(
    node: BrokerProcess, context: ssl.SSLContext, session: ssl.SSLSession | None = None, name: str = "localhost"
) -> tuple[bool, ssl.SSLSession | None]:
    """Whether a connection has resumed the session, and the session for the next one."""
    port = int(str(node.settings["listeners.open.listen"]).rpartition(":")[2])
    connection = tls_socket(port, context, name, session=session)
    with SocketClient(0, "resumes", connected=connection) as client:  # the ticket comes after the handshake
        client.ping()
        return bool(connection.session_reused), connection.session


@versions
def test_a_session_outlives_a_restart(start_node: StartNode, authority: Authority, version: ssl.TLSVersion) -> None:
    node, context = start_node("sqlite"), client_context(authority, version)
    is_resumed, session = connect(node, context)
    assert not is_resumed
    for end in (node.stop, node.kill):
        end()
        node.start()
        is_resumed, session = connect(node, context, session)
        assert is_resumed


@versions
def test_without_a_store_a_restart_ends_it(
    start_node: StartNode, authority: Authority, version: ssl.TLSVersion
) -> None:
    node, context = start_node(), client_context(authority, version)
    _, session = connect(node, context)
    assert connect(node, context, session)[0]
    assert node.stop() == 0
    node.start()
    assert not connect(node, context, session)[0]


@versions
def test_a_lifetime_of_0(start_node: StartNode, authority: Authority, version: ssl.TLSVersion) -> None:
    node, context = start_node(session_lifetime=0), client_context(authority, version)
    _, session = connect(node, context)
    assert session is None or not session.has_ticket
    assert session is None or not connect(node, context, session)[0]


@versions
def test_the_lifetime_is_judged_by_the_present_setting(
    start_node: StartNode, authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    clock = WallClock(tmp_path / "clock")
    node, context = start_node("sqlite", clock, session_lifetime="2 h"), client_context(authority, version)
    _, session = connect(node, context)
    assert session is not None
    assert session.ticket_lifetime_hint == 2 * HOUR
    clock.step(1)
    assert connect(node, context, session)[0]
    clock.step(3)
    assert not connect(node, context, session)[0]
    clock.step(0)
    assert connect(node, context, session)[0]
    assert node.stop() == 0
    node.settings["listeners.open.tls.session_lifetime"] = "30 min"
    node.start()
    assert connect(node, context, session)[0]
    clock.step(1)
    assert not connect(node, context, session)[0]


@versions
def test_the_lifetime_is_reloaded(
    start_node: StartNode, authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    file = tmp_path / "flockmq.toml"

    def write(lifetime: str) -> None:
        file.write_text(f'[tls]\nsession_lifetime = "{lifetime}"\n', "utf-8")

    def reload(lifetime: str) -> None:
        since = len(node.log)
        write(lifetime)
        node.signal(signal.SIGHUP)
        node.wait_for_log("configuration read", since=since)

    write("0 s")
    node, context = start_node("sqlite", arguments=["--config", str(file)]), client_context(authority, version)
    reload("2 h")
    _, session = connect(node, context)
    assert session is not None
    assert session.ticket_lifetime_hint == 2 * HOUR
    assert connect(node, context, session)[0]
    reload("0 s")
    assert not connect(node, context, session)[0]
    reload("1 h")
    assert connect(node, context, session)[0]


@versions
@pytest.mark.parametrize("changed", ["client_ca", "client_crl"])
def test_other_authorities_and_revocations_end_it(
    start_node: StartNode, tmp_path: Path, version: ssl.TLSVersion, changed: str
) -> None:
    """Whom the new files refuse must not come in by an old session."""
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other", "other")
    lamp = authority.client("lamp")
    files = {"client_ca": tmp_path / "ca.pem", "client_crl": tmp_path / "crl.pem"}
    files["client_ca"].write_bytes(Path(authority.ca).read_bytes())
    files["client_crl"].write_bytes(Path(authority.revoke(authority.client("lost"))).read_bytes())
    node, context = start_node(client_certificate="required", **files), client_context(None, version, lamp)
    _, session = connect(node, context)
    assert connect(node, context, session)[0]
    if changed == "client_ca":
        files["client_ca"].write_bytes(Path(other.ca).read_bytes())
        files["client_crl"].write_bytes(Path(other.revoke(other.client("x"))).read_bytes())
    else:
        files["client_crl"].write_bytes(Path(authority.revoke(lamp)).read_bytes())
    node.signal(signal.SIGHUP)
    node.wait_for_log("configuration read")
    since = len(node.log)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(node, context, session)
    assert "certificate verify failed" in node.wait_for_log("before it was accepted", since=since)["reason"]


@versions
def test_an_expired_client_certificate_ends_it(
    start_node: StartNode, authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    clock = WallClock(tmp_path / "clock")
    strict = {"client_ca": authority.ca, "client_certificate": "required", "session_lifetime": "7 d"}
    node = start_node("sqlite", clock, **strict)
    context = client_context(authority, version, authority.client("short", days=1))
    _, session = connect(node, context)
    clock.step(23)
    assert connect(node, context, session)[0]
    clock.step(25)
    since = len(node.log)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(node, context, session)
    reason = node.wait_for_log("before it was accepted", since=since)["reason"]
    assert reason == "TLS: certificate verify failed: certificate has expired"


@versions
def test_a_renewed_key_leaves_the_sessions(
    start_node: StartNode, authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """A ticket of an older key is opened, also after a restart."""
    clock = WallClock(tmp_path / "clock")
    node, context = start_node("sqlite", clock), client_context(authority, version)
    _, first = connect(node, context)
    for hours in (13, 14):  # a key is made; it seals
        clock.step(hours)
        assert node.stop() == 0
        node.start()
    is_resumed, second = connect(node, context, first)
    assert is_resumed
    assert connect(node, context, second)[0]


@versions
def test_names_share_sessions(
    start_node: StartNode, authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """The context that a name selects has the keys and the lifetime, too."""
    other = tmp_path / "other.pem"
    other.write_bytes(authority.server("other", ["other.example"]).both())
    node, context = start_node("sqlite", certificates=other), client_context(authority, version)
    _, session = connect(node, context, name="other.example")
    assert node.stop() == 0
    node.start()
    assert connect(node, context, session, name="other.example")[0]


def test_a_name_has_the_protocols_of_its_listener(start_node: StartNode, authority: Authority, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(authority.server("other", ["other.example"]).both())
    node = start_node(certificates=other, scheme="wss")
    context = trusting(authority)
    context.set_alpn_protocols(["http/1.1"])
    with tls_socket(ports(node)["wss"], context, "other.example") as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"
