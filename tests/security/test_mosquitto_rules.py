"""An ACL file and a password file of Mosquitto's mean to us what they mean to Mosquitto, which is asked."""

import getpass
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.broker_process import BrokerProcess, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.protocol.wire import Wire

RULES = """\
# of anonymous clients
topic read public/#
topic write public/in

user admin
topic readwrite #

user Ada Lovelace
topic engine/+/on
topic read engine/#
topic deny engine/secret
topic readwrite with space/x

pattern write dev/%c/up
pattern read dev/%c/#
user bob
topic read #
topic deny engine/#
pattern readwrite home/%u/x
"""
TOPICS = (
    "public/a",
    "public/in",
    "engine/1/on",
    "engine/2/off",
    "engine/secret",
    "engine",
    "with space/x",
    "with",
    "dev/c1/up",
    "dev/c1/down",
    "dev/c2/up",
    "home/bob/x",
    "home/Ada Lovelace/x",
    "home//x",
    "other",
)
CLIENTS = [(None, "c1"), ("Ada Lovelace", "c1"), ("Ada Lovelace", "c2"), ("bob", "c1"), ("bob", "c3")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    if shutil.which("mosquitto") is None or shutil.which("mosquitto_passwd") is None:
        pytest.skip("not installed: mosquitto")
    (tmp_path / "acl").write_text(RULES)
    (tmp_path / "passwords").touch()
    for user in ("admin", "Ada Lovelace", "bob"):
        command = ["mosquitto_passwd", "-b", tmp_path / "passwords", user, f"of {user}"]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)
    return tmp_path


@pytest.fixture
def mosquitto(files: Path) -> Iterator[int]:
    """The port of a Mosquitto that has the files."""
    port = free_port()
    (files / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npassword_file {files}/passwords\nacl_file {files}/acl\n"
        f"user {getpass.getuser()}\n"
    )
    with (files / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen(["mosquitto", "-c", files / "mosquitto.conf"], stdout=log, stderr=log)
    try:
        until(lambda: answers(port), "Mosquitto answers")
        yield port
    finally:
        process.terminate()
        process.wait(20)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def connect(port: int, user: str | None, client_id: str) -> Wire:
    return Wire(port, name=client_id).connect("" if user is None else f"user='{user}' pass='of {user}'")


def rights(port: int, user: str | None, client_id: str) -> tuple[set[str], set[str]]:
    """What a client may read, and what it may publish, as others see it."""
    with connect(port, user, client_id) as client, connect(port, "admin", "admin") as admin:
        client.send("subscribe 1 #:0")
        client.packet()
        admin.send(*(f"publish '{topic}' x q1 id={number}" for number, topic in enumerate(TOPICS, 1)))
        heard(admin)
        readable = heard(client)
        admin.send("subscribe 1 #:0")
        admin.packet()
        client.send(*(f"publish '{topic}' x q1 id={number}" for number, topic in enumerate(TOPICS, 1)))
        heard(client)
        return readable, heard(admin)


def heard(client: Wire) -> set[str]:
    """The topics of all messages that were under way to a client when all others had been answered."""
    client.settle()
    found = {topic for topic in (getattr(client.packet(), "topic_name", "") for _ in list(client.frames)) if topic}
    client.frames.clear()
    return found


def test_rules_mean_the_same(files: Path, mosquitto: int) -> None:
    settings = {"auth.allow_anonymous": True, "auth.acl_file": files / "acl", "auth.password_file": files / "passwords"}
    broker = BrokerProcess(files, settings=settings).start()
    try:
        for user, client_id in CLIENTS:
            ours, theirs = (rights(port, user, client_id) for port in (broker.port, mosquitto))
            assert ours == theirs, (user, client_id)
            assert any(theirs), "it may do something"
    finally:
        broker.close()
