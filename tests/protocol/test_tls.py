"""TLS at a real node, spoken by Python's ssl: versions, names, clients' certificates, and certificates that change."""

import contextlib
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish
from tests.harness.broker_process import BrokerProcess
from tests.harness.certificates import Authority, Pair
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.transports import make_node, ports, tls_client, tls_settings, tls_socket, trusting

StartNode = Callable[[dict[str, object]], BrokerProcess]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    started: list[BrokerProcess] = []

    def start(settings: dict[str, object]) -> BrokerProcess:
        started.append(make_node(tmp_path / f"node-{len(started)}", settings))
        return started[-1]

    yield start
    for node in started:
        assert node.stop() == 0
        node.check()


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that asks for certificates, and lets in who has none; with more certificates for other names."""
    place = tmp_path_factory.mktemp("more")
    (place / "other.pem").write_bytes(authority.server("other", ["other.example", "*.wild.example"]).both())
    directory = place / "live" / "certbot.example"
    directory.mkdir(parents=True)
    made = authority.server("certbot", ["certbot.example", "one.wild.example"])
    (directory / "fullchain.pem").write_bytes(Path(made.cert).read_bytes())
    (directory / "privkey.pem").write_bytes(Path(made.key).read_bytes())
    more = f"{place / 'other.pem'},{place / 'live'}"
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0,wss://127.0.0.1:0", certificates=more)
    strict = {
        "client_ca": authority.ca,
        "client_certificate": "required",
        "username_from": "cn",
        "client_crl": authority.revoke(REVOKED.setdefault("pair", authority.client("revoked"))),
        "min_version": "1.3",
    }
    settings |= tls_settings(authority.server(), "mqtts://127.0.0.1:0", "strict", **strict)
    lax = {"client_ca": authority.ca, "client_certificate": "optional", "username_from": "subject"}
    settings |= tls_settings(authority.server(), "mqtts://127.0.0.1:0", "lax", **lax)
    running = make_node(place / "node", settings)
    yield running
    assert running.stop() == 0
    running.check()


REVOKED: dict[str, Pair] = {}


def echo(client: SocketClient, payload: bytes, qos: int = 1) -> bytes:
    """The packet that comes back of a message to oneself."""
    client.subscribe(("echo", qos))
    client.send(Publish(topic_name="echo", payload=payload, qos=qos, packet_id=7 if qos else 0))
    while not isinstance(packet := client.receive(), Publish):
        assert packet is not None
    return packet.payload


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("size", [0, 100, 17_000, 1_500_000])
def test_messages_of_all_sizes(node: BrokerProcess, authority: Authority, version: ssl.TLSVersion, size: int) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    with tls_client(ports(node)["mqtts"], context, f"sizes-{size}") as client:
        assert client.socket.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]  # type: ignore[attr-defined]
        payload = bytes(n * 7 & 255 for n in range(size))
        assert echo(client, payload) == payload


def test_older_versions_are_refused(node: BrokerProcess) -> None:
    since = len(node.log)
    for version, listener in (("-tls1_1", "open"), ("-tls1_2", "strict")):
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{ports(node, listener)['mqtts']}", version]
        done = subprocess.run([*command, "-cipher", "ALL:@SECLEVEL=0"], capture_output=True, text=True, input="")
        assert done.returncode != 0
        assert "alert" in done.stderr
        node.wait_for_log("before it was accepted", since=since, reason="TLS: unsupported protocol")


@pytest.mark.parametrize("offered", [["mqtt"], ["x", "mqtt"], []], ids=str)
def test_alpn(node: BrokerProcess, authority: Authority, offered: list[str]) -> None:
    context = trusting(authority)
    if offered:
        context.set_alpn_protocols(offered)
    with tls_socket(ports(node)["mqtts"], context) as connection:
        assert connection.selected_alpn_protocol() == ("mqtt" if offered else None)


def test_who_means_another_protocol_is_refused(node: BrokerProcess, authority: Authority) -> None:
    context = trusting(authority)
    context.set_alpn_protocols(["h2", "imap"])
    with pytest.raises(ssl.SSLError, match=r"NO_APPLICATION_PROTOCOL|no application protocol"):
        tls_socket(ports(node)["mqtts"], context)


@pytest.mark.parametrize(
    ("name", "common_name"),
    [
        ("localhost", "localhost"),
        ("broker.example", "localhost"),
        ("other.example", "other.example"),
        ("two.wild.example", "other.example"),
        ("one.wild.example", "certbot.example"),  # a certificate's own name goes before a wildcard
        ("CERTBOT.example", "certbot.example"),
        ("unknown.example", "localhost"),
    ],
)
def test_the_name_chooses_the_certificate(
    node: BrokerProcess, authority: Authority, name: str, common_name: str
) -> None:
    context = trusting(authority)
    context.check_hostname = False
    with tls_socket(ports(node)["mqtts"], context, name) as connection:
        subject: Any = connection.getpeercert()
        assert dict(pair for part in subject["subject"] for pair in part)["commonName"] == common_name


def refused(node: BrokerProcess, listener: str, context: ssl.SSLContext) -> str:
    """Why a client is not let in."""
    with socket.create_connection(("127.0.0.1", ports(node, listener)["mqtts"]), DEADLINE) as plain:
        address = "{}:{}".format(*plain.getsockname())
        with (
            contextlib.suppress(ssl.SSLError, ConnectionError),
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            assert connection.recv(1) == b""  # at version 1.3 a client has done its part before it is judged
    return str(node.wait_for_log("before it was accepted", address=address)["reason"])


def test_a_certificate_is_required(node: BrokerProcess, authority: Authority) -> None:
    assert refused(node, "strict", trusting(authority)) == "TLS: peer did not return a certificate"


def test_a_certificate_of_somebody_else_is_refused(node: BrokerProcess, authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign").client("lamp")
    for listener in ("strict", "lax"):
        assert refused(node, listener, trusting(authority, foreign)).startswith("TLS: certificate verify failed: ")


def test_a_revoked_certificate_is_refused(node: BrokerProcess, authority: Authority) -> None:
    reason = refused(node, "strict", trusting(authority, REVOKED["pair"]))
    assert reason == "TLS: certificate verify failed: certificate revoked"


def test_an_expired_certificate_is_refused(node: BrokerProcess, authority: Authority) -> None:
    expired = authority.client("old", days=-1)
    assert refused(node, "strict", trusting(authority, expired)).endswith("certificate has expired")


def test_a_servers_certificate_is_none_of_a_client(node: BrokerProcess, authority: Authority) -> None:
    assert "certificate verify failed" in refused(node, "strict", trusting(authority, authority.server("not-a-client")))


@pytest.mark.parametrize(
    ("listener", "names", "certificate"),
    [
        ("strict", ("lamp",), "lamp"),
        ("strict", ("Lämpchen/+#",), "Lämpchen/+#"),
        ("strict", ("one", "two"), None),  # which of them?
        ("strict", (), None),
        ("lax", ("lamp",), "CN=lamp,O=Fleet"),
        ("lax", None, None),
        ("open", ("lamp",), None),
    ],
)
def test_what_a_certificate_says(
    node: BrokerProcess, authority: Authority, listener: str, names: tuple[str, ...] | None, certificate: str | None
) -> None:
    pair = None if names is None else authority.client(*names)
    since = len(node.log)
    with tls_client(ports(node, listener)["mqtts"], trusting(authority, pair), "says"):
        line = node.wait_for_log("client connected|connection refused", since=since, client_id="says")
    if certificate is None and listener != "open":  # where certificates name users, a client without a name is refused
        assert line["reason"] == "it sent no credentials"
    else:
        assert (line["certificate"], line["listener"], line["transport"]) == (certificate, listener, "mqtts")


def test_a_session_is_resumed_and_is_worth_nothing_elsewhere(node: BrokerProcess, authority: Authority) -> None:
    context = trusting(authority, authority.client("lamp"))

    def connect(listener: str, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession]:
        since = len(node.log)
        connection = tls_socket(ports(node, listener)["mqtts"], context, session=session)
        with SocketClient(0, "again", connected=connection) as client:
            echo(client, b"x")  # the ticket comes after the handshake
            said = node.wait_for_log("client connected", since=since, client_id="again")["certificate"]
            assert said == {"strict": "lamp", "lax": "CN=lamp,O=Fleet"}[listener]
            assert connection.session is not None
            return bool(connection.session_reused), connection.session

    is_reused, session = connect("strict", None)
    assert not is_reused
    assert connect("strict", session)[0]
    assert not connect("lax", session)[0]


def test_certificates_are_reread(start_node: StartNode, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b", "other")
    used = authority.server("used")
    node = start_node(tls_settings(used, "mqtts://127.0.0.1:0"))
    port = ports(node)["mqtts"]
    with tls_client(port, trusting(authority), "stays") as stays:
        replacement = other.server("replacement")
        Path(used.cert).write_bytes(Path(replacement.cert).read_bytes())  # its key comes later
        node.signal(signal.SIGHUP)
        assert "is not the key of" in node.wait_for_log("configuration not changed")["error"]
        tls_client(port, trusting(authority), "old").close()
        Path(used.key).write_bytes(Path(replacement.key).read_bytes())
        node.signal(signal.SIGHUP)
        node.wait_for_log("configuration read")
        tls_client(port, trusting(other), "new").close()
        with pytest.raises(ssl.SSLCertVerificationError):
            tls_socket(port, trusting(authority))
        Path(used.cert).write_bytes(b"nothing")  # and now without a signal
        assert "no certificate in PEM format" in node.wait_for_log("certificate reload failed")["error"]
        tls_client(port, trusting(other), "still").close()
        third = authority.server("third")
        Path(used.cert).write_bytes(Path(third.cert).read_bytes())
        Path(used.key).write_bytes(Path(third.key).read_bytes())
        node.wait_for_log("certificates were reloaded", listener="open")
        tls_client(port, trusting(authority), "newest").close()
        assert echo(stays, b"still here") == b"still here"


def test_who_reads_slowly_gets_all(start_node: StartNode, authority: Authority) -> None:
    """More than socket and OpenSSL take is in the way when it is blocked, and in which pieces it goes on."""
    settings = tls_settings(authority.server(), "mqtts://127.0.0.1:0") | {"limits.max_outgoing_bytes": "64 MiB"}
    node = start_node(settings)
    with tls_client(ports(node)["mqtts"], trusting(authority), "slow") as slow, SocketClient(node.port, "fast") as fast:
        slow.subscribe(("bulk", 0))
        for n in range(200):
            fast.send(Publish(topic_name="bulk", payload=bytes((n,)) * 50_000, qos=0))
        fast.ping()
        for n in range(200):
            packet = slow.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == bytes((n,)) * 50_000


def test_the_end_is_said(node: BrokerProcess, authority: Authority) -> None:
    """close_notify: a client reads the end, not a line that was cut."""
    connection = tls_socket(ports(node)["mqtts"], trusting(authority), suppress_ragged_eofs=False)
    with SocketClient(0, "rude", connected=connection) as client:
        client.send(b"\xff\xff\xff\xff\xff")
        assert client.receive() is None


def test_a_client_that_shuts_down_is_gone(node: BrokerProcess, authority: Authority) -> None:
    """close_notify without an end of TCP, in the same record as a packet's end."""
    with tls_client(ports(node)["mqtts"], trusting(authority), "leaves") as client:
        connection: Any = client.socket
        since = len(node.log)
        connection.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):
            connection.unwrap()
        ended = node.wait_for_log("connection ended", since=since, client_id="leaves")
        assert ended["reason"] == "closed by the client"
