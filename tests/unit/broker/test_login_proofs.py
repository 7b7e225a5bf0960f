"""Proofs of logins in the store."""

from flockmq.broker.core.login_proofs import LoginProofs
from tests.harness.inprocess import Client, KeepingStore, Node

SECOND = 4  # ticks


def test_a_proof_outlives_a_restart_and_expires() -> None:
    node = Node()
    proofs = LoginProofs(node.broker.data_plane)
    assert proofs.find("a") is None
    proofs.keep("a", b"first", 1000)
    proofs.keep("a", b"second", 10)
    proofs.keep("b", b"other", 1000)
    assert (proofs.find("a"), proofs.find("b")) == (b"second", b"other")
    node = Node(KeepingStore(node.store.after(len(node.store.told))))
    proofs = LoginProofs(node.broker.data_plane)
    assert (proofs.find("a"), proofs.find("b")) == (b"second", b"other")
    node.advance(11 * SECOND)
    node.router.expire_retained()
    assert (proofs.find("a"), proofs.find("b")) == (None, b"other")


def test_no_client_gets_a_proof() -> None:
    node = Node()
    LoginProofs(node.broker.data_plane).keep("a", b"proof", 1000)
    for number, topic_filter in enumerate((b"#", b"$/#", b"$+/#", b"+/#", b"$\x00flockmq/#", b"$\x00flockmq/login/a")):
        client = Client(node, f"client {number}")  # a filter that is not valid ends its connection
        client.connack()
        subscription = len(topic_filter).to_bytes(2, "big") + topic_filter + b"\x00"
        client.send(bytes((0x82, 2 + len(subscription), 0, 1)) + subscription)
        assert b"proof" not in repr(client.take()).encode()
