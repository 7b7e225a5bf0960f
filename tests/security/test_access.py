"""Rights of clients: known attacks on access control of MQTT brokers, each against a real node.

The names have the ids of advisories where there are some.
"""

import re
import signal
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Disconnect
from tests.conftest import StartBroker
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.socket_client import SocketClient
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, WRONG, AccessFiles, counted, login, refused


@pytest.fixture
def store() -> str:
    """Rights are decided alike over each store."""
    return "memory"


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    return AccessFiles(tmp_path)


def test_who_is_not_known_is_not_let_in(files: AccessFiles, start_broker: StartBroker) -> None:
    files.users("ada", "bob")
    broker = files.start(start_broker)
    login(broker, "ada").close()
    refused(broker, "", NOT_AUTHORIZED)
    refused(broker, "user=ada", WRONG)
    refused(broker, "user=ada pass=bob", WRONG)
    refused(broker, "user=ada pass=", WRONG)
    refused(broker, "user=mallory pass=ada", WRONG)
    refused(broker, "user= pass=", WRONG)
    assert counted(broker, "auth_failures") == 6
    reasons = {"it sent no credentials", "wrong password", "unknown user"}
    until(lambda: {line.get("reason") for line in broker.log if line["event"] == "connection refused"} == reasons)
    assert not any("pass" in name or value == "bob" for line in broker.log for name, value in line.items())


def test_a_password_without_a_user_name_is_a_fault_of_the_protocol(
    files: AccessFiles, start_broker: StartBroker
) -> None:
    files.users("ada")
    broker = files.start(start_broker)
    for level, name in ((4, "0004 =MQTT 04"), (3, "0006 =MQIsdp 03")):
        with Wire(broker.port, level) as client:
            body = f"{name} 42 0000 0001 =c 0003 =ada"  # clean session and password
            size = 2 + (4 if level == 4 else 6) + 1 + 1 + 2 + 3 + 5
            client.send(f"hex 10 {size:02x} {body}")
            assert client.receive() is None
    login(broker, "ada").close()


def test_a_public_listener_needs_to_know_who_comes(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, listen="0.0.0.0:0")
    broker.spawn()
    assert broker.wait() == 2
    assert len(broker.log) == 1
    line = broker.log[0]["event"]
    assert "0.0.0.0:0 can be reached from other machines" in line
    assert "flockmq passwd" in line and "auth.allow_anonymous=true" in line


@pytest.mark.parametrize("address", ["[::]:0", "10.0.0.1:1883", "example.invalid:1883"])
def test_every_address_counts(address: str, tmp_path: Path) -> None:
    for flag in ("--listen", "--proxy-listen"):
        broker = BrokerProcess(tmp_path, arguments=[flag, address])
        broker.spawn()
        assert broker.wait() == 2
        assert f"{address} can be reached" in broker.log[0]["event"]


def test_what_comes_through_a_load_balancer_is_not_near(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, arguments=["--proxy-listen", "127.0.0.1:0"])
    broker.spawn()
    assert broker.wait() == 2
    assert "127.0.0.1:0 is reached through a load balancer" in broker.log[0]["event"]


# ---- rules ----


@pytest.mark.parametrize("name", ["#", "+", "a/#", "a/b", "+/+"])
def test_cve_2017_7650_a_name_does_not_widen_a_pattern(
    name: str, files: AccessFiles, start_broker: StartBroker
) -> None:
    files.users("ada", f"u{name}")
    files.rules("pattern readwrite by-user/%u/#", "pattern readwrite by-id/%c/#")
    broker = files.start(start_broker)
    with login(broker, "ada", "good") as ada:
        ada.subscribe("by-user/ada/x:1", "by-id/good/x:1")
        with login(broker, f"u{name}", name) as mallory:
            mallory.send("subscribe 1 by-user/#:0 by-user/ada/x:0 by-id/#:0 by-id/good/x:0 by-user/+/x:0")
            mallory.expect("suback 1 0x80 0x80 0x80 0x80 0x80")
            mallory.send("publish by-user/ada/x theft q1 id=1", "publish by-id/good/x theft q1 id=2")
            mallory.expect("puback 1", "puback 2")
        ada.expect_nothing()
    assert counted(broker, "publish_denied") == 2


def test_cve_2018_12546_a_retained_message_is_not_delivered_once_the_right_is_gone(
    files: AccessFiles, start_broker: StartBroker
) -> None:
    """The right to read it. It stays if its publisher has lost the right to publish: no publisher is noted with it."""
    files.users("ada", "bob")
    files.rules("user ada", "topic readwrite #", "user bob", "topic read plan/#")
    broker = files.start(start_broker)
    with login(broker, "ada") as ada, login(broker, "bob") as bob:
        ada.send("publish plan/a secret q1 id=1 retain")
        ada.expect("puback 1")
        bob.subscribe("plan/#:0")
        bob.expect("publish plan/a secret retain")
        files.rules("user ada", "topic readwrite #", "user bob", "topic read plan/#", "topic deny plan/a")
        reread(broker)
        bob.subscribe("plan/+:0")
        ada.send("publish plan/a again q1 id=2", "publish plan/b open q1 id=3")
        ada.expect("puback 2", "puback 3")
        bob.expect("publish plan/b open")
        bob.expect_nothing()


def reread(broker: BrokerProcess) -> None:
    """The broker reads its files again."""
    since = len(broker.log)
    broker.signal(signal.SIGHUP)
    broker.wait_for_log("configuration", since=since)


def test_cve_2021_34434_a_subscription_of_a_session_delivers_what_may_be_read_by_now(
    files: AccessFiles, start_broker: StartBroker
) -> None:
    files.users("ada", "bob")
    files.rules("user ada", "topic readwrite #", "user bob", "topic read a/#", "topic read b/#")
    broker = files.start(start_broker)
    login(broker, "bob", line="clean=0").subscribe("a/x:1", "b/x:1").close()
    with login(broker, "ada") as ada:
        ada.send("publish a/x before q1 id=1", "publish b/x before q1 id=2")
        ada.expect("puback 1", "puback 2")
        files.rules("user ada", "topic readwrite #", "user bob", "topic read b/#")
        reread(broker)
        ada.send("publish a/x after q1 id=3", "publish b/x after q1 id=4")
        ada.expect("puback 3", "puback 4")
    with Wire(broker.port, name="bob") as bob:
        bob.connect("user=bob pass=bob clean=0", "connack present")
        came = [bob.packet() for _ in range(2)]
        assert [(packet.topic_name, packet.payload) for packet in came] == [("b/x", b"before"), ("b/x", b"after")]
        for packet in came:
            bob.send(f"puback {packet.packet_id}")
        bob.expect_nothing()


def test_nats_2026_26_a_deny_under_a_broad_grant_holds_for_retained_and_queued_messages(
    files: AccessFiles, start_broker: StartBroker
) -> None:
    files.users("ada", "bob")
    files.rules("user ada", "topic readwrite #", "user bob", "topic read #", "topic deny a/secret")
    broker = files.start(start_broker)
    login(broker, "bob", line="clean=0").subscribe("#:1").close()
    with login(broker, "ada") as ada:
        ada.send("publish a/secret x q1 id=1 retain", "publish a/open x q1 id=2 retain")
        ada.expect("puback 1", "puback 2")
    with Wire(broker.port, name="bob") as bob:
        bob.connect("user=bob pass=bob clean=0", "connack present")
        queued = bob.packet()
        assert (queued.topic_name, queued.retain) == ("a/open", False)
        bob.send(f"puback {queued.packet_id}")
        bob.send("subscribe 7 +/+:0 a/secret:0")
        bob.expect("suback 7 0 0x80", "publish a/open x retain")
        bob.expect_nothing()


def test_cve_2017_7652_a_damaged_file_leaves_no_open_door(files: AccessFiles, start_broker: StartBroker) -> None:
    """A file that can't be read at SIGHUP leaves the earlier rules."""
    files.users("ada")
    files.rules("user ada", "topic readwrite a/#")
    broker = files.start(start_broker)
    good = files.passwords.read_text()
    for damaged in ("mallory:\n", "\n", "mallory", ""):
        files.passwords.write_text(good + damaged if damaged else "mallory\n")
        files.acl.write_text("topic readwrite #\nuser ada\nnonsense\n")
        reread(broker)
        refused(broker, "user=mallory pass=", WRONG)
        refused(broker, "", NOT_AUTHORIZED)
        with login(broker, "ada") as ada:
            ada.send("subscribe 1 b/#:0 a/#:0")
            ada.expect("suback 1 0x80 0")
    assert sum(line["event"] == "configuration not changed" for line in broker.log) == 4


@pytest.mark.parametrize("file", ["passwords", "acl"])
def test_a_damaged_file_stops_the_start(file: str, files: AccessFiles, tmp_path: Path) -> None:
    files.users("ada")
    files.rules("user ada", "topic readwrite #")
    (tmp_path / file).write_text("nonsense\n")
    broker = BrokerProcess(tmp_path, settings=files.settings())
    broker.spawn()
    assert broker.wait() == 2
    assert f"{file}:1: " in broker.log[-1]["event"]


def test_a_line_with_a_fault_is_logged_and_others_are_served(files: AccessFiles, start_broker: StartBroker) -> None:
    files.users("ada", "bob", "eve")
    files.passwords.write_text(files.passwords.read_text() + "eve:\n")
    broker = files.start(start_broker)
    for name in ("ada", "bob"):
        login(broker, name).close()
    for password in ("eve", ""):
        refused(broker, f"user=eve pass={password}", WRONG)
    line = broker.wait_for_log("a line of the password file has a fault")
    assert line["line"] == f"{files.passwords}:4" and line["reason"].startswith("user 'eve' is not served")


def test_changed_files_act_on_who_is_connected(files: AccessFiles, start_broker: StartBroker) -> None:
    """Without a signal, too: the node looks."""
    files.users("ada", "bob")
    files.rules("user ada", "topic readwrite #", "user bob", "topic write last")
    broker = files.start(start_broker)
    with login(broker, "ada") as ada, login(broker, "bob", line="will=last message=word") as bob:
        ada.subscribe("#:0")
        files.users("ada")
        broker.wait_for_log("were reloaded")
        assert bob.receive() is None
        refused(broker, "user=bob pass=bob", WRONG)
        ada.expect_nothing()


def test_a_changed_password_ends_the_connections_that_used_it(files: AccessFiles, tmp_path: Path) -> None:
    """Its user's connections, and no others; a client with the new password is admitted."""
    files.users("ada", "bob")
    configuration = tmp_path / "flockmq.toml"
    configuration.write_text(
        f'[auth]\npassword_file = "{files.passwords}"\nfailure_delay = 0\nallow_anonymous = true\n'
    )
    broker = BrokerProcess(tmp_path, arguments=["--config", str(configuration)]).start()
    try:
        with (
            login(broker, "ada", line="will=last message=word") as ada,
            SocketClient(broker.port, "a5", level=5, username="ada", password=b"ada") as newer,
            login(broker, "bob") as bob,
            SocketClient(broker.port, "anybody") as anybody,
        ):
            bob.subscribe("last:0")
            reread(broker)  # with nothing changed
            files.comment("no password is changed by this")
            broker.wait_for_log("were reloaded")
            for client in (ada, bob):
                client.expect_nothing()
            files.users("ada", "bob", changed={"ada": "new"})
            assert ada.receive() is None
            goodbye = newer.receive()
            assert isinstance(goodbye, Disconnect) and goodbye.reason_code == 0x87
            assert goodbye.properties["reason_string"] == "the password of its user has been changed"
            assert newer.receive() is None
            assert bob.packet().topic_name == "last", "its will is published: its user may still do so"
            bob.expect_nothing()
            assert anybody.subscribe(("x", 0)) == [0]
            refused(broker, "user=ada pass=ada", WRONG)
            with Wire(broker.port, name="again").connect("user=ada pass=new") as again:
                reread(broker)
                again.expect_nothing()
    finally:
        broker.close()


def test_a_changed_password_ends_nothing_if_so_configured(files: AccessFiles, tmp_path: Path) -> None:
    files.users("ada")
    configuration = tmp_path / "flockmq.toml"
    text = f'[auth]\npassword_file = "{files.passwords}"\nfailure_delay = 0\nclose_on_password_change = '
    configuration.write_text(f"{text}false\n")
    broker = BrokerProcess(tmp_path, arguments=["--config", str(configuration)]).start()
    try:
        with login(broker, "ada") as ada:
            files.users("ada", changed={"ada": "new"})
            reread(broker)
            ada.expect_nothing()
            refused(broker, "user=ada pass=ada", WRONG)
            with Wire(broker.port, name="again").connect("user=ada pass=new") as again:
                configuration.write_text(f"{text}true\n")  # the old password has changed before
                reread(broker)
                assert ada.receive() is None
                again.expect_nothing()
    finally:
        broker.close()


def test_a_will_is_judged_when_it_is_published(files: AccessFiles, start_broker: StartBroker) -> None:
    files.users("ada", "bob")
    files.rules("user ada", "topic readwrite #", "user bob", "topic write last")
    broker = files.start(start_broker)
    refused(broker, "user=bob pass=bob will=other message=x", NOT_AUTHORIZED)
    with login(broker, "ada") as ada, login(broker, "bob", line="will=last message=word") as bob:
        ada.subscribe("last:0")
        files.rules("user ada", "topic readwrite #")
        reread(broker)
        bob.reset()
        until(lambda: counted(broker, "clients_connected") == 1, "bob is gone")
        ada.expect_nothing()


def test_cve_2026_33217_what_is_the_brokers_own_is_closed(files: AccessFiles, start_broker: StartBroker) -> None:
    files.users("ada", "bob")
    files.rules("user ada", "topic readwrite #", "user bob", "topic readwrite $SYS/broker/#")
    broker = files.start(start_broker)
    with login(broker, "ada") as ada, login(broker, "bob") as bob:
        ada.send("subscribe 1 $SYS/#:0 $MQTT/#:0 #:0")
        ada.expect("suback 1 0x80 0x80 0")
        bob.send("subscribe 1 $SYS/broker/version:0")
        bob.expect("suback 1 0")
        assert bob.packet().topic_name == "$SYS/broker/version"
        bob.send("publish $SYS/broker/version mine q1 id=2 retain")
        bob.expect("puback 2")
        bob.expect_nothing()
        ada.expect_nothing()


def test_cve_2017_7652_a_configuration_that_would_be_open_is_not_followed(files: AccessFiles, tmp_path: Path) -> None:
    files.users("ada")
    configuration = tmp_path / "flockmq.toml"
    configuration.write_text(f'[auth]\npassword_file = "{files.passwords}"\nfailure_delay = 0\n')
    broker = BrokerProcess(tmp_path, listen="0.0.0.0:0", arguments=["--config", str(configuration)]).start()
    try:
        configuration.write_text("[auth]\nfailure_delay = 0\n")
        reread(broker)
        assert "no authentication is configured" in broker.wait_for_log("configuration not changed")["error"]
        refused(broker, "", NOT_AUTHORIZED)
        login(broker, "ada").close()
    finally:
        broker.close()


def test_cve_2018_20145_each_listener_has_its_own_rules(files: AccessFiles, tmp_path: Path) -> None:
    """The rules of one listener hold for it, and for no other."""
    files.users("ada")
    files.rules("topic read public/#", "user ada", "topic readwrite #")
    configuration = tmp_path / "flockmq.toml"
    configuration.write_text(
        f'[auth]\npassword_file = "{files.passwords}"\nacl_file = "{files.acl}"\nfailure_delay = 0\n'
        '[listeners.guests]\nlisten = ["127.0.0.2:0"]\nauth.allow_anonymous = true\nauth.password_file = ""\n'
        '[listeners.free]\nlisten = ["127.0.0.3:0"]\nauth.allow_anonymous = true\nauth.acl_file = ""\n'
    )
    broker = BrokerProcess(tmp_path, arguments=["--config", str(configuration)]).start()
    try:
        ports = {
            host: int(port) for host, port in re.findall(r"([\d.]+):(\d+)", broker.wait_for_log("is ready")["listen"])
        }
        refused(broker, "", NOT_AUTHORIZED)
        for host, answers in (("127.0.0.2", [0, 128]), ("127.0.0.3", [0, 0])):
            with SocketClient(ports[host], "guest", host=host) as guest:
                assert guest.subscribe(("public/#", 0), ("private/#", 0)) == answers
        with SocketClient(ports["127.0.0.2"], "ada", host="127.0.0.2", username="ada", password=b"ada") as ada:
            assert ada.subscribe(("private/#", 0)) == [128], "nobody has verified who it is"
    finally:
        broker.close()
