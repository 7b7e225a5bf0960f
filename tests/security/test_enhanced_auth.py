"""Enhanced authentication over sockets: SCRAM-SHA-256, OAUTHBEARER and hooks, from CONNECT to authenticating again."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from flockmq._speedups.codec.packets import Auth, Connack, Connect, Disconnect, Packet, Puback, Publish
from flockmq.broker.auth.passwords import scram_credentials
from flockmq.broker.public.hooks import Challenge, Credentials, Exchange, Hooks, Identity, ReasonCode, Verdict
from flockmq.broker.public.testing import Broker as LocalBroker
from tests.conftest import StartBroker
from tests.harness.broker_process import environment, until
from tests.harness.cluster_process import Broker
from tests.harness.command import flockmq
from tests.harness.deadline import DEADLINE
from tests.harness.scram_client import ScramClient
from tests.harness.socket_client import SocketClient
from tests.protocol.wire import Wire
from tests.security.access_files import quick_hash
from tests.web.http_client import HttpClient

SCRAM, BEARER = "SCRAM-SHA-256", "OAUTHBEARER"
CONTINUE, AGAIN, DONE = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE, ReasonCode.SUCCESS
SECRET = "a secret of more than thirty-two bytes"
ROUNDS = 4096


@pytest.fixture
def store() -> str:
    return "memory"


def start(start_broker: StartBroker, tmp_path: Path, **more: object) -> Broker:
    """A broker with ada, with SCRAM credentials, bob without them, and tokens."""
    passwords = tmp_path / "passwords"
    lines = [f"ada:{scram_credentials(b'engine', ROUNDS).text}", f"bob:{quick_hash('bob')}"]
    passwords.write_text("".join(f"{line}\n" for line in lines))
    passwords.chmod(0o600)
    (tmp_path / "secret").write_text(SECRET)
    settings: dict[str, object] = {
        "auth.password_file": passwords,
        "auth.jwt_secret_file": tmp_path / "secret",
        "auth.failure_delay": 0,
    }
    return start_broker(settings | {name.replace("__", "."): value for name, value in more.items()})


def properties(method: str, data: bytes = b"") -> dict[str, Any]:
    found: dict[str, Any] = {"authentication_method": method}
    return found | ({"authentication_data": data} if data else {})


def opened(port: int, method: str, data: bytes = b"", client_id: str = "c", **more: Any) -> SocketClient:
    """A client that has sent CONNECT with this method."""
    client = SocketClient(port, level=5)
    connect = {"keep_alive": 0, "protocol_level": 5, "properties": properties(method, data), **more}
    client.send(Connect(client_id, **connect))
    return client


def data_of(packet: Packet | None, kind: type[Packet], code: int) -> bytes:
    """The authentication data of a packet, which is of this kind and has this code."""
    assert isinstance(packet, kind) and isinstance(packet, Auth | Connack), packet
    assert packet.reason_code == code, packet
    data = packet.properties.get("authentication_data", b"")
    assert isinstance(data, bytes)
    return data


def refused(client: SocketClient, code: int) -> None:
    """It gets CONNACK with this code, with nothing that would help to guess, and the connection ends."""
    packet = client.receive()
    assert isinstance(packet, Connack), packet
    assert packet.reason_code == code, packet
    assert "authentication_data" not in packet.properties
    if code in (0x86, 0x87):
        assert packet.properties == {}
    assert client.receive() is None
    client.close()


def challenged(client: SocketClient, scram: ScramClient, **wrong: str) -> None:
    """Answer the node's challenge."""
    final = scram.final(data_of(client.receive(), Auth, CONTINUE), **wrong)
    client.send(Auth(CONTINUE, properties(SCRAM, final)))


def login(port: int, user: str = "ada", password: str = "engine", **more: Any) -> SocketClient:
    """A client that SCRAM has let in, and that has checked the node's signature."""
    scram = ScramClient(user, password)
    client = opened(port, SCRAM, scram.first(), **more)
    challenged(client, scram)
    packet = client.receive()
    assert data_of(packet, Connack, 0) == scram.signature
    assert isinstance(packet, Connack) and packet.properties["authentication_method"] == SCRAM
    return client


def code_of(port: int, user: str, password: str) -> tuple[int, dict[str, str]]:
    """The reason code for a user with a password, and the fields of the node's challenge."""
    scram = ScramClient(user, password)
    with opened(port, SCRAM, scram.first()) as client:
        challenged(client, scram)
        packet = client.receive()
        assert isinstance(packet, Connack), packet
        return packet.reason_code, scram.fields


# ---- SCRAM ----


def test_scram(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    with login(broker.port) as ada:
        assert ada.subscribe(("t", 1)) == [1]
    with Wire(broker.port, name="plain") as plain:  # the same credentials verify the password itself
        plain.connect("user=ada pass=engine")
    with SocketClient(broker.port, "c", level=5, username="ada", password=b"wrong") as wrong:
        assert wrong.connack is not None and wrong.connack.reason_code == 0x86


def test_users_without_scram_look_like_those_with_it(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    seen = {user: code_of(broker.port, user, "wrong") for user in ("ada", "bob", "nobody")}
    assert {code for code, _ in seen.values()} == {0x86}
    assert len({(len(fields["s"]), fields["i"]) for _, fields in seen.values()}) == 1
    assert code_of(broker.port, "bob", "bob")[0] == 0x86
    assert {user: code_of(broker.port, user, "wrong")[1]["s"] for user in seen} == {
        user: fields["s"] for user, (_, fields) in seen.items()
    }
    assert broker.wait_for_log("connection refused", reason="wrong password")
    assert broker.wait_for_log("connection refused", reason="unknown user")


@pytest.mark.parametrize("wrong", [{"p": "AAAA"}, {"r": "another"}, {"c": "eSws"}], ids=["proof", "nonce", "binding"])
def test_wrong_proofs(start_broker: StartBroker, tmp_path: Path, wrong: dict[str, str]) -> None:
    broker = start(start_broker, tmp_path)
    scram = ScramClient("ada", "engine")
    client = opened(broker.port, SCRAM, scram.first())
    challenged(client, scram, **wrong)
    refused(client, 0x86)


def test_a_recorded_exchange_is_worth_nothing(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    scram = ScramClient("ada", "engine", nonce="always-the-same")
    with opened(broker.port, SCRAM, scram.first()) as client:
        final = scram.final(data_of(client.receive(), Auth, CONTINUE))
        client.send(Auth(CONTINUE, properties(SCRAM, final)))
        data_of(client.receive(), Connack, 0)
    replay = opened(broker.port, SCRAM, scram.first())
    data_of(replay.receive(), Auth, CONTINUE)
    replay.send(Auth(CONTINUE, properties(SCRAM, final)))
    refused(replay, 0x86)


def test_nobody_takes_a_name_by_connect(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    refused(opened(broker.port, SCRAM, ScramClient("ada", "engine").first(), username="bob"), 0x86)
    login(broker.port, username="ada").close()


def test_methods_that_are_off(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, auth__methods="SCRAM-SHA-256")
    refused(opened(broker.port, BEARER, bearer(token())), 0x8C)
    refused(opened(broker.port, "SCRAM-SHA-1", b"n,,n=ada,r=x"), 0x8C)
    login(broker.port).close()
    with SocketClient(broker.port, "c", level=5, username="ada", password=b"engine") as plain:
        assert plain.connack is not None and plain.connack.reason_code == 0x8C
    with Wire(broker.port, name="old") as old:
        old.send("connect user=ada pass=engine")
        old.expect("connack 5", None)


def test_failures_are_delayed_as_those_of_passwords(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, auth__failure_delay="300ms")
    began = time.monotonic()
    assert code_of(broker.port, "ada", "wrong")[0] == 0x86
    assert time.monotonic() - began >= 0.3
    assert code_of(broker.port, "ada", "wrong")[0] == 0x86
    assert time.monotonic() - began >= 0.9


def test_a_flood_of_auth(start_broker: StartBroker, tmp_path: Path) -> None:
    """Exchanges that never end hold up nobody, and end by themselves."""
    broker = start(start_broker, tmp_path, limits__connect_timeout="2s")
    waiting = [opened(broker.port, SCRAM, ScramClient("ada", "x").first(), f"c{n}") for n in range(100)]
    for client in waiting:
        data_of(client.receive(), Auth, CONTINUE)
    login(broker.port, client_id="ada").close()
    for client in waiting:
        assert client.receive() is None
        client.close()
    flood = login(broker.port)
    flood.send(*[Auth(AGAIN, properties(SCRAM, ScramClient("ada", "engine").first()))] * 50)
    while isinstance(packet := flood.receive(), Auth):
        pass
    assert isinstance(packet, Disconnect) and packet.reason_code == 0x82
    flood.close()


def test_scram_again(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    with login(broker.port) as ada:
        for password, code in (("engine", 0), ("wrong", 0x87)):
            scram = ScramClient("ada", password)
            ada.send(Auth(AGAIN, properties(SCRAM, scram.first())))
            challenged(ada, scram)
            packet = ada.receive()
            if code:
                assert isinstance(packet, Disconnect) and packet.reason_code == code, packet
            else:
                assert data_of(packet, Auth, DONE) == scram.signature
        assert ada.receive() is None


def test_a_password_that_is_changed_by_the_command(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)

    def passwd(*arguments: str, status: int = 0) -> None:
        flockmq("passwd", tmp_path / "passwords", *arguments, status=status, entered="builder\n")

    passwd("bob", "--scram", "--rounds", "5000")
    until(lambda: code_of(broker.port, "bob", "builder")[0] == 0, "the file was read")
    assert code_of(broker.port, "bob", "builder")[1]["i"] == "5000"
    passwd("bob", "--scram", "--rounds", "100", status=2)
    passwd("a\u2168", "--scram", status=2)  # SCRAM clients would write it as aIX
    assert code_of(broker.port, "bob", "builder")[0] == 0
    passwd("bob")
    until(lambda: code_of(broker.port, "bob", "builder")[0] == 0x86, "the file was read")


# ---- tokens ----


def token(**claims: Any) -> str:
    return jwt.encode({"sub": "ada", "exp": time.time() + 60, **claims}, SECRET, "HS256")


def bearer(text: str, user: str = "") -> bytes:
    return f"n,{f'a={user}' if user else ''},\1auth=Bearer {text}\1\1".encode()


def test_bearer_tokens(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    for data in (bearer(token()), bearer(token(), "ada"), bearer(token()).replace(b"Bearer", b"bearer")):
        with opened(broker.port, BEARER, data) as client:
            assert data_of(client.receive(), Connack, 0) == b""
    with opened(broker.port, BEARER) as client:  # asks for the challenge first
        assert data_of(client.receive(), Auth, CONTINUE) == b""
        client.send(Auth(CONTINUE, properties(BEARER, bearer(token()))))
        data_of(client.receive(), Connack, 0)
    for data in (
        bearer(token(), "bob"),
        bearer(token(exp=time.time() - 60)),
        bearer(token() + "x"),
        bearer("engine"),
        bearer(""),
        b"n,,",
        b"\1\1",
        b"n,,\1auth=Basic x\1\1",
        b"n,,\1host=x\1\1",
        b"p=tls-exporter,," + bearer(token())[3:],
        bearer(token())[:-1],
        b"\xff",
    ):
        refused(opened(broker.port, BEARER, data), 0x86)
    refused(opened(broker.port, BEARER, bearer(token()), username="bob"), 0x86)
    with opened(broker.port, BEARER, bearer(token()), username="jwt") as client:
        data_of(client.receive(), Connack, 0)


def test_a_token_as_password_without_a_user_name(start_broker: StartBroker, tmp_path: Path) -> None:
    """Level 5 needs no user name for a password [5: 3.1.2.9]."""
    broker = start(start_broker, tmp_path, auth__allow_anonymous=True)
    codes = []
    for password in (token().encode(), b"wrong", None):
        with SocketClient(broker.port, "c", level=5, password=password) as client:
            assert client.connack is not None
            codes.append(client.connack.reason_code)
    assert codes == [0, 0x86, 0]


def test_new_tokens_keep_a_client_connected_while_messages_flow(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    ends = time.time() + 2
    with (
        opened(broker.port, BEARER, bearer(token(exp=ends))) as client,
        opened(broker.port, BEARER, bearer(token(exp=ends)), "other", will_topic="t", will_payload=b"will") as other,
    ):
        data_of(client.receive(), Connack, 0)
        data_of(other.receive(), Connack, 0)
        assert client.subscribe(("t", 1)) == [1]
        sent = received = acknowledged = renewed = 0
        will_seen = False
        while time.time() < ends + 1.5 or not will_seen:
            if sent % 20 == 5:
                client.send(Auth(AGAIN, properties(BEARER, bearer(token(exp=ends + 3600 + sent)))))
                renewed += 1
            sent += 1
            client.send(Publish("t", b"%d" % sent, 1, packet_id=sent % 65535 + 1))
            while received < sent or acknowledged < sent or renewed:
                packet = client.receive()
                if isinstance(packet, Publish):
                    client.send(*[Puback(packet.packet_id)] * (packet.qos > 0))
                    if packet.payload == b"will":
                        will_seen = True
                    else:
                        received += 1
                        assert packet.payload == b"%d" % received
                elif isinstance(packet, Auth):
                    assert data_of(packet, Auth, DONE) == b""
                    renewed -= 1
                else:
                    assert isinstance(packet, Puback), packet
                    acknowledged += 1
            time.sleep(0.01)  # a message every now and then, not a load test
        packet = other.receive()  # it kept its token
        assert isinstance(packet, Disconnect) and packet.reason_code == 0xA0, packet
        client.send(Auth(AGAIN, properties(BEARER, bearer(token(sub="bob")))))
        packet = client.receive()
        assert isinstance(packet, Disconnect) and packet.reason_code == 0x87, packet


def test_a_new_token_changes_rights(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    with opened(broker.port, BEARER, bearer(token(acl=["topic readwrite a/#"]))) as client:
        data_of(client.receive(), Connack, 0)
        assert client.subscribe(("a/x", 0), ("b/x", 0)) == [0, 0x87]
        client.send(Auth(AGAIN, properties(BEARER, bearer(token(acl=["topic readwrite b/#"])))))
        data_of(client.receive(), Auth, DONE)
        assert client.subscribe(("a/y", 0), ("b/x", 0)) == [0x87, 0]
        client.send(Publish("a/x", b"1", 1, packet_id=1))
        packet = client.receive()
        assert isinstance(packet, Puback) and packet.reason_code == 0x87


# ---- hooks ----


class Riddle:
    """Asks the same question twice; async once."""

    def __init__(self) -> None:
        self.answers = 0
        self.client_id = ""

    def start(self, client: Credentials, data: bytes) -> Challenge:
        self.client_id = client.client_id
        return Challenge(b"why?")

    async def step(self, data: bytes) -> Challenge | Verdict:
        if data == b"raise":
            raise RuntimeError("of the user's")
        if data == b"nonsense":
            return None  # type: ignore[return-value]
        self.answers += data == b"because"
        if self.answers == 2:
            return Verdict(ReasonCode.ACCEPTED, Identity(self.client_id), data=b"right")
        return Challenge(b"really?") if data == b"because" else Verdict(ReasonCode.NOT_AUTHORIZED)


class Riddles(Hooks):
    def authentication(self, method: str) -> Exchange | None:
        if method == "BROKEN":
            raise RuntimeError("of the user's")
        return Riddle() if method == "RIDDLE" else None


def test_a_method_of_a_hook() -> None:
    def play(*answers: bytes, method: str = "RIDDLE") -> list[tuple[int, bytes]]:
        found = []
        with opened(broker.port, method) as client:
            for answer in (*answers, None):
                packet = client.receive()
                assert isinstance(packet, Auth | Connack), packet
                found.append((packet.reason_code, packet.properties.get("authentication_data", b"")))
                if answer is not None:
                    client.send(Auth(CONTINUE, properties(method, answer)))
        return found

    with LocalBroker(hooks=[Riddles()]) as broker:
        asks, really = (CONTINUE, b"why?"), (CONTINUE, b"really?")
        assert play(b"because", b"because") == [asks, really, (0, b"right")]
        assert play(b"because", b"no") == [asks, really, (0x87, b"")]
        assert play(b"raise") == play(b"nonsense") == [asks, (0x88, b"")]
        assert play(method="BROKEN") == [(0x88, b"")]
        assert play(method="OTHER") == [(0x8C, b"")]
        with SocketClient(broker.port, "c", level=5) as client:  # a listener with a method has no anonymous clients
            assert client.connack is not None and client.connack.reason_code == 0x87


def published(port: int, *flags: str) -> tuple[int, str]:
    """Status and errors of `flockmq pub` with RIDDLE."""
    command = [sys.executable, "-m", "flockmq.broker.cli", "pub", "-p", str(port), "-t", "t", "-m", "x"]
    command += ["-D", "connect", "authentication-method", "RIDDLE", *flags]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE)
    return found.returncode, found.stderr


def test_pub_answers_with_the_properties_of_auth() -> None:
    with LocalBroker(hooks=[Riddles()]) as broker:
        assert published(broker.port, "-D", "auth", "authentication-data", "because") == (0, "")
        status, errors = published(broker.port, "-D", "auth", "authentication-data", "no")
        assert status == 1 and "refused the connection" in errors
        status, errors = published(broker.port)
        assert status == 1 and "asks for more authentication data, and there is none" in errors


def test_the_api_names_the_method(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, http__listen="127.0.0.1:0")
    with login(broker.port) as ada, Wire(broker.port, name="plain") as plain:
        plain.connect("user=ada pass=engine")
        ada.ping()
        found = {
            item["client_id"]: item["authentication_method"] for item in HttpClient(broker).get("/clients")["items"]
        }
    assert found.pop("plain") is None and list(found.values()) == [SCRAM]
