"""The clients that a ban covers, and the fate of bans that can't be read."""

import asyncio
import json
import time

import pytest

from flockmq.broker.auth.bans import Ban, Bans, key, network
from flockmq.broker.core.hidden_messages import HiddenMessages
from tests.harness.inprocess import Node


def ban(kind: str, value: str, until: float | None = None) -> Ban:
    return Ban(kind, value, "", time.time(), until, "test")


def banned(*bans: Ban) -> Node:
    """A node with these bans."""
    node = Node()

    async def refresh() -> None:
        for each in bans:
            HiddenMessages(node.broker.data_plane, "bans").put(each.key, json.dumps(each._asdict()).encode())
        node.broker.bans.refresh()

    asyncio.run(refresh())
    return node


@pytest.mark.parametrize(
    ("kind", "value", "covered", "others"),
    [
        ("client_id", "a", ("a", None, "192.0.2.1:5"), ("A", "a", "192.0.2.1:5")),
        ("username", "a", ("x", "a", "192.0.2.1:5"), ("a", None, "192.0.2.1:5")),
        ("address", "192.0.2.0/24", ("x", None, "192.0.2.255:5"), ("x", None, "192.0.3.0:5")),
        ("address", "192.0.2.0/24", ("x", None, "[::ffff:192.0.2.7]:5"), ("x", None, "[2001:db8::1]:5")),
        ("address", "2001:db8::/32", ("x", None, "[2001:db8::1]:5"), ("x", None, "unix:/run/flockmq.sock")),
    ],
)
def test_whom_it_covers(
    kind: str, value: str, covered: tuple[str, str | None, str], others: tuple[str, str | None, str]
) -> None:
    bans = banned(ban(kind, value)).broker.bans
    assert bans.covering(*covered) is not None
    assert bans.covering(*others) is None


def test_one_that_is_over() -> None:
    bans = banned(ban("client_id", "a", time.time() - 1)).broker.bans
    assert bans.covering("a", None, "192.0.2.1:5") is None
    assert list(bans) == []
    bans.refresh()
    assert len(bans) == 0


def test_one_that_cant_be_read(caplog: pytest.LogCaptureFixture) -> None:
    node = banned(ban("client_id", "good"))
    messages = HiddenMessages(node.broker.data_plane, "bans")
    messages.put(key("client_id", "odd"), b'{"kind": 1}')
    messages.put(key("address", "odd"), json.dumps(ban("address", "odd")._asdict()).encode())

    async def refresh() -> None:
        node.broker.bans.refresh()

    asyncio.run(refresh())
    assert [each.value for each in node.broker.bans] == ["good"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("192.0.2.7", "192.0.2.7/32"),
        (" 192.0.2.7/24 ", "192.0.2.0/24"),
        ("::1", "::1/128"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::/0", "::/0"),
    ],
)
def test_networks(given: str, kept: str) -> None:
    assert network(given) == kept


@pytest.mark.parametrize("given", ["", "host.example", "192.0.2.0/33", "192.0.2"])
def test_no_networks(given: str) -> None:
    with pytest.raises(ValueError, match=r"does not appear|has host|not permitted|Expected|invalid"):
        network(given)


def test_many_networks_are_not_looked_at_one_by_one() -> None:
    few = banned(ban("address", "192.0.2.0/24")).broker.bans
    many = banned(*(ban("address", f"10.{n >> 8}.{n & 255}.0/24") for n in range(3000))).broker.bans

    def seconds(bans: Bans) -> float:
        began = time.perf_counter()
        for n in range(300):
            assert bans.covering("c", None, f"203.0.113.{n & 255}:5") is None
        return time.perf_counter() - began

    assert many.covering("c", None, "10.3.7.9:5") is not None
    assert min(seconds(many) for _ in range(5)) < 20 * min(seconds(few) for _ in range(5))
