"""deploy/homeassistant: the add-on with a real node, real clients, and a server that speaks the Supervisor's API."""

import json
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.homeassistant.addon_process import ADDON, AddonProcess
from tests.deploy.homeassistant.supervisor_server import SupervisorServer
from tests.harness.broker_process import ROOT, until
from tests.harness.certificates import Authority
from tests.harness.deadline import DEADLINE
from tests.harness.mosquitto_process import MosquittoProcess

Shared = tuple[AddonProcess, SupervisorServer]
TOKEN = "the token of the add-on"
OWN = socket.gethostname()  # the slug of this add-on, as far as it can tell
# `pw -p foo` of the Mosquitto add-on, from its documentation.
FOO = (
    "PBKDF2$sha512$100000$qsU7xQ8YCV/9nRuBBJVTxA==$"
    "jqw94Ej3aEr97UofY6rClmVCRkTdDiubQW0A6ZYmUI+pZjW9Hax+2w2FeYB3y5ut1SliB7+HAwIl2iONLKkohw=="
)


@pytest.fixture
def supervisor() -> Iterator[SupervisorServer]:
    """A Supervisor; Home Assistant has the user ada."""
    server = SupervisorServer(TOKEN, OWN).start()
    server.users["ada"] = "engine"
    yield server
    server.stop()


@pytest.fixture
def addon(supervisor: SupervisorServer, tmp_path: Path) -> Iterator[AddonProcess]:
    """The add-on, installed and not started."""
    process = AddonProcess(tmp_path / "root", supervisor, TOKEN)
    yield process
    assert process.stop() == 0, process.log()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """An add-on that tests share, with two local users."""
    server = SupervisorServer(TOKEN, OWN).start()
    process = AddonProcess(tmp_path_factory.mktemp("addon") / "root", server, TOKEN)
    yield process.start(logins=[login("pump", "secret"), login("valve", FOO, password_pre_hashed=True)]), server
    assert process.stop() == 0, process.log()
    server.stop()


@pytest.fixture
def shared(started: Shared) -> Shared:
    """The add-on that tests share, and its Supervisor, which nobody has asked. Home Assistant has ada, of this test."""
    addon, supervisor = started
    supervisor.asked.clear()
    supervisor.users = {"ada": secrets.token_urlsafe()}
    return addon, supervisor


def publish(addon: AddonProcess, *options: str, port: int = 0) -> "subprocess.CompletedProcess[str]":
    """Publish a retained message by mosquitto_pub."""
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port or addon.port), "-q", "1", "-t", "t", "-m", "hello"]
    return subprocess.run([*command, "-r", *options], capture_output=True, text=True, timeout=DEADLINE)


def retained(addon: AddonProcess, topic_filter: str, *options: str) -> str:
    """What mosquitto_sub gets."""
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(addon.port), "-t", topic_filter, "-C", "1", "-W", "10"]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=DEADLINE).stdout


def is_refused(done: "subprocess.CompletedProcess[str]") -> bool:
    """Whether the node has refused the credentials of a client: wrong ones, or none."""
    found = re.search(r"not authori[sz]ed|bad user ?name or password", done.stderr, re.IGNORECASE)
    return done.returncode != 0 and found is not None


def logs_in(addon: AddonProcess, username: str, password: str) -> bool:
    """Whether mosquitto_pub is accepted; if not, because of its credentials."""
    done = publish(addon, "-u", username, "-P", password)
    assert done.returncode == 0 or is_refused(done), done.stderr
    return done.returncode == 0


def login(username: str, password: str, **more: Any) -> dict[str, Any]:
    """A local user, as the Supervisor writes it."""
    return {"username": username, "password": password, **more}


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_users_of_home_assistant_log_in(shared: Shared, version: str) -> None:
    addon, supervisor = shared
    right = ("-V", version, "-u", "ada", "-P", supervisor.users["ada"])
    assert publish(addon, *right).returncode == 0
    assert retained(addon, "t", *right) == "hello\n"
    for wrong in (["-u", "ada", "-P", "wrong"], ["-u", "bob", "-P", "engine"], ["-u", "ada"], []):
        assert is_refused(publish(addon, "-V", version, *wrong))
    assert set(supervisor.asked) == {"ada", "bob"}


def test_a_client_that_comes_back_is_known_for_a_while(shared: Shared) -> None:
    addon, supervisor = shared
    for _ in range(3):
        assert publish(addon, "-u", "ada", "-P", supervisor.users["ada"], "-i", "pub").returncode == 0
    assert supervisor.asked == ["ada"]


def test_home_assistant_and_add_ons_learn_of_the_broker(shared: Shared) -> None:
    addon, supervisor = shared
    (told,) = supervisor.discovered
    assert supervisor.service["app"] == OWN
    for config, user in ((told, "homeassistant"), (supervisor.service, "addons")):
        assert (config["host"], config["port"], config["ssl"]) == (socket.gethostname(), 1883, False)
        assert config["username"] == user
        assert len(config["password"]) == 64
        assert logs_in(addon, user, config["password"])
        assert not logs_in(addon, user, "wrong")
    assert not supervisor.asked, "their passwords are no matter of Home Assistant"


def test_an_end_takes_the_offer_back(addon: AddonProcess, supervisor: SupervisorServer) -> None:
    addon.start()
    assert supervisor.service
    assert addon.stop() == 0
    assert not supervisor.service


def test_they_keep_their_passwords(addon: AddonProcess, supervisor: SupervisorServer) -> None:
    addon.start(logins=[login("pump", "secret"), login("valve", "old")])
    first = (addon.root / "data" / "passwords").read_text().splitlines()
    assert addon.stop() == 0
    addon.start(logins=[login("pump", "secret"), login("valve", "new")])
    second = (addon.root / "data" / "passwords").read_text().splitlines()
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, True, True, False]
    assert supervisor.discovered[0] == supervisor.discovered[1]
    for name in ("passwords", "system_users.json"):
        assert (addon.root / "data" / name).stat().st_mode & 0o077 == 0


def test_local_users(shared: Shared) -> None:
    addon, supervisor = shared
    assert logs_in(addon, "pump", "secret")
    assert logs_in(addon, "valve", "foo")
    assert not logs_in(addon, "valve", "bar")
    assert not supervisor.asked


def test_messages_survive_a_restart(addon: AddonProcess) -> None:
    addon.start()
    assert logs_in(addon, "ada", "engine")
    assert addon.stop() == 0
    assert (addon.root / "data" / "flockmq.db").exists()
    addon.start()
    assert retained(addon, "t", "-u", "ada", "-P", "engine") == "hello\n"


def test_while_home_assistant_fails_its_users_may_come_back_later(shared: Shared) -> None:
    """They are not told that their password is wrong; local users are served."""
    addon, supervisor = shared
    supervisor.works = False
    done = publish(addon, "-u", "ada", "-P", supervisor.users["ada"])
    assert re.search(r"(server|broker) unavailable", done.stderr, re.IGNORECASE), done.stderr
    assert logs_in(addon, "pump", "secret")
    supervisor.works = True
    assert logs_in(addon, "ada", supervisor.users["ada"])
    assert "can't log in" in addon.log()


def test_a_password_that_is_not_text_is_no_failure_of_home_assistant(shared: Shared) -> None:
    """Five failures in a row would lock out all users for a while."""
    addon, supervisor = shared
    for _ in range(6):
        command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(addon.port), "-u", "ada", "-P", b"\xff\xfe", "-t", "t"]
        assert is_refused(subprocess.run([*command, "-m", "x"], capture_output=True, text=True, timeout=DEADLINE))
    assert logs_in(addon, "ada", supervisor.users["ada"])
    assert supervisor.asked == ["ada"]


def test_a_wrong_token_lets_no_user_in(supervisor: SupervisorServer, tmp_path: Path) -> None:
    addon = AddonProcess(tmp_path / "root", supervisor, "wrong")
    addon.spawn(logins=[login("pump", "secret")])
    try:
        until(lambda: publish(addon, "-u", "pump", "-P", "secret").returncode == 0, "local users are served")
        assert publish(addon, "-u", "ada", "-P", "engine").returncode != 0
        assert "status 403" in addon.log()
        assert not supervisor.discovered
    finally:
        assert addon.stop() == 0


def test_certificates_of_home_assistant(addon: AddonProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server, client = authority.server(), authority.client("pump")
    for name, path in (("fullchain.pem", server.cert), ("privkey.pem", server.key), ("ca.pem", authority.ca)):
        (addon.root / "ssl" / name).write_bytes(Path(path).read_bytes())
    user = ("-u", "ada", "-P", "engine", "--cafile", authority.ca)
    addon.start(tls=True)
    assert publish(addon, *user, port=addon.tls_port).returncode == 0
    assert addon.stop() == 0
    addon.start(tls=True, require_certificate=True, cafile="ca.pem")
    assert publish(addon, *user, port=addon.tls_port).returncode != 0
    assert publish(addon, *user, "--cert", client.cert, "--key", client.key, port=addon.tls_port).returncode == 0


def test_an_offer_that_a_crash_has_left_is_renewed(addon: AddonProcess, supervisor: SupervisorServer) -> None:
    supervisor.service = {"host": "old", "port": 1, "app": OWN.replace("-", "_")}
    addon.start()
    assert supervisor.service["port"] == 1883


def test_the_offer_of_another_add_on_stays(addon: AddonProcess, supervisor: SupervisorServer) -> None:
    other = {"host": "core-mosquitto", "port": 1883, "app": "core_mosquitto"}
    supervisor.service = dict(other)
    addon.spawn()
    until(lambda: "already provided by core_mosquitto" in addon.log(), "the add-on has tried")
    assert logs_in(addon, "ada", "engine")
    assert addon.stop() == 0
    assert supervisor.service == other


def test_a_dead_node_ends_the_add_on(addon: AddonProcess, supervisor: SupervisorServer) -> None:
    """So that the Supervisor's watchdog starts it again."""
    addon.start()
    addon.kill_node()
    assert addon.wait() == 128 + 9
    assert not supervisor.service


def test_a_file_of_the_user_has_all_other_settings(addon: AddonProcess) -> None:
    (addon.root / "config" / "acl").write_text("topic read #\nuser homeassistant\ntopic readwrite #\n")
    (addon.root / "config" / "flockmq.toml").write_text(f'auth.acl_file = "{addon.root}/config/acl"\nlisten = [":1"]\n')
    addon.start()
    publish(addon, "-u", "ada", "-P", "engine")
    assert retained(addon, "t", "-u", "ada", "-P", "engine", "-W", "1") == ""


def test_the_state_of_mosquitto_is_taken_over(addon: AddonProcess, tmp_path: Path) -> None:
    state = tmp_path / "mosquitto"
    state.mkdir()
    mosquitto = MosquittoProcess(state, "user root", "persistence true", f"persistence_location {state}/")
    mosquitto.start()
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(mosquitto.port), "-q", "1", "-r", "-m", "config"]
    subprocess.run([*command, "-t", "homeassistant/sensor"], check=True, timeout=DEADLINE)
    mosquitto.stop()
    (addon.root / "config" / "mosquitto.db").write_bytes((state / "mosquitto.db").read_bytes())
    addon.start()
    assert retained(addon, "homeassistant/#", "-u", "ada", "-P", "engine") == "config\n"
    assert addon.stop() == 0
    addon.start()
    assert "taking over" not in addon.log()


REFUSED = {
    "no authority": ({"require_certificate": True}, "require_certificate needs cafile"),
    "a reserved name": ({"logins": [login("addons", "x")]}, "'addons' can't be the name"),
    "a name that can't be": ({"logins": [login("a:b", "x")]}, "'a:b' can't be the name"),
    "a damaged hash": ({"logins": [login("a", "PBKDF2$x", password_pre_hashed=True)]}, "the hash of 'a'"),
}


@pytest.mark.parametrize(("options", "word"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_options_are_told(options: dict[str, Any], word: str, addon: AddonProcess) -> None:
    addon.spawn(**options)
    assert addon.wait() == 2
    assert word in addon.log()
    assert "Traceback" not in addon.log()


def test_a_damaged_file_of_mosquitto_is_told(addon: AddonProcess) -> None:
    (addon.root / "config" / "mosquitto.db").write_bytes(b"nothing")
    addon.spawn()
    assert addon.wait() == 2
    assert "could not be taken over" in addon.log()
    assert not list((addon.root / "data").glob("flockmq.db*"))


def test_the_files_of_the_add_on_agree() -> None:
    config = yaml.safe_load((ADDON / "config.yaml").read_text())
    texts = yaml.safe_load((ADDON / "translations" / "en.yaml").read_text())
    assert texts["configuration"].keys() == config["schema"].keys()
    assert texts["network"].keys() == config["ports"].keys()
    assert config["options"].keys() == {name for name, kind in config["schema"].items() if not str(kind).endswith("?")}
    dockerfile = (ADDON / "Dockerfile").read_text()
    assert re.findall(r"FLOCKMQ_VERSION=(\S+)", dockerfile) == [config["version"]]
    assert f"## {config['version']}" in (ADDON / "CHANGELOG.md").read_text()
    assert (ADDON.parent / "repository.yaml").exists()
    assert json.loads(json.dumps(config["options"])) == config["options"]
    assert not [path for path in ADDON.rglob("*") if path.is_symlink()], "the Supervisor copies the folder"
    assert ADDON.is_relative_to(ROOT)


def test_ports_in_the_container_are_those_of_the_configuration() -> None:
    options = (ADDON / "flockmq_addon" / "options.py").read_text()
    ports = {int(port) for port in re.findall(r":(\d{4})\"", options)}
    config = yaml.safe_load((ADDON / "config.yaml").read_text())
    assert {f"{port}/tcp" for port in ports} == config["ports"].keys()
    assert config["watchdog"] == "http://[HOST]:8080/healthz"
