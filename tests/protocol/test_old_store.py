"""A SQLite store that version 0.1 has written (tests/cases/store-0.1.sqlite), in a node of this version.

The file was made by a node that was killed. It has a session that is away with two messages (t/1 of QoS 1, t/2 of
QoS 2), a retained message (kept), a QoS 2 message of the client `writer` that is not released (t/3, identifier 4), and
the will of a connected client (t/will).
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.storage.sqlite import SqliteStore
from tests.harness.inprocess import Node
from tests.protocol.local_wire import LocalWire

OLD = Path(__file__).resolve().parents[1] / "cases" / "store-0.1.sqlite"


@contextlib.contextmanager
def opened(tmp_path: Path) -> Iterator[Node]:
    """A node with a copy of the store."""
    path = Path(shutil.copy(OLD, tmp_path / "flockmq.db"))
    path.chmod(0o600)
    with contextlib.closing(SqliteStore(path, sync="normal")) as store:
        yield Node(store)


def layouts(tmp_path: Path) -> set[int]:
    """The layouts of the blocks that the closed store has."""
    with contextlib.closing(sqlite3.connect(tmp_path / "flockmq.db")) as database:
        return {bytes(records)[0] for (records,) in database.execute("SELECT records FROM block")}


def payloads(client: LocalWire, count: int) -> list[bytes]:
    found = [client.packet() for _ in range(count)]
    assert all(isinstance(packet, Publish) for packet in found), found
    return [packet.payload for packet in found]


def test_it_has_all_that_the_old_node_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        see_all(node)
    assert layouts(tmp_path) == {1}, "without a client of level 5 the old version can read the file again"


def see_all(node: Node) -> None:
    away = LocalWire(node, 4, "away").connect("clean=0", "connack present")
    assert payloads(away, 3) == [b"one", b"two", b"will"]
    writer = LocalWire(node, 4, "writer").connect("clean=0", "connack present")
    writer.send("pubrel 4")
    writer.expect("pubcomp 4")
    assert payloads(away, 1) == [b"unreleased"]
    writer.send("subscribe 1 kept:0")
    writer.expect("suback 1 0", "publish kept retained retain")


def test_a_client_of_level_5_resumes_a_session_of_level_4(tmp_path: Path) -> None:
    with opened(tmp_path) as node:
        away = LocalWire(node, 5, "away")
        away.send("connect clean=0 session_expiry_interval=100")
        assert away.packet().session_present
        assert payloads(away, 3) == [b"one", b"two", b"will"]
    assert layouts(tmp_path) == {1, 2}
