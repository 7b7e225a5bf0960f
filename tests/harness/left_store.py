"""A SQLite store with some state, left by a node that was killed."""

import contextlib
from pathlib import Path

from flockmq._speedups.codec.packets import Publish, Pubrel, Subscribe
from flockmq.broker.storage.sqlite import SqliteStore
from tests.harness.inprocess import Client, Node


def leave_store(path: Path) -> None:
    """Make the store at `path`.

    It has the session `away`, whose client is away, with two messages (t/1 of QoS 1, t/2 of QoS 2); the retained
    message `kept`; a QoS 2 message of the client `writer` without PUBREL (t/3, packet identifier 4); and the will
    t/will of a client that is connected.
    """
    with contextlib.closing(SqliteStore(path, sync="normal")) as store:
        node = Node(store)
        away = Client(node, "away", clean_start=False)
        away.send(Subscribe(1, [("t/#", 2)]))
        away.close()
        Client(node, "dying", will_topic="t/will", will_payload=b"will", will_qos=1)
        writer = Client(node, "writer", clean_start=False)
        writer.send(Publish("kept", b"retained", qos=1, packet_id=1, retain=True))
        writer.send(Publish("t/1", b"one", qos=1, packet_id=2))
        writer.send(Publish("t/2", b"two", qos=2, packet_id=3), Pubrel(3))
        writer.send(Publish("t/3", b"unreleased", qos=2, packet_id=4))
        node.close()
