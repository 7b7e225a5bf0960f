"""Shared subscriptions where something is in the way: sizes, rights, slow readers, ends at a bad moment."""

from flockmq._speedups.codec.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from flockmq._speedups.session import session_view
from flockmq._speedups.session.journal import block_of
from flockmq._speedups.session.rights import READ, Rights
from tests.harness.inprocess import Client, KeepingStore, Node

FILTER = "$share/g/t/#"


def subscriber(node: Node, name: str, qos: int = 1, **connect: object) -> Client:
    client = Client(node, name, **connect)  # type: ignore[arg-type]
    client.connack()
    client.send(Subscribe(1, [(FILTER, qos)]))
    client.take()
    return client


def published(client: Client) -> list[Publish]:
    return [packet for packet in client.take() if isinstance(packet, Publish)]


def publish(client: Client, payload: bytes, topic: str = "t/a", qos: int = 1) -> None:
    client.send(Publish(topic, payload, qos, packet_id=1))
    client.take()


def test_a_message_that_nobody_with_room_may_take_does_not_stop_the_others() -> None:
    node = Node()
    small = subscriber(node, "small", level=5, properties={"maximum_packet_size": 100})
    subscriber(node, "absent", clean_start=False).close()
    publisher = Client(node, "publisher")
    publish(publisher, b"x" * 200)
    for number in range(3):
        publish(publisher, b"%d" % number)
    assert [packet.payload for packet in published(small)] == [b"0", b"1", b"2"]
    (group,) = node.router.filters.groups.values()
    assert group.waiting == 1


def test_a_subscriber_with_qos_0_gets_a_packet_that_just_fits() -> None:
    node = Node()
    small = subscriber(node, "small", qos=0, level=5, properties={"maximum_packet_size": 100})
    publisher = Client(node, "publisher")
    publish(publisher, b"x" * 92)  # a PUBLISH of 100 bytes without packet identifier, 102 with it
    publish(publisher, b"x" * 93)
    assert [packet.payload for packet in published(small)] == [b"x" * 92]


def test_messages_for_absent_subscribers_are_limited() -> None:
    node = Node(shared={"max_queued_messages": 3})
    subscriber(node, "small", level=5, properties={"maximum_packet_size": 100})
    subscriber(node, "absent", clean_start=False).close()
    publisher = Client(node, "publisher")
    for number in range(8):
        publish(publisher, b"%d" % number * 200)
    (group,) = node.router.filters.groups.values()
    assert [payload[:1] for _, _, payload in group.messages()] == [b"0", b"1", b"2"]
    assert node.turn.queued == 3
    assert group.purge() == 3
    assert (node.turn.queued, node.turn.queued_bytes, group.waiting, group.waiting_size) == (0, 0, 0, 0)


def test_messages_for_a_subscriber_that_leaves_are_dropped_if_no_other_may_have_them() -> None:
    node = Node()
    subscriber(node, "small", level=5, properties={"maximum_packet_size": 100})
    subscriber(node, "absent", clean_start=False).close()
    publish(Client(node, "publisher"), b"x" * 200)
    assert node.turn.queued == 1
    Client(node, "absent", clean_start=True)
    (group,) = node.router.filters.groups.values()
    assert group.waiting == 0
    assert node.turn.queued == 0


def test_rights_that_change_let_messages_through() -> None:
    node = Node()
    one, session = subscriber(node, "one"), node.sessions.get(b"one")
    assert session is not None
    subscriber(node, "absent", clean_start=False).close()
    session.set_rights(Rights([(True, READ, b"t/b")]))
    node.router.filters.forget_plans()
    publisher = Client(node, "publisher")
    publish(publisher, b"1", "t/a")
    publish(publisher, b"2", "t/b")
    assert [packet.payload for packet in published(one)] == [b"2"]
    session.set_rights(None)
    node.router.filters.forget_plans()
    node.end_turn()
    node.run()
    assert [packet.payload for packet in published(one)] == [b"1"]


def test_a_slow_reader_of_qos_0_gets_no_more_than_it_reads() -> None:
    node = Node()
    subscriber(node, "absent", clean_start=False).close()
    slow = subscriber(node, "slow", 0)
    publisher = Client(node, "publisher")
    for number in range(200):
        publish(publisher, b"%03d" % number * 5000)
    (group,) = node.router.filters.groups.values()
    assert group.waiting > 100  # 3 MB, which socket and output do not hold
    found = published(slow)
    assert [packet.payload[:3] for packet in found] == [b"%03d" % number for number in range(200)]
    assert group.waiting == 0


def test_a_message_of_qos_2_that_was_never_sent_goes_to_another_when_its_subscriber_leaves() -> None:
    node = Node(auto=False)
    node.confirm()
    stays = Client(node, "stays", clean_start=False)
    leaves, publisher = Client(node, "leaves"), Client(node, "publisher", clean_start=False)
    node.confirm()
    for client in (leaves, stays):
        client.write(Subscribe(1, [(FILTER, 2)]))
        node.run()
        node.confirm()
        client.take()
    for packet_id in (1, 2):
        publisher.send(Publish("t/a", b"%d" % packet_id, 2, packet_id=packet_id), Pubrel(packet_id))
    leaves.send(Unsubscribe(2, [FILTER]))
    node.confirm()
    node.run()
    node.confirm()
    node.run()
    assert published(leaves) == []
    assert {packet.payload for packet in published(stays)} == {b"1", b"2"}


def test_a_session_that_ends_while_its_client_is_connected_leaves_nothing_behind() -> None:
    node = Node()
    one = subscriber(node, "one", 2, clean_start=False)
    publish(Client(node, "publisher"), b"1", qos=1)
    publisher = Client(node, "publisher2")
    publisher.send(Publish("t/a", b"2", 2, packet_id=1), Pubrel(1))
    packets = published(one)
    assert [packet.qos for packet in packets] == [1, 2]
    session = node.sessions.get(b"one")
    assert session is not None
    node.router.filters.unsubscribe_all(session)
    one.send(Puback(packets[0].packet_id), Pubrec(packets[1].packet_id))
    one.send(Pubcomp(packets[1].packet_id))  # its entries are no group's any more
    assert session.queue_length == 0
    assert node.router.filters.groups == {}
    assert (node.turn.queued, node.turn.queued_bytes, node.turn.inflight) == (0, 0, 0)


def test_a_group_that_ended_has_no_messages_when_it_begins_again() -> None:
    name = FILTER.encode()
    block = block_of(
        [
            ("SESSION", 1, 4, 0, 1, 1, b"one"),
            ("GROUP", 5, name),  # a compaction has not yet written its subscribers
            ("MESSAGE", 1, 1, 0, b"t/a", b"x", b"", 0),
            ("GROUP_QUEUED", 5, 7, 1),
            ("UNSUBSCRIBED", 1, name),
            ("GROUP_GONE", 5),
            ("SUBSCRIBED", 1, 1, 0, name),
            ("GROUP", 6, name),
        ]
    )
    node = Node(KeepingStore([block]))
    (group,) = node.router.filters.groups.values()
    assert group.session_id == 6
    assert group.messages() == []


def test_a_message_dropped_at_the_start_is_done_in_the_store() -> None:
    node = Node()
    subscriber(node, "absent", clean_start=False).close()
    publisher = Client(node, "publisher")
    for number in range(3):
        publish(publisher, b"%d" % number)
    store = node.store
    node.close()
    for wanted, shared in (([b"0", b"1"], {"max_queued_messages": 2}), ([b"0", b"1"], {})):
        node = Node(KeepingStore(store.after(len(store.told))), shared=shared)
        (group,) = node.router.filters.groups.values()
        assert [payload for _, _, payload in group.messages()] == wanted
        node.turn.seal()
        store = node.store
        node.close()


def test_unsubscribe_and_subscribe_again_with_messages_under_way() -> None:
    node = Node(shared={"window": 2})
    one, other = subscriber(node, "one", clean_start=False), subscriber(node, "other", clean_start=False)
    other.send(Disconnect())
    other.close()
    publisher = Client(node, "publisher")
    for number in range(4):
        publish(publisher, b"%d" % number)
    first = published(one)
    assert [packet.payload for packet in first] == [b"0", b"1"]
    one.send(Unsubscribe(2, [FILTER]))
    one.send(Subscribe(3, [(FILTER, 1)]))
    second = published(one)
    assert [packet.payload for packet in second] == [b"2", b"3"]
    (group,) = node.router.filters.groups.values()
    assert [found.given_now for found in group.subscribers if found.session.client_id == b"one"] == [2]
    for packet in first:
        one.send(Puback(packet.packet_id))
    assert [found.given_now for found in group.subscribers if found.session.client_id == b"one"] == [2]
    for packet in second:
        one.send(Puback(packet.packet_id))
    assert [found.given_now for found in group.subscribers] == [0, 0]
    assert (node.turn.queued, node.turn.queued_bytes, node.turn.inflight) == (0, 0, 0)


def test_a_client_that_is_taken_over_goes_on() -> None:
    node = Node(shared={"window": 2})
    for level in (4, 5):
        properties = {"session_expiry_interval": 100} if level == 5 else {}
        first = subscriber(node, f"one{level}", clean_start=False, level=level, properties=properties)
        publisher = Client(node, "publisher")
        for number in range(5):
            publish(publisher, b"%d" % number)
        assert [packet.payload for packet in published(first)] == [b"0", b"1"]
        second = Client(node, f"one{level}", clean_start=False, level=level, properties=properties)
        second.connack()
        got: list[bytes] = []
        while packets := published(second):
            got += [packet.payload for packet in packets]
            second.send(*(Puback(packet.packet_id) for packet in packets))
        assert got == [b"0", b"1", b"2", b"3", b"4"]
        (group,) = node.router.filters.groups.values()
        assert (group.waiting, node.turn.queued, node.turn.queued_bytes, node.turn.inflight) == (0, 0, 0, 0)
        second.send(Unsubscribe(1, [FILTER]))


def test_expired_messages_go_to_nobody() -> None:
    node = Node(shared={"window": 1})
    one = subscriber(node, "one", level=5)
    publisher = Client(node, "publisher", level=5)
    for number in range(4):
        publisher.send(
            Publish("t/a", b"%d" % number, 1, packet_id=1, properties={"message_expiry_interval": 2} if number else {})
        )
    (packet,) = published(one)
    node.advance(12)
    publisher.send(Publish("t/a", b"4", 1, packet_id=1))
    one.send(Puback(packet.packet_id))
    assert [packet.payload for packet in published(one)] == [b"4"]
    assert node.turn.queued == 1
    assert node.counted("expired") == 3


def test_messages_that_a_hook_keeps_from_a_subscriber_are_done() -> None:
    node = Node(shared={"window": 2})
    one, zero = subscriber(node, "one"), subscriber(node, "zero", 0)
    asked: list[bytes] = []

    def refuse(session: object, topic: bytes, payload: bytes, *_: object) -> bool:
        asked.append(payload)
        return False

    node.turn.set_hooks(False, refuse)
    publisher = Client(node, "publisher")
    for number in range(20):
        publish(publisher, b"%d" % number)
    assert len(asked) == 20
    assert published(one) == published(zero) == []
    (group,) = node.router.filters.groups.values()
    assert (group.waiting, node.turn.queued, node.turn.queued_bytes, node.turn.inflight) == (0, 0, 0, 0)
    assert [found.given_now for found in group.subscribers] == [0, 0]


def test_a_window_that_is_made_larger_and_smaller_is_used() -> None:
    node = Node(shared={"window": 4})
    one = subscriber(node, "one", level=5, properties={"receive_maximum": 1})
    two = subscriber(node, "two")
    publisher = Client(node, "publisher")
    for number in range(30):
        publish(publisher, b"%d" % number)
    got: set[bytes] = set()
    for _ in range(40):
        for client, most in ((one, 1), (two, 4)):
            packets = published(client)
            assert len(packets) <= most
            got |= {packet.payload for packet in packets}
            client.send(*(Puback(packet.packet_id) for packet in packets))
    assert got == {b"%d" % number for number in range(30)}
    assert (node.turn.queued, node.turn.queued_bytes, node.turn.inflight) == (0, 0, 0)


def test_level_3_retries_keep_the_counts() -> None:
    node = Node(shared={"window": 2}, mqtt={"retry_interval": 1.0})
    one = subscriber(node, "one", level=3)
    publisher = Client(node, "publisher")
    for number in range(4):
        publish(publisher, b"%d" % number)
    first = published(one)
    node.advance(6)
    again = published(one)
    assert [packet.payload for packet in first] == [packet.payload for packet in again][:2] == [b"0", b"1"]
    assert all(packet.dup for packet in again)
    for packet_id in range(1, 5):
        one.send(Puback(packet_id))
    assert {packet.payload for packet in published(one)} >= {b"2", b"3"}
    (group,) = node.router.filters.groups.values()
    assert (group.waiting, node.turn.queued, node.turn.queued_bytes, node.turn.inflight) == (0, 0, 0, 0)


def test_a_message_that_was_put_aside_hides_no_expired_one() -> None:
    node = Node()
    subscriber(node, "absent", clean_start=False).close()
    properties = {"maximum_packet_size": 100, "session_expiry_interval": 100}
    small = subscriber(node, "small", 0, level=5, clean_start=False, properties=properties)
    publisher = Client(node, "publisher", level=5)
    publish(publisher, b"x" * 200)
    small.close()
    publisher.send(Publish("t/a", b"late", 1, packet_id=1, properties={"message_expiry_interval": 1}))
    node.advance(8)
    small = Client(node, "small", level=5, clean_start=False, properties=properties)
    assert published(small) == []
    assert node.counted("expired") == 1
    (group,) = node.router.filters.groups.values()
    assert [payload for _, _, payload in group.messages()] == [b"x" * 200]


def test_a_subscriber_without_packet_identifiers_gets_no_more() -> None:
    """It got a window of messages more, which it could not be sent, and which other subscribers did not get."""
    node = Node(shared={"max_queued_messages": 100_000})
    one, publisher = subscriber(node, "one"), Client(node, "publisher")
    for _ in range(656):
        publisher.send(*(Publish("t/a", b"x", 1, packet_id=number) for number in range(1, 101)))
        publisher.take()
        while received := [packet.packet_id for packet in published(one) if packet.packet_id != 1]:
            one.send(*map(Puback, received))
        node.store.told.clear()  # no restart follows
        node.store.done = 0
    (group,), session = node.router.filters.groups.values(), node.sessions.get(b"one")
    assert session is not None
    assert (group.waiting, session.queue_length) == (65_600 - 65_534, 1)
    assert session_view.hold_up(session) == (1, 1, b"t/a", 0)
    two = subscriber(node, "two")
    for first in (1, 33, 65):
        two.send(*map(Puback, range(first, first + 32)))
    assert group.waiting == 0
    two.take()
    one.send(Puback(1))
    publish(publisher, b"a")
    publish(publisher, b"b")
    assert [len(published(client)) for client in (one, two)] == [1, 1]
