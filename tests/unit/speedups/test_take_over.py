"""A client connects again while packets of its earlier connection wait: for the store, for its rate, for hooks.

It has sent them before, so they are handled before it has its session: DISCONNECT among them discards its will.
"""

import pytest

from flockmq._speedups.codec.packets import Connack, Connect, Disconnect, Packet, Puback, Publish, Subscribe
from tests.harness.inprocess import Client, Node


def kinds(client: Client) -> list[type[Packet]]:
    """The packets that have come."""
    return [type(packet) for packet in client.take()]


def with_will(*, level: int = 4, **more: object) -> Connect:
    return Connect(client_id="c", protocol_level=level, will_topic="will", will_payload=b"gone", **more)  # type: ignore[arg-type]


@pytest.fixture
def node() -> Node:
    """Its store confirms only when a test calls `confirm`."""
    return Node(auto=False)


@pytest.fixture
def watcher(node: Node) -> Client:
    """A client that sees all messages."""
    client = Client(node, "watcher")
    client.send(Subscribe(1, [("#", 0)]))
    node.confirm()
    node.run()
    client.take()
    return client


def settle(node: Node) -> None:
    """The store confirms all."""
    for _ in range(10):
        node.confirm()
        node.run()


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("apart", [False, True])
def test_disconnect_behind_connect_discards_the_will(node: Node, watcher: Client, level: int, apart: bool) -> None:
    first = Client(node, level=level)
    first.write(with_will(level=level))
    if apart:
        node.run()
    first.write(Disconnect())
    node.run()
    second = Client(node, "c", level=level)
    assert kinds(first) == kinds(second) == []
    settle(node)
    assert kinds(first) == [Connack] and first.ended
    assert kinds(second) == [Connack] and not second.ended
    assert watcher.take() == []


def test_a_will_without_disconnect_is_published(node: Node, watcher: Client) -> None:
    first = Client(node)
    first.send(with_will())
    second = Client(node, "c")
    settle(node)
    assert first.read().ended and kinds(second) == [Connack]
    assert watcher.take_one(Publish).payload == b"gone"


@pytest.mark.parametrize("apart", [False, True])
def test_packets_behind_connect_are_handled(node: Node, watcher: Client, apart: bool) -> None:
    """In the order in which the client has sent them, over both connections."""
    first = Client(node, level=5)
    first.write(with_will(level=5, clean_start=False, properties={"session_expiry_interval": 100}))
    if apart:
        node.run()
    first.write(
        Publish("t", b"1", qos=1, packet_id=1), Subscribe(2, [("s", 1)]), Publish("t", b"2", qos=1, packet_id=3)
    )
    node.run()
    second = Client(node, level=5)
    second.write(
        Connect(client_id="c", protocol_level=5, clean_start=False, properties={"session_expiry_interval": 100}),
        Publish("t", b"3", qos=1, packet_id=1),
    )
    node.run()
    third = Client(node, "c", level=5, clean_start=False, properties={"session_expiry_interval": 100})
    settle(node)
    for earlier in (first, second):  # acknowledgements that wait for the store may be missing
        packets = kinds(earlier)
        assert (packets[0], packets[-1]) == (Connack, Disconnect)
    connack = third.take_one(Connack)
    assert connack.session_present and not third.ended
    assert [packet.payload for packet in watcher.take() if isinstance(packet, Publish)] == [
        b"1",
        b"2",
        b"gone",
        b"3",
    ]
    third.send(Publish("s", b"mine", qos=0))
    settle(node)
    assert third.take_one(Publish).payload == b"mine"


def test_a_client_that_leaves_while_it_waits_takes_nothing_over(node: Node) -> None:
    first = Client(node)
    first.write(with_will(), Publish("t", b"1", qos=1, packet_id=1))
    node.run()
    second = Client(node, "c")
    second.socket.close()
    third = Client(node, "c")
    settle(node)
    assert kinds(first) == [Connack, Puback] and first.ended
    assert kinds(third) == [Connack] and not third.ended


def test_packets_that_wait_for_the_rate_are_handled(node: Node, watcher: Client) -> None:
    node.listener.set_limits(client_messages=1)
    first = Client(node, "c")
    settle(node)
    packets = [Publish("t", b"%d" % number, qos=1, packet_id=number) for number in range(1, 21)]
    first.write(*packets, Disconnect())
    settle(node)
    assert len(kinds(first)) < 20
    second = Client(node, "c")
    settle(node)
    assert first.read().ended and kinds(second) == [Connack]
    payloads = [packet.payload for packet in watcher.take() if isinstance(packet, Publish)]
    assert payloads == [packet.payload for packet in packets]


def test_a_store_that_stands_still_keeps_no_client_away_for_ever(node: Node) -> None:
    first = Client(node)
    first.write(with_will(), Disconnect())
    node.run()
    Client(node, "c")
    node.advance(200)
    assert first.read().ended


def test_messages_of_the_session_are_for_the_later_connection(node: Node) -> None:
    """Also the messages of a queue that would have followed the earlier one's CONNACK."""
    more = {"level": 5, "clean_start": False, "properties": {"session_expiry_interval": 100}}
    owner = Client(node, "c", **more)
    owner.send(Subscribe(1, [("t", 1)]))
    settle(node)
    owner.socket.close()
    node.run()
    publisher = Client(node, "p")
    settle(node)
    publisher.send(Publish("t", b"waits", qos=1, packet_id=1))
    settle(node)
    first = Client(node, level=5)
    first.write(Connect("c", protocol_level=5, keep_alive=0, **{k: v for k, v in more.items() if k != "level"}))
    first.write(Publish("other", b"", qos=1, packet_id=1))
    node.run()
    second = Client(node, "c", **more)
    settle(node)
    assert Publish not in kinds(first)
    assert [packet.payload for packet in second.take() if isinstance(packet, Publish)] == [b"waits"]
