"""A session belongs to the user that made it (CVE-2026-6564): no other user gets it, ends it or sees it.

Rights to topics alone would not do (RabbitMQ's note): a client with another's client id could read the messages in its
queue.
"""

from pathlib import Path

import pytest

from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, AccessFiles, login, refused


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    """With anonymous clients, too: the tests let a cluster settle by such clients."""
    files = AccessFiles(tmp_path)
    files.users("ada", "bob")
    return files


OPEN = {"auth__allow_anonymous": True}


def test_cve_2026_6564_a_session_is_not_anothers(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker, **OPEN)
    with login(broker, "ada", "pump", "clean=0 will=gone") as ada:
        ada.subscribe("secret/#:1")
        for clean in (0, 1):
            refused(broker, f"user=bob pass=bob clean={clean}", NOT_AUTHORIZED, "pump")
            refused(broker, f"clean={clean}", NOT_AUTHORIZED, "pump")
        ada.expect_nothing()
        ada.close()
    with login(broker, "bob") as bob:
        bob.send("publish secret/x word q1 id=1")
        bob.expect("puback 1")
    for clean in (0, 1):
        refused(broker, f"user=bob pass=bob clean={clean}", NOT_AUTHORIZED, "pump")
        refused(broker, f"clean={clean}", NOT_AUTHORIZED, "pump")
    with Wire(broker.port, name="pump") as ada:
        ada.connect("user=ada pass=ada clean=0", "connack present")
        ada.expect("publish secret/x word q1 id=1")


def test_a_clean_session_is_its_users_too(files: AccessFiles, start_broker: StartBroker) -> None:
    broker = files.start(start_broker, **OPEN)
    with login(broker, "ada", "pump") as ada:
        refused(broker, "user=bob pass=bob", NOT_AUTHORIZED, "pump")
        ada.expect_nothing()
        with login(broker, "ada", "pump"):
            assert ada.receive() is None

    def bob_is_let_in() -> bool:
        try:
            with login(broker, "bob", "pump"):
                return True
        except AssertionError:  # the end of ada's connection may be seen after his CONNECT
            return False

    until(bob_is_let_in)


@pytest.mark.one_node
def test_who_is_not_let_in_touches_no_session(files: AccessFiles, start_broker: StartBroker) -> None:
    """Credentials come first, the session afterwards."""
    broker = files.start(start_broker)
    with login(broker, "ada", "pump", "clean=0") as ada:
        ada.send("subscribe 1 a:1")
        ada.expect("suback 1 1")
        refused(broker, "user=ada pass=wrong", 4, "pump")
        refused(broker, "user=nobody pass=ada clean=0", 4, "pump")
        refused(broker, "", NOT_AUTHORIZED, "pump")
        ada.send("pingreq")
        ada.expect("pingresp")


def test_a_session_of_nobody_goes_to_the_first_user_who_comes(files: AccessFiles, start_broker: StartBroker) -> None:
    """Those from before authentication was switched on."""
    broker = files.start(start_broker, **OPEN)
    with Wire(broker.port, name="pump") as nobody:
        nobody.connect("clean=0")
        nobody.subscribe("a:1")
        nobody.close()
    with Wire(broker.port, name="pump") as ada:
        ada.connect("user=ada pass=ada clean=0", "connack present")
        ada.close()
    refused(broker, "clean=0", NOT_AUTHORIZED, "pump")
    refused(broker, "user=bob pass=bob clean=0", NOT_AUTHORIZED, "pump")


def test_whose_a_session_is_survives(files: AccessFiles, start_broker: StartBroker, store: str) -> None:
    if store == "memory":
        pytest.skip("it keeps nothing")
    broker = files.start(start_broker, **OPEN)
    login(broker, "ada", "pump", "clean=0").subscribe("a:1").close()
    broker.restart()
    for _ in range(2):
        refused(broker, "user=bob pass=bob clean=0", NOT_AUTHORIZED, "pump")
        with Wire(broker.port, name="pump") as ada:
            ada.connect("user=ada pass=ada clean=0", "connack present")
            ada.close()
        broker.kill()
        broker.start()


def test_the_store_says_whose_it_is_after_a_compaction() -> None:
    node = Node(KeepingStore(), smallest=0)
    Client(node, "pump", clean_start=False)
    session = node.sessions.get(b"pump")
    assert session is not None
    session.user = "ädä".encode()  # which no earlier record has
    told = len(node.store.told)
    Client(node, "another", clean_start=False)  # or there is nothing to be compacted
    while not any(isinstance(what, int) for what in node.store.told[told:]):
        node.compaction.step()
        node.end_turn()
        node.confirm()
    again = Node(KeepingStore(node.store.after(len(node.store.told))))
    restored = again.sessions.get(b"pump")
    assert restored is not None and restored.user == "ädä".encode()
    node.close()
    again.close()
