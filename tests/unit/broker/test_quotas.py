"""Rates and numbers that clients must keep to, and that a storm of new ones leaves the others their turn.

Time passes only by calls (`Node.advance`, quarters of a second), so that rates are exact.
"""

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Subscribe
from tests.harness.inprocess import Client, Node


def client_of(node: Node, client_id: str, *filters: tuple[str, int], **connect: object) -> Client:
    client = Client(node, client_id, **connect)
    client.connack()
    if filters:
        client.send(Subscribe(packet_id=1, topic_filters=list(filters)))
        client.take()
    return client


def metered(**rates: float) -> Node:
    node = Node()
    node.listener.set_limits(**rates)  # type: ignore[arg-type]
    node.reactor.apply_rate_limits()
    return node


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.take() if isinstance(packet, Publish)]


def numbered(count: int, start: int = 0, size: int = 0, qos: int = 0) -> list[Publish]:
    numbers = range(start, start + count)
    return [Publish("t", b"%d" % n + bytes(size), qos=qos, packet_id=n + 1 if qos else 0) for n in numbers]


def test_messages_of_a_client_wait_and_none_is_dropped() -> None:
    node = metered(client_messages=100)
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    device.send(*numbered(1000))
    got = payloads(watcher)
    assert len(got) == 100
    for second in range(2, 11):
        node.advance(4)
        got += payloads(watcher)
        assert abs(len(got) - 100 * second) <= 25
    node.advance(1)
    assert got + payloads(watcher) == [b"%d" % n for n in range(1000)]
    assert node.counted("throttled") > 0


def test_what_was_not_used_is_not_saved_beyond_a_second() -> None:
    node = metered(client_messages=100)
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    node.advance(400)
    device.send(*numbered(1000))
    assert len(payloads(watcher)) == 100


def test_other_clients_and_other_packets_are_not_held_up() -> None:
    node = metered(client_messages=10)
    watcher = client_of(node, "watcher", ("t", 0))
    fast, slow = client_of(node, "fast"), client_of(node, "slow")
    fast.send(*numbered(500))
    payloads(watcher)
    slow.send(*numbered(5), *[Pingreq()] * 100)
    assert len(payloads(watcher)) == 5
    assert len(slow.take()) == 100


def test_one_that_is_slowed_down_is_not_taken_for_silent() -> None:
    node = metered(client_messages=1)
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device", keep_alive=1)
    device.send(*numbered(20), Pingreq())
    node.advance(100)
    assert len(payloads(watcher)) == 20
    assert isinstance(device.take_one(Pingresp), Pingresp)
    node.advance(20)
    device.read()
    assert device.ended  # now it has been


@pytest.mark.parametrize("qos", [0, 1])
def test_bytes_of_a_client(qos: int) -> None:
    node = metered(client_bytes=10_000)
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    device.send(*numbered(100, size=1000, qos=qos))
    got = len(payloads(watcher))
    assert 9 <= got <= 11
    node.advance(40)
    got += len(payloads(watcher))
    assert 95 <= got <= 100
    node.advance(4)
    assert len(payloads(watcher)) + got == 100
    assert sum(isinstance(packet, Puback) for packet in device.take()) == (100 if qos else 0)


def test_a_packet_larger_than_a_second_brings_is_paid_for_afterwards() -> None:
    node = metered(client_bytes=1000)
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    device.send(Publish("t", bytes(50_000)), *numbered(1))
    assert len(payloads(watcher)) == 1
    node.advance(40 * 4)
    assert payloads(watcher) == []
    node.advance(12 * 4)
    assert payloads(watcher) == [b"0"]


def test_all_clients_of_a_listener_share_its_rate() -> None:
    node = metered(total_messages=100)
    watcher = client_of(node, "watcher", ("+", 0))
    devices = [client_of(node, f"device-{n}") for n in range(4)]
    for n, device in enumerate(devices):
        device.send(*[Publish(f"{n}", b"")] * 1000)
    node.advance(4 * 9)
    topics = [packet.topic_name for packet in watcher.take() if isinstance(packet, Publish)]
    assert 950 <= len(topics) <= 1050
    assert all(topics.count(f"{n}") >= 100 for n in range(4)), "waiting clients take turns"


def test_a_new_rate_holds_for_those_that_are_connected() -> None:
    node = Node()
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    node.listener.set_limits(client_messages=10)
    node.reactor.apply_rate_limits()
    device.send(*numbered(100))
    assert len(payloads(watcher)) == 10
    node.listener.set_limits(client_messages=0)
    node.reactor.apply_rate_limits()
    node.advance(1)
    assert len(payloads(watcher)) == 90


def test_a_slowed_client_that_leaves_is_forgotten() -> None:
    node = metered(client_messages=1)
    device = client_of(node, "device")
    device.send(*numbered(100))
    device.close()
    node.advance(400)
    assert len(node.reactor) == 0


def test_connections_a_second() -> None:
    node = Node()
    node.listener.set_limits(connects=10)
    clients = [Client(node) for _ in range(50)]
    for client in clients:
        client.write(Connect("c"))
    node.run()
    assert node.counted("connections_opened") == 10
    for _ in range(6):
        node.advance(4)
    assert node.counted("connections_opened") == 50
    assert node.counted("connections_refused") == 0


def test_a_storm_of_new_clients_leaves_the_others_their_turn() -> None:
    node = Node()
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    storm = [Client(node) for _ in range(300)]
    for number, client in enumerate(storm):
        client.write(Connect(f"storm-{number}"))
    before = node.counted("connects_accepted")
    turns = 0
    while node.counted("connects_accepted") - before < 300:
        device.write(Publish("t", b"%d" % turns))
        node.reactor.run()
        turns += 1
        watcher.socket.setblocking(True)
        assert watcher.socket.recv(100) == encode(Publish("t", b"%d" % (turns - 1)), 4)
        watcher.socket.setblocking(False)
    assert turns >= 5  # 64 of them a turn at most
    assert all(isinstance(client.connack(), Connack) for client in storm)


def test_a_rate_that_comes_later_doesnt_count_what_was_used_without_one() -> None:
    node = metered(client_bytes=1e9)
    watcher = client_of(node, "watcher", ("t", 0))
    device = client_of(node, "device")
    device.send(*numbered(1000))
    assert len(payloads(watcher)) == 1000
    node.listener.set_limits(client_messages=2, connects=2)
    node.advance(4)
    device.send(*numbered(3))
    assert len(payloads(watcher)) == 2


def test_a_rate_of_arrivals_that_comes_later_doesnt_count_those_before() -> None:
    node = Node()
    for n in range(50):
        client_of(node, f"before-{n}")
    node.listener.set_limits(connects=2)
    node.advance(1)
    assert client_of(node, "after")


def test_a_listener_has_its_own_packet_size() -> None:
    """CONNACK of level 5 has it, and a larger packet ends the connection with 0x95."""
    node = metered(max_packet_size=128)
    device = Client(node, "device", level=5)
    assert device.connack().properties["maximum_packet_size"] == 128
    device.send(Publish("t", bytes(100)))
    assert device.take() == []
    device.send(Publish("t", bytes(128)))
    assert [getattr(packet, "reason_code", None) for packet in device.take()] == [0x95]
