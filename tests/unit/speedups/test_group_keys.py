"""Order by key: messages with one topic name, or from one publisher, keep their order over the subscribers of a
group."""

import pytest

from flockmq._speedups.codec.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from flockmq._speedups.session.group import Group
from flockmq._speedups.session.group_settings import GroupSettings
from flockmq.broker.config.declared_group import declared
from flockmq.broker.core.group_settings import settings_of
from tests.harness.inprocess import Client, KeepingStore, Node

FILTER = "$share/g/t/#"


def subscriber(node: Node, name: str, qos: int = 1, **connect: object) -> Client:
    client = Client(node, name, **connect)  # type: ignore[arg-type]
    client.connack()
    client.send(Subscribe(1, [(FILTER, qos)]))
    client.take()
    return client


def only_group(node: Node) -> Group:
    (group,) = node.router.filters.groups.values()
    return group


def configure(node: Node, strategy: str = "topic", **values: int) -> Group:
    group = only_group(node)
    group.configure(GroupSettings(strategy=strategy, **values))
    return group


def publish(client: Client, topic: str, *payloads: bytes, qos: int = 1) -> None:
    for payload in payloads:
        client.send(Publish(topic, payload, qos, packet_id=qos))
        if qos == 2:
            client.send(Pubrel(2))
        client.take()


def published(client: Client) -> list[Publish]:
    return [packet for packet in client.take() if isinstance(packet, Publish)]


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in published(client)]


def ack(client: Client, *packets: Publish) -> None:
    for packet in packets:
        client.send(Puback(packet.packet_id))


def two(node: Node, **values: int) -> tuple[Client, Client, Client]:
    one, other = subscriber(node, "one"), subscriber(node, "other")
    configure(node, **values)
    return one, other, Client(node, "publisher")


def test_a_key_stays_with_its_subscriber_while_messages_are_unacknowledged() -> None:
    node = Node()
    one, other, publisher = two(node)
    publish(publisher, "t/a", b"a1", b"a2", b"a3")
    publish(publisher, "t/b", b"b1")
    held = published(one)
    assert [packet.payload for packet in held] == [b"a1", b"a2", b"a3"]
    assert payloads(other) == [b"b1"]
    ack(one, *held)  # the key is free: it goes round
    publish(publisher, "t/c", b"c1")
    publish(publisher, "t/a", b"a4")
    assert (payloads(one), payloads(other)) == ([b"c1"], [b"a4"])


def test_a_full_subscriber_holds_up_its_keys_and_no_others() -> None:
    node = Node()
    one, other, publisher = two(node, window=2)
    publish(publisher, "t/a", b"a1", b"a2", b"a3", b"a4")
    publish(publisher, "t/b", b"b1")
    held = published(one)
    assert [packet.payload for packet in held] == [b"a1", b"a2"]
    assert payloads(other) == [b"b1"]
    group = only_group(node)
    assert [payload for _, _, payload in group.messages()] == [b"a3", b"a4"]
    assert (group.waiting, node.turn.queued) == (2, 5)
    ack(one, held[0])
    assert payloads(one) == [b"a3"]
    ack(one, held[1])
    assert payloads(one) == [b"a4"]
    assert group.waiting == 0


def test_what_waits_goes_to_another_when_the_key_is_free_and_its_subscriber_full() -> None:
    node = Node()
    one, other, publisher = two(node, window=2)
    publish(publisher, "t/a", b"a1")  # to one
    publish(publisher, "t/b", b"b1")  # to the other
    publish(publisher, "t/c", b"c1")  # to one, which is full
    publish(publisher, "t/a", b"a2", b"a3")
    a1, c1 = published(one)
    assert payloads(other) == [b"b1"]
    ack(one, a1)  # `a` is free: rotation
    found = payloads(one) + payloads(other)
    assert found == [b"a2"] or found == [b"a2", b"a3"]
    assert c1.payload == b"c1"


@pytest.mark.parametrize("kindly", [True, False])
def test_the_messages_of_a_clean_session_go_to_another_in_order(kindly: bool) -> None:
    node = Node()
    one, other, publisher = two(node, window=2)
    publish(publisher, "t/a", b"a1", b"a2", b"a3", b"a4")
    assert payloads(one) == [b"a1", b"a2"]
    if kindly:
        one.send(Disconnect())
    one.close()
    held = published(other)
    assert [packet.payload for packet in held] == [b"a1", b"a2"]
    ack(other, *held)
    assert payloads(other) == [b"a3", b"a4"]


def test_the_messages_of_an_absent_session_keep_the_key_until_its_grace_is_over() -> None:
    node = Node(shared={"redispatch": 1})
    one = subscriber(node, "one", clean_start=False)
    other = subscriber(node, "other")
    configure(node, window=3)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"a1", b"a2")
    publish(publisher, "t/b", b"b1")
    assert payloads(one) == [b"a1", b"a2"]
    one.close()
    publish(publisher, "t/a", b"a3")
    assert payloads(other) == [b"b1"]
    assert only_group(node).waiting == 1
    node.advance(2 * 4 + 1)
    assert payloads(other) == [b"a1", b"a2"]  # its window is full; no other may have the third
    assert only_group(node).waiting == 1


def test_a_session_that_returns_in_time_goes_on_with_its_keys() -> None:
    node = Node(shared={"redispatch": 1})
    one = subscriber(node, "one", clean_start=False)
    other = subscriber(node, "other")
    configure(node)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"a1")
    assert payloads(one) == [b"a1"]
    one.close()
    publish(publisher, "t/a", b"a2")
    one = Client(node, "one", clean_start=False)
    one.connack()
    assert payloads(one) == [b"a1", b"a2"]
    assert payloads(other) == []


def test_qos_2_that_has_begun_keeps_its_key_until_the_session_ends() -> None:
    node = Node(shared={"redispatch": 1})
    one = subscriber(node, "one", 2, clean_start=False)
    other = subscriber(node, "other", 2)
    configure(node)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"a1", qos=2)
    (first,) = published(one)
    one.close()
    publish(publisher, "t/a", b"a2", qos=2)
    node.advance(3 * 4)
    assert payloads(other) == []
    Client(node, "one", clean_start=True)
    assert payloads(other) == [b"a2"]
    assert first.qos == 2


def test_a_message_of_qos_1_does_not_pass_one_of_qos_2_that_waits_for_the_store() -> None:
    node = Node(auto=False)
    node.confirm()
    Client(node, "absent", clean_start=False)
    node.confirm()
    absent = Client(node, "keeps", clean_start=False)
    node.confirm()
    absent.write(Subscribe(1, [(FILTER, 2)]))
    node.run()
    node.confirm()
    clean = subscriber(node, "clean", 2)
    node.confirm()
    clean.take()
    configure(node)
    absent.close()
    publisher = Client(node, "publisher")
    publisher.send(Publish("t/a", b"1", 2, packet_id=1), Pubrel(1), Publish("t/a", b"2", 1, packet_id=2))
    node.run()
    for _ in range(5):
        node.confirm()
        node.run()
    assert payloads(clean) == [b"1", b"2"]


def test_unsubscribe_gives_the_key_free() -> None:
    node = Node()
    one, other, publisher = two(node, window=1)
    publish(publisher, "t/a", b"a1", b"a2")
    assert payloads(one) == [b"a1"]
    one.send(Unsubscribe(2, [FILTER]))
    assert payloads(other) == [b"a2"]


def test_messages_of_one_publisher_keep_their_order() -> None:
    node = Node()
    one, other = subscriber(node, "one"), subscriber(node, "other")
    configure(node, "publisher")
    first, second = Client(node, "first"), Client(node, "second")
    publish(first, "t/a", b"1")
    publish(second, "t/a", b"2")
    publish(first, "t/b", b"3")
    publish(first, "t/c", b"4")
    publish(second, "t/c", b"5")
    assert (payloads(one), payloads(other)) == ([b"1", b"3", b"4"], [b"2", b"5"])


@pytest.mark.parametrize("compact", [False, True])
def test_keys_of_publishers_outlive_a_restart(compact: bool) -> None:
    node = Node(KeepingStore(), smallest=0, shared={"redispatch": 1})
    one = subscriber(node, "one", clean_start=False)
    configure(node, "publisher")
    first, second = Client(node, "first"), Client(node, "second")
    publish(first, "t/a", b"1")
    assert payloads(one) == [b"1"]
    one.close()
    publish(first, "t/b", b"2")
    publish(second, "t/c", b"3")
    if compact:
        while node.compaction.step():
            node.end_turn()
            node.run()
    node.turn.seal()
    node.run()
    store = node.store
    again = Node(KeepingStore(store.after(len(store.told))), smallest=0, shared={"redispatch": 1})
    configure(again, "publisher", window=1)
    other = Client(again, "other")
    other.send(Subscribe(1, [(FILTER, 1)]))
    assert payloads(other) == [b"3"]  # `first` has a message with `one`
    node.close()


@pytest.mark.parametrize("drop_oldest", [False, True])
def test_limits_hold_for_messages_that_wait_for_their_subscriber(drop_oldest: bool) -> None:
    node = Node()
    one, other = subscriber(node, "one"), subscriber(node, "other")
    only_group(node).configure(GroupSettings(strategy="topic", window=1, max_messages=3, drop_oldest=drop_oldest))
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", *(b"%d" % number for number in range(8)))
    group = only_group(node)
    assert [payload for _, _, payload in group.messages()] == (
        [b"5", b"6", b"7"] if drop_oldest else [b"1", b"2", b"3"]
    )
    (held,) = published(one)
    ack(one, held)
    found = published(one) + published(other)
    assert [packet.payload for packet in found] == ([b"5"] if drop_oldest else [b"1"])
    assert group.purge() == 2
    assert (group.waiting, group.waiting_size, node.turn.queued) == (0, 0, 1)


def test_a_message_that_its_subscriber_may_not_have_waits_for_those_before_it() -> None:
    node = Node()
    small = subscriber(node, "small", level=5, properties={"maximum_packet_size": 100})
    large = subscriber(node, "large")
    configure(node)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"1", b"2" * 200, b"3")
    (first,) = published(small)
    assert (first.payload, payloads(large)) == (b"1", [])
    publish(publisher, "t/b", b"b")
    assert payloads(large) == [b"b"]
    ack(small, first)
    assert payloads(large) == [b"2" * 200, b"3"]
    assert payloads(small) == []


def test_a_message_that_nobody_may_have_is_dropped_and_its_key_goes_on() -> None:
    node = Node()
    small = subscriber(node, "small", level=5, properties={"maximum_packet_size": 100})
    configure(node)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"1" * 200, b"2")
    assert payloads(small) == [b"2"]
    assert node.turn.queued == 1


def test_a_subscriber_with_qos_0_gets_nothing_before_others_have_acknowledged() -> None:
    node = Node()
    one, other, publisher = two(node)
    publish(publisher, "t/a", b"1")
    (held,) = published(one)
    one.send(Subscribe(1, [(FILTER, 0)]))
    one.take()
    publish(publisher, "t/a", b"2")
    assert payloads(one) == payloads(other) == []
    ack(one, held)
    assert payloads(one) + payloads(other) == [b"2"]


def test_qos_0_goes_to_one_subscriber_per_key() -> None:
    node = Node()
    subscribers = [subscriber(node, f"m{number}", 0) for number in range(3)]
    configure(node)
    publisher = Client(node, "publisher")
    for number in range(90):
        publisher.send(Publish(f"t/{number % 30}", b"%d" % number))
    found = [{packet.topic_name for packet in published(client)} for client in subscribers]
    assert sum(map(len, found)) == 30
    assert all(found)


def test_the_strategy_may_change() -> None:
    node = Node()
    one, other, publisher = two(node, window=1)
    publish(publisher, "t/a", b"1", b"2", b"3")
    group = configure(node, "rotation", window=1)
    node.end_turn()
    node.run()
    assert payloads(one) + payloads(other) == [b"1", b"2"]
    assert group.settings.strategy == "rotation"
    configure(node, "topic")
    node.end_turn()
    node.run()
    assert payloads(one) + payloads(other) == [b"3"]


def test_absent_subscribers_and_the_end_of_a_group_leave_no_counts() -> None:
    node = Node()
    one, other, publisher = two(node, window=1)
    publish(publisher, "t/a", b"1", b"2", b"3")
    publish(publisher, "t/b", b"4", b"5")
    one.close()
    other.close()
    assert not node.router.filters.groups
    assert (node.turn.queued, node.turn.queued_bytes) == (0, 0)


def test_pubrec_keeps_the_key() -> None:
    node = Node()
    one, other = subscriber(node, "one", 2), subscriber(node, "other", 2)
    configure(node, window=1)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"1", b"2", qos=2)
    (held,) = published(one)
    one.send(Pubrec(held.packet_id))
    one.take()
    assert payloads(other) == []
    one.send(Pubcomp(held.packet_id))
    assert payloads(one) + payloads(other) == [b"2"]


def test_a_message_that_becomes_a_dead_letter_gives_its_key_free() -> None:
    node = Node(shared={"redispatch": 0, "max_deliveries": 1})
    one = subscriber(node, "one", level=5)
    other = subscriber(node, "other", level=5)
    configure(node, window=1, max_deliveries=1)
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"1", b"2")
    (held,) = published(one)
    one.send(Puback(held.packet_id, 0x80))
    node.end_turn()
    node.run()
    assert payloads(one) + payloads(other) == [b"2"]
    assert only_group(node).waiting == 0


def test_the_last_value_replaces_one_that_waits_for_its_subscriber() -> None:
    node = Node()
    one, other = subscriber(node, "one"), subscriber(node, "other")
    only_group(node).configure(
        GroupSettings(declaration=b'{"strategy":"topic"}', strategy="topic", window=1, last_value=True)
    )
    publisher = Client(node, "publisher")
    publish(publisher, "t/a", b"1", b"2", b"3", b"4")
    (held,) = published(one)
    assert held.payload == b"1"
    assert [payload for _, _, payload in only_group(node).messages()] == [b"4"]
    ack(one, held)
    assert payloads(one) + payloads(other) == [b"4"]
    assert node.turn.queued == 1


def test_a_declared_group_keeps_its_keys_over_restarts() -> None:
    node = Node(KeepingStore(), smallest=0)
    settings = settings_of(declared(FILTER, {"strategy": "publisher"}).stored, node.turn.shared)
    node.router.filters.declare(node.turn, FILTER.encode(), settings)
    one = subscriber(node, "one", clean_start=False)
    first, second = Client(node, "first"), Client(node, "second")
    publish(first, "t/a", b"1")
    assert payloads(one) == [b"1"]
    one.close()
    publish(first, "t/b", b"2")
    publish(second, "t/c", b"3")
    for _ in range(2):
        node.turn.seal()
        node.run()
        store = node.store
        node.close()
        node = Node(KeepingStore(store.after(len(store.told))), smallest=0)
    assert only_group(node).settings.strategy == "publisher"
    other = Client(node, "other")
    other.send(Subscribe(1, [(FILTER, 1)]))
    assert payloads(other) == [b"3"]  # `first` has a message with `one`
