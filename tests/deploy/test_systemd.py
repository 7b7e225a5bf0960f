"""deploy/systemd/flockmq.service: judged by systemd's own tools, then run, sandbox and all, by a real systemd."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.broker import sd_notify
from flockmq.cluster.life import DRAIN_STEP_SECONDS, DRAIN_STEPS, STOP_SECONDS
from flockmq.cluster.shard import LEAVE_SECONDS
from tests.conftest import StartRedis
from tests.deploy.systemd_process import PLACE, SystemdProcess, unavailable
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "flockmq.service"
COMMAND = "/opt/flockmq/bin/flockmq serve"
MAX_EXPOSURE = 15  # of 100, as `systemd-analyze security` counts

StartSystemd = Callable[..., SystemdProcess]


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=DEADLINE)


def installed(directory: Path) -> Path:
    """The unit with a command that is there."""
    path = directory / "flockmq.service"
    command = Path(sys.executable).with_name("flockmq")
    path.write_text(UNIT.read_text().replace(COMMAND.split()[0], str(command)))
    return path


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", installed(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_misspelt_line_is_noticed(tmp_path: Path) -> None:
    path = installed(tmp_path)
    path.write_text(path.read_text().replace("ProtectClock", "ProtectClocks"))
    assert "ProtectClocks" in analyze("verify", "--man=no", path).stderr


def test_the_sandbox_is_as_tight_as_it_was() -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", UNIT)
    assert done.returncode == 0, done.stdout


def test_there_is_time_to_stop() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found
    assert (
        int(found[1]) > 15 + DRAIN_STEPS * DRAIN_STEP_SECONDS + STOP_SECONDS + LEAVE_SECONDS
    )  # 15: the drain that other files set


@pytest.fixture
def start_systemd(tmp_path: Path) -> Iterator[StartSystemd]:
    """Starts a systemd with the unit, given a node's settings. Its Python is bound to where the sandbox lets it be."""
    if reason := unavailable():
        pytest.skip(reason)
    started: list[SystemdProcess] = []

    def start(port: int, **variables: object) -> SystemdProcess:
        site = next(path for path in map(Path, sys.path) if path.name == "site-packages")
        tmp_path.chmod(0o755)
        (tmp_path / "flockmq.toml").write_text(f'listen = ["127.0.0.1:{port}"]\n')
        (tmp_path / "environment").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        python = f"{PLACE}/python/bin/{Path(sys.executable).resolve().name}"
        text = UNIT.read_text().replace(COMMAND, f"{python} -m flockmq.broker.cli serve")
        text = text.replace("/etc/flockmq/", f"{PLACE}/directory/")
        text = text.replace("[Unit]", "[Unit]\nDefaultDependencies=no")
        found = f"PYTHONPATH={PLACE}/tree/build/import:{PLACE}/site LD_LIBRARY_PATH={PLACE}/python/lib"
        logged = f"StandardError=append:{PLACE}/directory/log"
        text = text.replace("[Service]\n", f"[Service]\nEnvironment={found}\n{logged}\n")
        binds = {"python": Path(sys.base_prefix), "tree": ROOT, "site": site}
        systemd = SystemdProcess(tmp_path, {"flockmq.service": text}, binds)
        started.append(systemd)
        done = systemd.run("systemctl", "start", "flockmq")
        assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
        return systemd

    yield start
    for systemd in started:
        systemd.close()


def status_of(systemd: SystemdProcess) -> str:
    """The kernel's status of the service's process."""
    return systemd.run("cat", f"/proc/{systemd.show('flockmq', 'MainPID')}/status").stdout


def test_a_node_lives_in_the_sandbox(start_systemd: StartSystemd, tmp_path: Path) -> None:
    """Started means ready; it keeps what it has over kill -9, reloads, and stops cleanly."""
    port = free_port()
    systemd = start_systemd(port)
    with SocketClient(port, "a") as client:  # the moment that `systemctl start` has returned
        client.send(Publish("a/b", b"kept", qos=1, retain=True, packet_id=1))
        client.receive()
    assert systemd.run("systemctl", "reload", "flockmq").returncode == 0
    until(lambda: "configuration read" in (tmp_path / "log").read_text())
    for signum, state in (("STOP", "T"), ("CONT", "S")):  # as for a backup
        assert systemd.run("systemctl", "kill", "--signal", signum, "flockmq").returncode == 0
        until(lambda state=state: f"State:\t{state}" in status_of(systemd))
    systemd.run("systemctl", "kill", "--signal", "KILL", "flockmq")
    until(lambda: systemd.show("flockmq", "NRestarts") == "1" and systemd.show("flockmq", "ActiveState") == "active")
    with SocketClient(port, "b") as client:
        client.subscribe(("a/b", 0))
        kept = client.receive()
        assert isinstance(kept, Publish)
        assert kept.payload == b"kept"
    assert systemd.run("systemctl", "stop", "flockmq").returncode == 0
    assert systemd.show("flockmq", "Result") == "success"
    assert "stopped" in (tmp_path / "log").read_text().splitlines()[-1]


def test_workers_live_in_the_sandbox(start_systemd: StartSystemd, start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    variables = {"FLOCKMQ_CLUSTER_WORKERS": 2, "FLOCKMQ_CLUSTER_REDIS": redis.url, "FLOCKMQ_CLUSTER_NODE_NAME": "w"}
    port = free_port()
    systemd = start_systemd(port, **variables)
    with redis.client() as client:
        until(lambda: [client.hget(f"mq:node:{node}", "state") for node in client.hkeys("mq:nodes")] == ["ready"] * 2)
    until(lambda: (tmp_path / "log").read_text().count("is ready") == 2)
    assert systemd.run("systemctl", "stop", "flockmq").returncode == 0
    assert systemd.show("flockmq", "Result") == "success"
    assert "did not end cleanly" not in (tmp_path / "log").read_text()


def test_workers_start_a_redis_in_the_sandbox(start_systemd: StartSystemd, tmp_path: Path) -> None:
    """Without a Redis of the user's; its data survives a restart of the unit."""
    port = free_port()
    systemd = start_systemd(port, FLOCKMQ_CLUSTER_WORKERS=2)
    with SocketClient(port, "a") as client:
        client.send(Publish("a/b", b"kept", qos=1, retain=True, packet_id=1))
        assert client.receive() is not None
    until(lambda: (tmp_path / "log").read_text().count("is ready") == 2)
    assert systemd.run("systemctl", "restart", "flockmq").returncode == 0
    until(lambda: (tmp_path / "log").read_text().count("is ready") == 4)
    with SocketClient(port, "b") as client:
        client.subscribe(("a/b", 0))
        kept = client.receive()
        assert isinstance(kept, Publish)
        assert kept.payload == b"kept"
    assert systemd.run("systemctl", "stop", "flockmq").returncode == 0
    assert systemd.show("flockmq", "Result") == "success"
    assert "did not end cleanly" not in (tmp_path / "log").read_text()


def test_users_are_made_as_the_unit_says(start_systemd: StartSystemd, tmp_path: Path) -> None:
    """By root, in the directory of a user who is there only while the service runs; hashing works in the sandbox."""
    port = free_port()
    systemd = start_systemd(port)
    directory = systemd.run("readlink", "-f", "/var/lib/flockmq").stdout.strip()
    python = f"{PLACE}/python/bin/{Path(sys.executable).resolve().name}"
    found = f"PYTHONPATH={PLACE}/tree/build/import:{PLACE}/site LD_LIBRARY_PATH={PLACE}/python/lib"
    made = systemd.run(
        "sh", "-c", f"echo of-ada | {found} {python} -m flockmq.broker.cli passwd {directory}/passwords ada"
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "flockmq.toml").write_text(
        f'listen = ["127.0.0.1:{port}"]\n[auth]\npassword_file = "passwords"\nfailure_delay = 0\n'
    )
    assert systemd.run("systemctl", "reload", "flockmq").returncode == 0
    until(lambda: "configuration read" in (tmp_path / "log").read_text())
    for password, code in ((b"of-ada", 0), (b"guess", 4)):
        with SocketClient(port, "a", username="ada", password=password) as client:
            assert client.connack is not None and client.connack.reason_code == code


def test_a_wrong_configuration_is_not_tried_again(start_systemd: StartSystemd, tmp_path: Path) -> None:
    systemd = start_systemd(free_port())
    systemd.run("systemctl", "stop", "flockmq")
    (tmp_path / "flockmq.toml").write_text("lisen = 3\n")
    assert systemd.run("systemctl", "start", "flockmq").returncode != 0
    until(lambda: systemd.show("flockmq", "ActiveState") == "failed")
    assert systemd.show("flockmq", "NRestarts") == "0"
    assert "did you mean listen?" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_is_told(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"\0flockmq-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        sd_notify.notify("READY=1")
        assert manager.recv(100) == b"READY=1"


def test_a_manager_that_does_not_read_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        waiting = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
            other.setblocking(False)
            while other.sendto(b"WATCHDOG=1", str(tmp_path / "notify")):
                waiting += 1
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        sd_notify.notify("READY=1")
        assert [manager.recv(100) for _ in range(waiting + 1)][-1] == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "x" * 200])
def test_nobody_to_tell_is_no_fault(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    sd_notify.notify("READY=1")


def test_a_node_tells_when_it_lets_clients_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        broker = BrokerProcess(tmp_path)
        broker.port = free_port()
        broker.spawn()
        assert manager.recv(100) == b"READY=1"
        SocketClient(broker.port, "a").close()
        assert broker.stop() == 0
