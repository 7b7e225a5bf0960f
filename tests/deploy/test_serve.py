"""`flockmq serve` as its operator meets it: mistakes are one line and exit status 2, signals do what they should."""

import contextlib
import os
import signal
import socket
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from flockmq.broker.errors import StoreError
from flockmq.broker.storage.sqlite_file import connect, reported
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire

pytestmark = pytest.mark.one_process

StartBroker = Callable[..., BrokerProcess]


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """The line with which `serve` refuses these arguments."""
    done = nursery.run(
        [sys.executable, "-m", "flockmq.broker.cli", "serve", "--listen", "127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
        cwd=cwd,
    )
    assert done.returncode == 2, done.stderr
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("flockmq: error: ")
    return line


# ---- what can't be started ------------------------------------------------------------------------------------------


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("--listen", address, "--store", f"sqlite:{tmp_path / 'new.db'}")
    assert address in line
    assert "--listen or FLOCKMQ_LISTEN" in line, "`make run` takes no flags"
    assert not (tmp_path / "new.db").exists(), "a store was made for a node that doesn't start"


def test_a_taken_port_of_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("--http", address, "--store", "memory")
    assert f"can't listen on {address}: Address already in use; another program has the port" in line


def test_a_port_taken_by_another_node(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert str(broker.port) in refused("--listen", f"127.0.0.1:{broker.port}", "--store", "memory")
    with Wire(broker.port) as client:
        client.connect()


@pytest.mark.parametrize("address", ["nowhere.invalid:1883", "192.0.2.1:1883"])
def test_an_address_that_is_not_ours(address: str) -> None:
    assert address in refused("--store", "memory", "--listen", address)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "limits.max_inflght=3"], "limits.max_inflight"),
        (["--set", "limits.max_inflight=none"], "limits.max_inflight"),
        (["--set", "limits.max_inflight=0"], "limits.max_inflight"),
        (["--store", "postgres:x"], "store"),
        (["--listen", "1883:localhost"], "listen"),
        (["--log-level", "loud"], "log"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_bad_key_or_value(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert said in refused("--store", "memory", *arguments, cwd=tmp_path)


def test_a_bad_key_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("[limits]\nmax_inflght = 3\n")
    line = refused("--config", "f.toml", cwd=tmp_path)
    assert "f.toml:2" in line
    assert "max_inflight" in line


@pytest.mark.parametrize("path", ["missing/x.db", "file/x.db", "/proc/x.db", "directory"])
def test_a_store_that_cannot_be_written(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    assert str(path) in refused("--store", f"sqlite:{path}", cwd=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert str(tmp_path) in refused("--store", f"sqlite:{tmp_path / 'x.db'}")


def damage_text(path: Path) -> None:
    path.write_bytes(b"this is no database\n" * 1000)


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def damage_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"precious", len(data) // 4)
    data[at : at + 8] = b"valuable"
    path.write_bytes(data)


def change(path: Path, statement: str) -> None:
    """Run a statement on the database, so that all of it is in one file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def damage_row(path: Path) -> None:
    change(path, "DELETE FROM block WHERE position = (SELECT min(position) + 1 FROM block)")


def damage_application(path: Path) -> None:
    change(path, "PRAGMA application_id = 1")


def damage_layout(path: Path) -> None:
    change(path, "PRAGMA user_version = 999")


@pytest.mark.parametrize(
    "damage",
    [damage_text, damage_empty, damage_cut, damage_middle, damage_row, damage_application, damage_layout],
    ids=lambda damage: damage.__name__.removeprefix("damage_"),
)
def test_a_damaged_store_is_refused_and_left_alone(damage: Callable[[Path], None], tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "sqlite").start()
    with Wire(broker.port) as client:
        client.connect()
        for n in range(1, 100):
            client.send(f"publish keep/{n} precious{'.' * 500} q1 id={n} retain")
            client.expect(f"puback {n}")
    assert broker.stop() == 0
    path = tmp_path / "flockmq.db"
    change(path, "PRAGMA optimize")
    damage(path)
    before = path.read_bytes()
    assert path.name in refused("--store", f"sqlite:{path}")
    assert path.read_bytes() == before, "a store that is refused stays as it is"


def test_a_store_in_use(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "sqlite").start()
    assert "use" in refused("--store", f"sqlite:{tmp_path / 'flockmq.db'}")
    with Wire(broker.port) as client:
        client.connect()
    assert broker.stop() == 0


# ---- where it listens -----------------------------------------------------------------------------------------------


def test_it_listens_on_loopback_only_unless_told(tmp_path: Path) -> None:
    """The default address; its port may be taken on this machine, which is then the error."""
    command = [sys.executable, "-m", "flockmq.broker.cli", "check-config"]
    done = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment(), cwd=tmp_path)
    assert 'listen = ["localhost:1883"]' in done.stdout


def listening(pid: int) -> set[str]:
    """Local addresses on which a process listens, as the kernel writes them."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


def test_it_listens_where_it_is_told_and_says_so(start_broker: StartBroker, store: str) -> None:
    local = start_broker()
    assert listening(local.pid) == {"0100007F"}
    local.wait_for_log("only this machine")
    everywhere = start_broker({"auth.allow_anonymous": True}, listen="0.0.0.0:0")
    assert listening(everywhere.pid) == {"00000000"}
    assert not any("only this machine" in line["event"] for line in everywhere.log)
    with Wire(everywhere.port) as client:
        client.connect()


@pytest.mark.parametrize(
    ("host", "hosts", "elsewhere"),
    [
        ("localhost", ["127.0.0.1", "[::1]"], False),
        ("", ["0.0.0.0", "[::]"], True),
        ("*", ["0.0.0.0", "[::]"], True),
        ("[::]", ["[::]"], True),
        ("0.0.0.0", ["0.0.0.0"], True),
    ],
)
def test_a_host_of_both_families(host: str, hosts: list[str], elsewhere: bool, start_broker: StartBroker) -> None:
    """`[::]` was IPv6 only, `localhost` IPv4 only, and no address was both."""
    settings: dict[str, object] = {"proxy.listen": f"{host}:0", "auth.allow_anonymous": True}
    broker = start_broker({**settings, "http.listen": f"{host}:0"}, listen=f"{host}:0")
    said = [
        str(broker.wait_for_log(event)["listen"]).split(", ")
        for event in ("is ready", "PROXY protocol", "HTTP server is listening")
    ]
    assert any("only this machine" in line["event"] for line in broker.log) != elsewhere
    for urls in said:
        places = [url.partition("://")[2].rpartition(":") for url in urls]
        assert [address for address, _, _ in places] == hosts
        assert len({port for _, _, port in places}) == 1, "one port"
        for family in ("127.0.0.1", "::1"):
            has_family = any((":" in family) == (":" in address) for address in hosts)
            with contextlib.suppress(ConnectionRefusedError) if not has_family else contextlib.nullcontext():
                socket.create_connection((family, int(places[0][2])), DEADLINE).close()
                assert has_family


def test_http_at_localhost_needs_no_token(start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": "localhost:0"})
    for url in str(broker.wait_for_log("HTTP server is listening")["listen"]).split(", "):
        with urllib.request.urlopen(f"{url}/api/v1/clients", timeout=DEADLINE) as answer:
            assert answer.status == 200


def test_http_everywhere_needs_one(start_broker: StartBroker) -> None:
    broker = start_broker({"http.listen": ":0"})
    for url in str(broker.wait_for_log("HTTP server is listening")["listen"]).split(", "):
        local = url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{local}/api/v1/clients", timeout=DEADLINE)


def test_several_addresses(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"])
    ready = broker.wait_for_log("is ready")
    addresses = [address.removeprefix("mqtt://") for address in ready["listen"].split(", ")]
    assert len(addresses) == 3
    for address in addresses:
        host, port = address.split(":")
        socket.create_connection((host, int(port)), 5).close()


def test_a_low_limit_of_open_files(tmp_path: Path) -> None:
    serve = (
        f"exec {sys.executable} -m flockmq.broker.cli serve --store sqlite:{tmp_path}"  # a directory: it ends at once
    )
    for files, warned in ((300, True), (1024, False)):
        command = ["sh", "-c", f"ulimit -n {files}; {serve}"]
        done = nursery.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment())
        assert done.returncode == 2
        assert (f"few files (ulimit -n, LimitNOFILE)  files={files}" in done.stderr) == warned, done.stderr


def test_it_says_what_is_kept_where(start_broker: StartBroker, store: str) -> None:
    broker = start_broker()
    broker.wait_for_log("nothing is stored on disk" if store == "memory" else "flockmq.db")


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_the_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        broker = BrokerProcess(tmp_path, "sqlite").start()
        with Wire(broker.port) as client:
            client.connect("clean=0").subscribe("t:1")
        files = [path for path in tmp_path.iterdir() if path.name.startswith("flockmq.db")]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert broker.stop() == 0
    finally:
        os.umask(old)


# ---- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly(start_broker: StartBroker, store: str, signum: int) -> None:
    """Clients are closed, the store is flushed, exit status 0, and all of it is there at the next start."""
    broker = start_broker()
    with Wire(broker.port, name="s") as subscriber, Wire(broker.port, name="p") as publisher:
        subscriber.connect("clean=0").subscribe("t:1")
        publisher.connect()
        publisher.send("publish t x q1 id=1", "publish kept y retain")
        publisher.expect("puback 1")
        publisher.settle()
        subscriber.expect("publish t x q1 id=1")
        broker.signal(signum)
        subscriber.expect(None)
        publisher.expect(None)
        assert broker.wait() == 0
    assert broker.log[-1]["event"] == "stopped"
    broker.start()
    with Wire(broker.port, name="s") as subscriber:
        if store == "memory":
            subscriber.connect("clean=0")
            return
        subscriber.connect("clean=0", "connack present")
        subscriber.expect("publish t x q1 id=1 dup")
        subscriber.subscribe("kept:0", packet_id=2)
        subscriber.expect("publish kept y retain")


def test_it_ends_while_clients_come_and_publish(start_broker: StartBroker) -> None:
    broker = start_broker()
    clients = [Wire(broker.port, name=f"c{n}") for n in range(20)]
    for n, client in enumerate(clients):
        client.send("connect clean=0", "subscribe 1 t:1", *("publish t x q1 id=1" for _ in range(50 * (n % 3))))
    clients[0].expect("connack")
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    for client in clients:
        while client.receive() is not None:
            pass
        client.drop()


@pytest.fixture
def configured(start_broker: StartBroker, tmp_path: Path) -> tuple[BrokerProcess, Path]:
    file = tmp_path / "flockmq.toml"
    file.write_text("[limits]\nmax_packet_size = 1000\n")
    return start_broker(arguments=["--config", str(file)]), file


def reload(broker: BrokerProcess, event: str) -> dict[str, object]:
    seen = len(broker.log)
    broker.signal(signal.SIGHUP)
    return broker.wait_for_log(event, seen)


def test_hup_reads_the_configuration_again(configured: tuple[BrokerProcess, Path]) -> None:
    broker, file = configured
    with Wire(broker.port, name="before") as client, Wire(broker.port, name="quiet") as quiet:
        client.connect()
        quiet.connect()
        assert not any(line["level"] == "debug" for line in broker.log)
        file.write_text("[limits]\nmax_packet_size = 2000\n[log]\nlevel = 'debug'\n")
        line = reload(broker, "configuration read")
        assert "limits.max_packet_size: 1000 -> 2000" in str(line["changed"])
        assert "log.level" in str(line["changed"])
        client.send(f"publish t {'x' * 1500} q1 id=1")
        client.expect("puback 1")
        client.send(f"publish t {'x' * 2500} q1 id=1")
        client.expect(None)
        quiet.close()
        broker.wait_for_log("connection ended", level="debug", client_id="quiet")


def test_hup_says_what_needs_a_restart(configured: tuple[BrokerProcess, Path]) -> None:
    broker, file = configured
    file.write_text("[limits]\nmax_connections = 7\nmax_packet_size = 1000\n[log]\nformat = 'text'\n")
    seen = len(broker.log)
    assert reload(broker, "configuration read")["changed"] == "nothing"
    line = broker.wait_for_log("restart", seen, level="warning")
    assert "limits.max_connections" in line["change"]
    file.write_text("[limits]\nmax_packet_size = 1000\n")
    assert reload(broker, "configuration read")["changed"] == "nothing"


def test_hup_names_files_of_users_and_rules_that_have_changed(start_broker: StartBroker, tmp_path: Path) -> None:
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    for path in (passwords, acl):
        path.touch()
    broker = start_broker({"auth.password_file": passwords, "auth.acl_file": acl})
    assert reload(broker, "configuration read")["changed"] == "nothing"
    acl.write_text("topic read t\n")
    broker.signal(signal.SIGHUP)
    assert broker.wait_for_log("configuration read", 0, changed=str(acl))


def test_a_store_that_is_a_database_of_mosquitto(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.db"
    path.write_bytes(b"\x00\xb5\x00mosquitto db" + bytes(2000))
    with (
        pytest.raises(StoreError, match=r"is a database of Mosquitto, not a store; .* `flockmq import`"),
        reported(path),
    ):
        connect(path)


@pytest.mark.parametrize("content", ["[limits]\nmax_packet_size = 'huge'\n", "[limits\n", None])
def test_hup_with_a_wrong_file_changes_nothing(configured: tuple[BrokerProcess, Path], content: str | None) -> None:
    broker, file = configured
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    line = reload(broker, "configuration not changed")
    assert line["level"] == "error"
    assert file.name in str(line["error"])
    with Wire(broker.port) as client:
        client.connect()
        client.send(f"publish t {'x' * 1500}")
        client.expect(None)


def test_a_client_id_does_not_forge_log_lines(start_broker: StartBroker) -> None:
    """CR, LF and escapes of a client id stay inside its value."""
    broker = start_broker({"log.level": "debug", "mqtt.control_characters": True})
    name = "a\r\n2026-01-01 forged  \x1b[31m"
    with Wire(broker.port) as client:
        data = name.encode()
        body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(data).to_bytes(2, "big") + data
        client.send(bytes([0x10, len(body)]) + body)
        client.expect("connack")
    broker.wait_for_log("ended", client_id=name)
    assert not any(line["level"] == "raw" for line in broker.log)
