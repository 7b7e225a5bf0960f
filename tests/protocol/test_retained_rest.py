"""A connection ends while it gets the retained messages of a new subscription; its persistent session gets the rest.

It lost them: the search ended with the connection.
"""

import pytest

from flockmq._speedups.codec.packets import Packet, Puback, Publish, Suback, Subscribe, Unsubscribe
from flockmq.broker.core.hidden_messages import HiddenMessages
from tests.conftest import StartCluster
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.harness.socket_client import SocketClient

COUNT = 60
WANTED = [b"%d" % number for number in range(COUNT)]


def filled(**limits: int) -> Node:
    """A node with retained messages, which sends few of them at once."""
    node = Node(max_inflight=5, **limits)
    publisher = Client(node, "publisher")
    publisher.connack()
    for number in range(COUNT):
        publisher.send(Publish(f"r/{number}", b"%d" % number, qos=1, retain=True, packet_id=1))
    publisher.close()
    return node


def connected(node: Node, *, present: bool, **connect: object) -> Client:
    client = Client(node, "reader", **{"clean_start": False, **connect})
    assert client.connack().session_present == present
    return client


def answered(client: Client, packets: list[Packet]) -> list[bytes]:
    """Acknowledge messages; returns their payloads."""
    found = []
    for packet in packets:
        assert isinstance(packet, Publish)
        assert packet.retain
        found.append(packet.payload)
        if packet.qos == 1:
            client.send(Puback(packet_id=packet.packet_id))
    return found


def all_messages(client: Client) -> list[bytes]:
    """The messages that come as long as the client acknowledges."""
    found: list[bytes] = []
    while packets := client.take():
        found += answered(client, packets)
    return found


def interrupted(node: Node, qos: int = 1) -> list[bytes]:
    """Subscribe, acknowledge some messages, and be gone. Returns the payloads of those."""
    client = connected(node, present=False)
    client.send(Subscribe(packet_id=1, topic_filters=[("r/#", qos)]))
    suback, *first = client.take()
    assert suback == Suback(1, [qos])
    found = answered(client, first) + answered(client, client.take())
    assert 0 < len(found) < COUNT
    client.close()
    return found


def notes(node: Node) -> int:
    return len(HiddenMessages(node.broker.data_plane, "searches").all())


def test_the_rest_comes_when_the_client_returns() -> None:
    node = filled()
    found = interrupted(node)
    for _ in range(2):  # and is gone again
        client = connected(node, present=True)
        found += answered(client, client.take())
        client.close()
    node.advance(1)
    found += all_messages(client := connected(node, present=True))
    assert found == WANTED  # in order, and each once: all that was read was acknowledged
    node.advance(1)
    assert notes(node) == 0
    client.close()
    assert all_messages(connected(node, present=True)) == []


def test_what_was_sent_and_not_acknowledged_comes_first_and_again() -> None:
    node = filled()
    client = connected(node, present=False)
    client.send(Subscribe(packet_id=1, topic_filters=[("r/#", 1)]))
    assert len(client.take()) == 1 + 5
    client.close()
    assert all_messages(connected(node, present=True)) == WANTED


@pytest.mark.parametrize("noted_by", ["disconnect", "tick"])
def test_the_rest_comes_after_a_restart(noted_by: str) -> None:
    """It is noted at the end of the connection, and before, in case that the node is killed."""
    node = filled()
    client = connected(node, present=False)
    client.send(Subscribe(packet_id=1, topic_filters=[("r/#", 1)]))
    client.read()
    if noted_by == "tick":
        node.advance(1)
    else:
        client.close()
    node.turn.seal()
    again = Node(KeepingStore(node.store.after(len(node.store.told))), max_inflight=5)
    client = connected(again, present=True)
    assert set(all_messages(client)) == set(WANTED)
    again.advance(1)
    assert notes(again) == 0


def test_nothing_is_noted_of_a_search_that_is_over_or_of_a_clean_session() -> None:
    node = filled()
    before = len(node.store.told)
    client = connected(node, present=False)
    client.send(Subscribe(packet_id=1, topic_filters=[("r/1", 1), ("r/2", 1)]))
    client.read()
    node.advance(1)
    clean = Client(node, "clean")
    clean.connack()
    clean.send(Subscribe(packet_id=1, topic_filters=[("r/#", 1)]))
    node.advance(1)
    clean.close()
    node.turn.seal()
    assert notes(node) == 0
    assert not any(b"searches" in block for block in node.store.told[before:] if isinstance(block, bytes))


def test_a_new_session_and_an_ended_subscription_get_no_rest() -> None:
    node = filled()
    interrupted(node)
    assert notes(node) == 1
    connected(node, present=False, clean_start=True).close()
    assert notes(node) == 0
    interrupted(node)
    client = connected(node, present=True)
    client.send(Unsubscribe(packet_id=2, topic_filters=["r/#"]))
    client.close()
    client = connected(node, present=True)
    assert len(all_messages(client)) <= 10  # those in the queue


def test_the_rest_of_qos_0() -> None:
    node = Node(max_outgoing_bytes=1 << 20)
    publisher = Client(node, "publisher")
    publisher.connack()
    for number in range(COUNT):
        publisher.send(Publish(f"r/{number}", b"%d." % number + bytes(50_000), qos=1, retain=True, packet_id=1))
    client = connected(node, present=False)
    client.write(Subscribe(packet_id=1, topic_filters=[("r/#", 0)]))
    node.run()
    client.close()  # it has read nothing
    rest = [packet.payload for packet in connected(node, present=True).take() if isinstance(packet, Publish)]
    assert 0 < len(rest) < COUNT
    assert [payload.split(b".")[0] for payload in rest] == WANTED[-len(rest) :]


@pytest.mark.parametrize("back_at", ["a", "b"])
def test_in_a_cluster(start_cluster: StartCluster, back_at: str) -> None:
    cluster = start_cluster({"limits.max_inflight": 5}, nodes="ab")
    with SocketClient(cluster["a"].port, "publisher") as publisher:
        for number in range(COUNT):
            publisher.send(Publish(f"r/{number}", b"%d" % number, qos=1, retain=True, packet_id=1))
            assert isinstance(publisher.receive(), Puback)
    with SocketClient(cluster["a"].port, "reader", clean_start=False) as client:
        client.subscribe(("r/#", 2))
        assert isinstance(client.receive(), Publish)
    found: list[bytes] = []
    with SocketClient(cluster[back_at].port, "reader", clean_start=False) as client:
        while set(found) != set(WANTED):
            packet = client.receive()
            assert isinstance(packet, Publish)
            found.append(packet.payload)
            client.send(Puback(packet_id=packet.packet_id))
        assert not any(isinstance(packet, Publish) for packet in client.ping()) or back_at == "b"
    if back_at == "a":
        assert len(found) == COUNT
