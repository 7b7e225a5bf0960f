"""Rewrite rules and configured subscriptions give no client more than its rights."""

import signal
from pathlib import Path

import pytest

from tests.conftest import StartBroker
from tests.harness.broker_process import BrokerProcess
from tests.protocol.wire import Wire
from tests.security.access_files import AccessFiles, counted, login


@pytest.fixture
def store() -> str:
    """Rights are checked by one node."""
    return "memory"


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    files = AccessFiles(tmp_path)
    files.users("ada", "bob")
    return files


def test_rights_are_those_of_the_new_topic(files: AccessFiles, start_broker: StartBroker) -> None:
    """A right to a topic that a rule leads away from is none to the topic that it leads to."""
    files.rules("pattern readwrite home/%u/#", "pattern readwrite secret/#", "user bob", "topic read #")
    rules = '[{"source": "me/#", "target": "home/%u/$1"}, {"source": "secret/#", "target": "vault/$1"}]'
    broker = files.start(start_broker, mqtt__rewrite=rules)
    with login(broker, "bob", "b") as bob, login(broker, "ada", "a") as ada:
        bob.send("subscribe 1 #:0")
        bob.expect("suback 1 0")
        ada.send("subscribe 1 me/+:0 secret/x:0")
        ada.expect("suback 1 0 0x80")
        ada.send("publish secret/x denied")
        ada.send("publish me/x granted")
        ada.expect("publish home/ada/x granted")
        bob.expect("publish home/ada/x granted")
        assert counted(broker, "publish_denied") == 1
        assert counted(broker, "subscribe_denied") == 1
        broker.wait_for_log("publish denied", topic="vault/x")


def test_a_will_gets_the_new_topic_before_its_rights_are_checked(files: AccessFiles, start_broker: StartBroker) -> None:
    files.rules("pattern readwrite home/%u/#")
    rules = '[{"source": "me/#", "target": "home/%u/$1"}, {"source": "home/ada/away", "target": "elsewhere"}]'
    broker = files.start(start_broker, mqtt__rewrite=rules)
    with login(broker, "ada", "watcher") as watcher:
        watcher.send("subscribe 1 me/#:0")
        watcher.expect("suback 1 0")
        with Wire(broker.port, name="w") as client:
            client.send("connect user=ada pass=ada will=me/gone message=x")
            client.expect("connack")
            client.drop()
        watcher.expect("publish home/ada/gone x")
        with Wire(broker.port, name="w") as client:
            client.send("connect user=ada pass=ada will=home/ada/away message=x")
            client.expect("connack 5")


def test_a_configured_subscription_needs_the_right_to_read(files: AccessFiles, start_broker: StartBroker) -> None:
    files.rules("pattern readwrite open", "user ada", "topic readwrite closed")
    broker = files.start(start_broker, mqtt__auto_subscribe='[{"topic_filter": "open"}, {"topic_filter": "closed"}]')
    with login(broker, "ada", "a") as ada, login(broker, "bob", "b") as bob:
        ada.send("publish closed 1")
        ada.send("publish open 2")
        ada.expect("publish closed 1")
        ada.expect("publish open 2")
        bob.expect("publish open 2")
        assert counted(broker, "subscribe_denied") == 1


def test_a_configured_subscription_is_for_its_users(files: AccessFiles, start_broker: StartBroker) -> None:
    rules = '[{"topic_filter": "of/%u/t", "user": "a*"}, {"topic_filter": "none", "listener": "other"}]'
    broker = files.start(
        start_broker, mqtt__auto_subscribe=rules, auth__allow_anonymous=True, listeners__other__listen="127.0.0.1:0"
    )
    with login(broker, "ada", "a") as ada, login(broker, "bob", "b") as bob:
        for topic in ("of/bob/t", "of/ada/t", "none"):
            bob.send(f"publish {topic} x")
        ada.expect("publish of/ada/t x")
        bob.expect_nothing()
        ada.expect_nothing()


def test_rules_follow_the_configuration(files: AccessFiles, tmp_path: Path) -> None:
    """At SIGHUP, for connected clients too; a rule that is wrong changes nothing."""
    configuration = tmp_path / "flockmq.toml"

    def configure(*rules: tuple[str, str]) -> None:
        tables = [f'[[mqtt.rewrite]]\nsource = "{source}"\ntarget = "{target}"\n' for source, target in rules]
        configuration.write_text(f'[auth]\npassword_file = "{files.passwords}"\n' + "".join(tables))

    configure(("me/#", "home/%u/$1"))
    broker = BrokerProcess(tmp_path, arguments=["--config", str(configuration)]).start()
    try:
        with login(broker, "bob", "b") as bob, login(broker, "ada", "a") as ada:
            bob.subscribe("#:0")
            ada.subscribe("me/kept:0")  # of the rule then in force
            for rules, topic in (
                ([], "home/ada/x"),
                ([("me/#", "of/%c/$1")], "me/x"),
                ([("me/#", "of/+/$1")], "of/a/x"),
                ([("me/#", "last/$1")], "of/a/x"),
                ([], "last/x"),
            ):
                ada.send("publish me/x 1")
                assert bob.packet().topic_name == topic
                configure(*rules)
                since = len(broker.log)
                broker.signal(signal.SIGHUP)
                broker.wait_for_log("configuration", since=since)
            ada.send("publish home/ada/kept 2")
            ada.expect("publish home/ada/kept 2")
    finally:
        broker.close()
