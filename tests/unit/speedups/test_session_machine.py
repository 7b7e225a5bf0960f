"""Sessions of all levels against a plain model: queues, packet identifiers, DUP, QoS 2 states, windows, sizes, expiry.

And their state after a restart.
"""

import pytest
from hypothesis import HealthCheck, settings

from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq.broker.coordination import expiry
from flockmq.broker.storage import compaction
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.unit.speedups.session_machine import WALL, SessionMachine


@pytest.fixture(autouse=True)
def compaction_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE", 1)
    monkeypatch.setattr(compaction, "RETAINED_BATCH", 1)


@pytest.fixture(autouse=True)
def a_clock_of_the_test_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's clock goes on by the wall clock while the node is off."""
    monkeypatch.setattr(expiry, "_wall", lambda: WALL[0])


class TestSessions(SessionMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck))


def test_an_expiry_outlives_a_crash_at_any_step_of_a_compaction() -> None:
    """The message may stand in the store twice then, and the queue holds the first."""
    node = Node(smallest=0)
    client = Client(node, "away", level=5, clean_start=False, properties={"session_expiry_interval": 100})
    client.send(Subscribe(1, [("t", 1)]))
    client.close()
    publisher = Client(node, "publisher", level=5)
    publisher.send(Publish("t", b"short", 1, packet_id=1, properties={"message_expiry_interval": 2}))
    publisher.send(Publish("t", b"lasting", 1, packet_id=1))
    for _ in range(20):
        node.compaction.step()
        node.end_turn()
        node.run()
    assert any(isinstance(thing, int) for thing in node.store.told), "no compaction has ended"
    for told in range(len(node.store.told) - 10, len(node.store.told) + 1):
        copy = Node(KeepingStore(node.store.after(told)))
        copy.advance(12)
        client = Client(copy, "away", level=5, clean_start=False)
        client.connack()
        assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [b"lasting"], told
