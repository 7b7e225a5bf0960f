"""A will that is published later than the end of its connection is judged by the rules of then."""

import json
import signal
from pathlib import Path

import pytest

from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.protocol.wire import Wire
from tests.security.access_files import AccessFiles, counted, login
from tests.security.test_access import reread
from tests.security.test_stored_users import SETTINGS, client, users

RULES = ("user ada", "topic readwrite #", "user bob", "topic write bob/#", "user carl", "topic write carl/#")


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    made = AccessFiles(tmp_path)
    made.users("ada", "bob", "carl")
    made.rules(*RULES)
    return made


@pytest.fixture
def store() -> str:
    return "sqlite"


def retained(broker: Broker) -> list[str]:
    """The retained messages that ada finds, by topic."""
    with login(broker, "ada") as ada:
        ada.send("subscribe 1 +/will:0 ada/end:0")
        ada.expect("suback 1 0 0")
        ada.send("publish ada/end x")
        found = []
        while (topic := ada.packet().topic_name) != "ada/end":
            found.append(topic)
        return sorted(found)


def kill_with_wills(broker: Broker) -> None:
    """The node dies while bob and carl are connected, with wills."""
    clients = [login(broker, name, line=f"clean=0 will={name}/will message=x q1 retain") for name in ("bob", "carl")]
    broker.kill()
    for one in clients:
        one.drop()


def test_rules_that_changed_while_the_node_was_down(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker)
    kill_with_wills(broker)
    files.rules("user ada", "topic readwrite #", "user bob", "topic write other", "user carl", "topic write carl/#")
    broker.start()
    assert retained(broker) == ["carl/will"]


def test_a_user_that_was_removed_while_the_node_was_down(files: AccessFiles, start_broker: StartBroker) -> None:
    """A changed password is no reason to refuse a will: the client had the right one when it connected."""
    broker = files.start(start_broker)
    kill_with_wills(broker)
    files.users("ada", "carl", changed={"carl": "new"})
    broker.start()
    assert retained(broker) == ["carl/will"]


def test_rules_that_change_while_a_will_waits(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker)
    waits = "session_expiry_interval=1000 will.will_delay_interval=1000"
    for name in ("bob", "carl"):
        with Wire(broker.port, 5, name) as one:
            one.connect(f"user={name} pass={name} will={name}/will message=x retain {waits}")
            one.reset()
    until(lambda: counted(broker, "clients_connected") == 0, "both are gone")
    files.rules("user ada", "topic readwrite #", "user carl", "topic write carl/#")
    reread(broker)
    for name in ("bob", "carl"):
        login(broker, name).close()  # a clean start ends the session, and its will is due
    assert retained(broker) == ["carl/will"]


@pytest.mark.parametrize("restarts", [False, True])
def test_wills_of_a_dead_node_are_judged_by_the_users_of_the_store(start_cluster: StartCluster, restarts: bool) -> None:
    """The node that publishes them has not read these users before."""
    cluster = start_cluster({**SETTINGS, "cluster.lease": 1.5, "cluster.timeout": 0.7}, nodes="ab")
    a, b = cluster["a"], cluster["b"]
    users(a, "add", "ada", stdin="ada")
    clients = []
    for name in ("bob", "carl", "dan"):
        users(b, "add", name, f"topic write {name}/#", stdin=name)
        clients.append(client(a, name, line=f"will={name}/will message=x q1 retain"))
    if restarts:
        b.stop()
    else:
        b.signal(signal.SIGSTOP)
    a.kill()
    redis = cluster.redis.client()  # no node is there to ask
    redis.hdel("mq:users", "bob")
    dan = json.loads(redis.hget("mq:users", "dan"))
    redis.hset("mq:users", "dan", json.dumps({**dan, "rules": ["topic write other"]}))
    if restarts:
        b.start()
    else:
        b.signal(signal.SIGCONT)
    until(lambda: not cluster.redis.client().keys("mq:wills:*"), "all wills are settled", deadline=8)
    with client(b, "ada") as ada:
        ada.send("subscribe 1 +/will:0")
        ada.expect("suback 1 0")
        assert ada.packet().topic_name == "carl/will"
        ada.expect_nothing()
    for one in clients:
        one.drop()


def test_wills_of_stored_users_after_a_crash_and_after_a_delay(start_broker: StartBroker, store: str) -> None:
    """A node alone reads the users of these wills again, too: it has not cached them since its start."""
    broker = start_broker(SETTINGS)
    for name in ("ada", "bob", "carl", "dan"):
        users(broker, "add", name, f"topic write {name}/#", stdin=name)
    users(broker, "set-rules", "ada", "topic readwrite #")
    waits = "session_expiry_interval=1000 will.will_delay_interval=1000"
    for name in ("bob", "carl"):
        with Wire(broker.port, 5, name) as one:
            one.connect(f"user={name} pass={name} will={name}/will message=x retain {waits}")
            one.reset()
    until(lambda: counted(broker, "clients_connected") == 0, "both are gone")
    if store == "sqlite":
        with client(broker, "dan", line="will=dan/will message=x q1 retain"):
            broker.kill()
        broker.start()
    users(broker, "set-rules", "bob", "topic write other")
    for name in ("bob", "carl"):
        login(broker, name).close()  # a clean start ends the session, and its will is due
    assert sorted(retained(broker)) == ["carl/will", *(["dan/will"] if store == "sqlite" else [])]
