"""A SQLite store of a node that was killed, in the next node: clients find all that the first node kept."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.storage.sqlite import SqliteStore
from tests.harness.inprocess import Node
from tests.harness.left_store import leave_store
from tests.protocol.local_wire import LocalWire


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """The next node."""
    leave_store(tmp_path / "flockmq.db")
    with contextlib.closing(SqliteStore(tmp_path / "flockmq.db", sync="normal")) as store:
        yield Node(store)


def payloads(client: LocalWire, count: int) -> list[bytes]:
    found = [client.packet() for _ in range(count)]
    assert all(isinstance(packet, Publish) for packet in found), found
    return [packet.payload for packet in found]


def test_clients_find_all(node: Node) -> None:
    away = LocalWire(node, 4, "away").connect("clean=0", "connack present")
    assert payloads(away, 3) == [b"one", b"two", b"will"]
    writer = LocalWire(node, 4, "writer").connect("clean=0", "connack present")
    writer.send("pubrel 4")
    writer.expect("pubcomp 4")
    assert payloads(away, 1) == [b"unreleased"]
    writer.send("subscribe 1 kept:0")
    writer.expect("suback 1 0", "publish kept retained retain")


def test_a_client_of_level_5_resumes_a_session_of_level_4(node: Node) -> None:
    away = LocalWire(node, 5, "away")
    away.send("connect clean=0 session_expiry_interval=100")
    assert away.packet().session_present
    assert payloads(away, 3) == [b"one", b"two", b"will"]
