"""Links of other brokers that exchange wanted topic filters, as the node that they connect to sees them."""

from typing import Any

import pytest

from flockmq.broker.config.link import HOP, MAX_WANTED, SENDS, WANTED
from flockmq.broker.interest.incoming_links import number_of
from tests.harness.inprocess import Client, Node


def guest(node: Node, *scopes: str, most: str = "100", **connect: Any) -> Client:
    """The link of another broker, whose CONNECT was sent."""
    properties = {
        "session_expiry_interval": 3600,
        "user_property": [(HOP, "other"), (WANTED, f"1 {most}"), *((SENDS, scope) for scope in scopes)],
    }
    return Client(node, "link", level=5, properties=properties, **connect)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1 7", 7), ("1 0", 0), ("1 999999999", MAX_WANTED), ("1 " + "9" * 5000, 0), ("1 x", 0), ("1 ²", 0), ("2 7", 0)],
)
def test_the_number_of_rows(text: str, number: int) -> None:
    assert number_of(text) == number


def test_a_number_of_thousands_of_digits_is_no_offer() -> None:
    node = Node()
    connack = guest(node, "a/#", most="9" * 5000).connack()
    assert connack.reason_code == 0
    assert [name for name, _ in connack.properties["user_property"]] == [HOP]


def test_a_fault_before_connack_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left open: nothing read from it, and no timer ended it."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    node = Node()
    monkeypatch.setattr("flockmq.broker.handlers.connack.offers", fail)
    client = guest(node)
    assert client.connack().reason_code == 0x80
    assert client.read().ended and len(node.reactor) == 0


def test_a_fault_after_connack_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    node = Node()
    monkeypatch.setattr(node.broker.streams, "attached", fail)
    client = guest(node)
    assert client.connack().reason_code == 0
    assert client.read().ended and len(node.reactor) == 0
