"""`flockmq.testing`: a real broker within the process, as users' tests start it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.errors import ConfigError, ListenError
from flockmq.hooks import Client, Credentials, Hooks, Identity, Message, ReasonCode, Verdict
from flockmq.testing import Broker
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient


def test_brokers_side_by_side_share_nothing() -> None:
    with Broker() as one, Broker() as other:
        assert one.port != other.port
        listener = SocketClient(other.port, "listener")
        listener.subscribe(("t", 0))
        for number, broker in enumerate((one, other)):
            SocketClient(broker.port, "talker").send(Publish("t", b"%d" % number))
        answer = listener.receive()
        assert isinstance(answer, Publish)
        assert answer.payload == b"1"
        listener.close()


def test_it_is_gone_when_it_has_been_left() -> None:
    with Broker() as broker:
        client = SocketClient(broker.port, "c")
    assert client.receive() is None
    with pytest.raises(ConnectionRefusedError):
        SocketClient(broker.port)
    assert not any(thread.name == "flockmq" for thread in threading.enumerate())


def test_settings_and_hooks() -> None:
    class Loud(Hooks):
        def publish(self, client: Client, message: Message) -> Message:
            return message._replace(payload=message.payload.upper())

    with Broker({"limits.max_packet_size": 1000}, hooks=[Loud()]) as broker:
        client = SocketClient(broker.port, "c")
        client.subscribe(("t", 0))
        client.send(Publish("t", b"quiet"))
        answer = client.receive()
        assert isinstance(answer, Publish)
        assert answer.payload == b"QUIET"
        client.send(Publish("t", bytes(2000)))
        assert client.receive() is None


def test_what_is_wrong_is_raised_where_it_was_started() -> None:
    with pytest.raises(ConfigError, match=r"limits\.max_inflight"):
        Broker({"limits.max_inflight": -1})
    with Broker() as broker, pytest.raises(ListenError):
        Broker({"listen": [f"127.0.0.1:{broker.port}"]}).start()


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import socket\n"
        "def test_it(flockmq_broker):\n"
        "    socket.create_connection((flockmq_broker.host, flockmq_broker.port)).close()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_hook_that_knows_the_users(tmp_path: Path) -> None:
    class Users(Hooks):
        async def authenticate(self, credentials: Credentials) -> Verdict | None:
            if credentials.username == "fails":
                raise RuntimeError("of the user's")
            if credentials.username != "ann":
                return None
            if credentials.password != b"secret":
                return Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD)
            return Verdict(ReasonCode.ACCEPTED, Identity("ann"))

    def code(username: str, password: bytes) -> int:
        connack = SocketClient(broker.port, "c", username=username, password=password).connack
        assert connack is not None
        return connack.reason_code

    with Broker(hooks=[Users()]) as broker:
        tries = [("ann", b"secret"), ("ann", b"wrong"), ("bob", b"secret"), ("fails", b"")]
        assert [code(*credentials) for credentials in tries] == [0, 4, 4, 3]
