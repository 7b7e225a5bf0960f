"""Meters of topic filters: their figures, and that changes of the configuration keep those that stay."""

import pytest

from flockmq._speedups.codec.packets import Publish, Pubrel, Subscribe
from flockmq.broker.config.kinds import TopicFilters
from flockmq.broker.core.topic_meters import TopicMeters
from tests.harness.inprocess import Client, Node


def figures(meters: TopicMeters) -> dict[str, tuple[int, int]]:
    return {name: (meter.received, meter.sent) for name, meter in meters.items()}


def test_filters_that_stay_keep_their_figures() -> None:
    node = Node()
    meters = node.broker.topic_meters
    size = node.router.filters.size
    meters.configure(("a/#", "b"))
    client = Client(node, "c")
    client.send(Publish("a/1", b"x"), Publish("b", b"x"), Publish("c", b"x"))
    assert figures(meters) == {"a/#": (1, 0), "b": (1, 0)}
    meters.configure(("c", "a/#"))
    client.send(Publish("a/1", b"x"), Publish("b", b"x"), Publish("c", b"x"))
    assert figures(meters) == {"c": (1, 0), "a/#": (2, 0)}
    meters.configure(())
    client.send(Publish("a/1", b"x"))
    assert len(meters) == 0 and node.router.filters.size == size
    assert node.router.filters.count == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_deliveries_are_counted_by_session_and_group(qos: int) -> None:
    node = Node()
    node.broker.topic_meters.configure(("t/+", "#"))
    readers = [Client(node, f"r{number}") for number in range(3)]
    for number, reader in enumerate(readers):
        reader.send(Subscribe(1, [("t/#", qos), ("t/1", 0), *[("$share/g/t/1", qos)] * (number > 0)]))
    sender = Client(node, "sender")
    sender.send(Publish("t/1", b"12345", qos, packet_id=7 if qos else 0))
    if qos == 2:
        sender.send(Pubrel(packet_id=7))
    (_, meter), (_, every) = node.broker.topic_meters.items()
    assert (meter.received, meter.received_bytes) == (1, 5)
    assert (meter.sent, meter.sent_bytes) == (4, 20), "three sessions and one group"
    assert every.sent == 4


def test_an_unrouted_message_stays_one() -> None:
    """A meter is no receiver: MQTT 5.0 reports that there are no matching subscribers."""
    node = Node()
    node.broker.topic_meters.configure(("t",))
    sender = Client(node, "sender", level=5)
    sender.take()
    sender.send(Publish("t", b"x", 1, packet_id=1))
    assert [packet.reason_code for packet in sender.take()] == [0x10]


def test_their_number_is_bounded() -> None:
    kind = TopicFilters(3)
    assert kind.read(["a", "b", "c", "a"], is_text=False) == ("a", "b", "c")
    with pytest.raises(ValueError, match="at most 3 topic filters"):
        kind.read("a,b,c,d", is_text=True)
