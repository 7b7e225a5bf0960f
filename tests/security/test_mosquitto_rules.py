"""Files of Mosquitto mean to us what they mean to Mosquitto, which is asked: users, rules, listeners, faults."""

import getpass
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flockmq.broker.auth.acl_file import AclFile
from flockmq.broker.config.load import load
from flockmq.broker.config.mosquitto import translate
from flockmq.broker.errors import ConfigError
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
    """The topics that a client may read, and may publish, as others see it."""
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


BRIDGE = "connection c # x\naddress 127.0.0.1:1 # x\ntopic a\n"


@pytest.mark.parametrize(
    "text",
    [
        "allow_anonymous true\nper_listener_settings true\n",
        "per_listener_settings true\nallow_anonymous true\nper_listener_settings true\n",
        *(f"{name}\n" for name in ("acl_file", "password_file", "certfile", "cafile", "persistence_location", "user")),
        "allow_anonymous TRUE\n",
        "socket_domain IPV6\n",
        "topic a\n",
        "address a.example\n",
        "keepalive_interval 9\n",
        f"{BRIDGE}connection c\n",
        f"{BRIDGE}address 127.0.0.1:2\n",
        f"{BRIDGE}topic a # x\n",
        f"{BRIDGE}topic a in 3\n",
        f"{BRIDGE}bridge_protocol_version mqttv50 # x\n",
        "connection c\ntopic a\n",
        "connection c\naddress 127.0.0.1:0\ntopic a\n",
    ],
)
def test_both_refuse_a_configuration(files: Path, text: str) -> None:
    path = files / "mosquitto.conf"
    path.write_text(text)
    refused = subprocess.run(["mosquitto", "-c", path], check=False, capture_output=True, timeout=DEADLINE)
    assert refused.returncode and b"Error" in refused.stderr
    with pytest.raises(ConfigError, match=f"^{path}:[0-9]: "):
        translate(path)


@pytest.mark.parametrize("line", ["\ttopic read a", "topic\tread a", "user\tada"])
def test_both_refuse_a_tab_in_rules(files: Path, line: str) -> None:
    (files / "acl").write_text(f"{line}\n")
    lines = f"listener {free_port()} 127.0.0.1\nacl_file {files}/acl\nuser {getpass.getuser()}\n"
    (files / "mosquitto.conf").write_text(lines)
    command = ["mosquitto", "-c", files / "mosquitto.conf"]
    refused = subprocess.run(command, check=False, capture_output=True, timeout=DEADLINE)
    assert refused.returncode and b"Invalid line in acl_file" in refused.stderr
    with pytest.raises(ConfigError, match="acl:1: "):
        AclFile(str(files / "acl"))


@pytest.mark.parametrize(
    "text",
    [
        "per_listener_settings true\nallow_anonymous true\nlistener {0}\npassword_file {2}\nlistener {1}\n",
        "per_listener_settings true\nallow_anonymous true\nport {0}\nlistener {1}\npassword_file {2}\n",
        "per_listener_settings true\nlistener {0} 127.0.0.1\nlistener {1} 127.0.0.1\nallow_anonymous true\n",
        "allow_anonymous true\nport {0}\nlistener {1}\npassword_file {2}\n",
        "listener {0}\npassword_file {2}\nlistener {1}\n",
    ],
)
def test_both_accept_anonymous_clients_at_the_same_listeners(files: Path, text: str) -> None:
    ports = free_port(), free_port()
    path = files / "mosquitto.conf"
    path.write_text(text.format(*ports, files / "passwords") + f"user {getpass.getuser()}\n")
    (files / "flockmq.toml").write_text(translate(path).toml)
    listeners = load({}, {}, files / "flockmq.toml").listeners
    ours = {int(each.listen[0].rpartition(":")[2]) for each in listeners if each.auth.allow_anonymous}
    with (files / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen(["mosquitto", "-c", path], stdout=log, stderr=log)
    try:
        until(lambda: any(map(answers, ports)), "Mosquitto answers")
        assert ours == {port for port in ports if accepts_anonymous(port)}
    finally:
        process.terminate()
        process.wait(20)


def accepts_anonymous(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c")
        return client.recv(4) == b"\x20\x02\x00\x00"
    return False
