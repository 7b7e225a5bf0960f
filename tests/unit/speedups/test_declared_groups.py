"""Groups that are declared: work waits for the first worker, with settings of the group's own."""

from typing import Any

import pytest

from flockmq._speedups.codec.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from flockmq._speedups.session.group import Group
from flockmq._speedups.session.rights import READ, Rights
from flockmq.broker.config.declared_group import DeclaredGroup, declared
from flockmq.broker.core.group_settings import settings_of
from flockmq.broker.storage import compaction
from tests.harness.inprocess import Client, KeepingStore, Node

NAME = "$share/g/t/#"


def declare(**options: Any) -> DeclaredGroup:
    return declared(NAME, options)


def node_with(store: KeepingStore | None = None, **options: Any) -> Node:
    return Node(store, shared={"groups": (declare(**options),)})


def redeclare(node: Node, **options: Any) -> None:
    node.router.filters.declare(node.turn, NAME.encode(), settings_of(declare(**options).stored, node.turn.shared))
    node.end_turn()
    node.run()


def remove(node: Node) -> int | None:
    dropped = node.router.filters.undeclare(NAME.encode())
    node.end_turn()
    node.run()
    return dropped


def subscriber(node: Node, name: str, qos: int = 1, **connect: Any) -> Client:
    client = Client(node, name, **connect)
    if not client.connack().session_present:
        client.write(Subscribe(1, [(NAME, qos)]))
        node.run()
    return client


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.take() if isinstance(packet, Publish)]


def publish(client: Client, *sent: bytes, topic: str = "t/a", qos: int = 1, **properties: Any) -> None:
    for payload in sent:
        client.send(Publish(topic, payload, qos, packet_id=1 if qos else 0, properties=properties or None))
        if qos == 2:
            client.send(Pubrel(1))
    client.take()


def waiting(node: Node) -> list[bytes]:
    return [payload for _, _, payload in group_of(node).messages()]


def group_of(node: Node) -> Group:
    return node.router.filters.groups[NAME.encode()]


def restarted(node: Node, shared: dict[str, Any] | None = None) -> Node:
    node.turn.seal()
    node.run()
    blocks = node.store.after(len(node.store.told))
    node.close()
    return Node(KeepingStore(blocks), shared=shared or {})


@pytest.mark.parametrize("level", [3, 4, 5])
def test_work_waits_for_its_first_worker(level: int) -> None:
    node = node_with()
    publisher = Client(node, "publisher", level=5)
    publisher.connack()
    publisher.send(Publish("t/a", b"1", 1, packet_id=1))
    assert publisher.take_one(Puback).reason_code == 0  # there is a subscriber
    publish(publisher, b"2", qos=2)
    publish(publisher, b"0", qos=0)  # for subscribers that are there
    assert waiting(node) == [b"1", b"2"]
    worker = Client(node, "worker", level=level)
    worker.connack()
    worker.send(Subscribe(1, [(NAME, 2)]))
    found = [(packet.payload, packet.qos) for packet in worker.take() if isinstance(packet, Publish)]
    assert found == [(b"1", 1), (b"2", 2)]


def test_subscribers_come_and_go_and_the_group_stays() -> None:
    node = node_with()
    publisher = Client(node, "publisher")
    for clean in (True, False):
        worker = subscriber(node, "worker", clean_start=clean)
        publish(publisher, b"1")
        assert payloads(worker) == [b"1"]
        if clean:
            worker.close()
        else:
            worker.send(Puback(1), Puback(2), Unsubscribe(2, [NAME]), Disconnect())
        publish(publisher, b"2")
        assert waiting(node) == ([b"1", b"2"] if clean else [b"2"])
        again = subscriber(node, "again")
        publish(publisher, b"3")
        assert payloads(again)[-1] == b"3"
        again.send(*(Puback(number) for number in range(1, 4)))
        again.close()
        assert waiting(node) == []
    assert node.turn.queued == node.turn.queued_bytes == 0


def test_a_subscriber_of_qos_0_gets_messages_when_it_is_there_and_they_wait_when_it_is_not() -> None:
    node = node_with()
    publisher = Client(node, "publisher")
    worker = subscriber(node, "worker", 0)
    publish(publisher, b"1")
    assert payloads(worker) == [b"1"]
    worker.close()
    publish(publisher, b"2")
    assert waiting(node) == [b"2"]


def test_messages_that_no_subscriber_may_read_wait_for_another() -> None:
    node = node_with()
    publisher = Client(node, "publisher")
    worker = subscriber(node, "worker")
    session = node.sessions.get(b"worker")
    assert session is not None
    session.set_rights(Rights([(True, READ, b"t/b")]))
    node.router.filters.forget_plans()
    publish(publisher, b"a")
    publish(publisher, b"b", topic="t/b")
    assert payloads(worker) == [b"b"]
    assert waiting(node) == [b"a"]
    assert payloads(subscriber(node, "other")) == [b"a"]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_declared_group_and_its_queue_outlive_the_node(compacted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE", 1)
    node = node_with(window=3, max_queued_messages=5)
    publisher = Client(node, "publisher")
    publish(publisher, b"1", b"2", b"3", qos=2)
    worker = subscriber(node, "worker", 2)
    assert payloads(worker) == [b"1", b"2", b"3"]
    worker.send(Pubrec(1))
    publish(publisher, b"4", b"5")
    if compacted:
        node.compaction._smallest = 0
        for _ in range(20):
            node.compaction.step()
            node.end_turn()
            node.run()
    node = restarted(node)
    assert group_of(node).settings.max_messages == 5
    assert waiting(node) == [b"4", b"5"]  # QoS 2: the others had begun with a clean session
    assert payloads(subscriber(node, "worker", 2)) == [b"4", b"5"]


def test_a_group_of_the_configuration_is_not_written_again(start: int = 3) -> None:
    node = node_with(window=3)
    node.turn.seal()
    blocks = len(node.store.told)
    for _ in range(start):
        node = restarted(node, {"groups": (declare(window=3),)})
        assert len(node.store.told) == blocks
    node = restarted(node, {"groups": (declare(window=4),)})
    assert group_of(node).settings.window == 4
    assert group_of(restarted(node)).settings.window == 4


def test_a_group_that_is_removed_drops_what_waits_and_counts_it() -> None:
    node = node_with()
    publish(Client(node, "publisher"), b"1", b"2")
    assert remove(node) == 2
    assert node.counted("shared_discarded") == 2
    assert (node.router.filters.groups, node.turn.queued, node.turn.queued_bytes) == ({}, 0, 0)
    assert node.router.filters.filters() == []
    assert remove(node) is None
    node = restarted(node)
    assert (node.router.filters.groups, node.turn.queued, node.router.filters.filters()) == ({}, 0, [])


@pytest.mark.parametrize("persistent", [True, False])
def test_a_group_with_subscribers_is_an_ordinary_one_when_it_is_removed(persistent: bool) -> None:
    node = node_with(window=1)
    worker = subscriber(node, "worker", clean_start=not persistent)
    publisher = Client(node, "publisher")
    publish(publisher, b"1", b"2")
    assert payloads(worker) == [b"1"]
    assert remove(node) == 0
    assert payloads(worker) == [b"2"]  # the window is the node's now
    publish(publisher, b"3")
    assert payloads(worker) == [b"3"]
    node = restarted(node)
    if persistent:
        assert group_of(node).settings.declared is False
        assert payloads(subscriber(node, "worker", clean_start=False)) == [b"1", b"2", b"3"]
    else:
        assert node.router.filters.groups == {}


def test_a_group_with_subscribers_can_be_declared() -> None:
    node = Node()
    worker = subscriber(node, "worker")
    publisher = Client(node, "publisher")
    publish(publisher, b"1")
    redeclare(node)
    node = restarted(node)
    assert waiting(node) == [b"1"]
    assert worker


@pytest.mark.parametrize(("policy", "kept"), [("drop-old", [b"2", b"3"]), ("drop-new", [b"1", b"2"])])
def test_a_full_queue_drops_by_the_policy_of_the_group(policy: str, kept: list[bytes]) -> None:
    node = node_with(max_queued_messages=2, when_full=policy)
    publish(Client(node, "publisher"), b"1", b"2", b"3")
    assert waiting(node) == kept
    assert waiting(restarted(node)) == kept


def test_settings_that_a_group_lacks_are_those_of_the_node() -> None:
    group = declare(max_queued_messages=7)
    node = Node(shared={"groups": (group,), "window": 9, "max_queued_messages": 8})
    settings = group_of(node).settings
    assert (settings.window, settings.max_messages) == (9, 7)
    changed = Node(shared={"window": 5}).broker.config
    node.broker.configure(changed)
    assert (settings.window, settings.max_messages) == (5, 7)


def test_a_reload_declares_groups_and_keeps_those_that_are_no_longer_there() -> None:
    node = Node()
    for groups, window in (((declare(window=4),), 4), ((declare(window=5),), 5), ((), 5)):
        config = Node(shared={"groups": groups}).broker.config
        node.broker.configure(config)
        node.broker.coordinator.life.configure(config)
        assert group_of(node).settings.window == window


@pytest.mark.parametrize(("own", "left"), [(None, 0), (3, 0), (1000, 0), (1000, 4)])
def test_the_expiry_of_the_group_lowers_that_of_the_message(own: int | None, left: int) -> None:
    node = node_with(expiry=10)
    publisher = Client(node, "publisher", level=5)
    publisher.connack()
    publish(publisher, b"1", **({"message_expiry_interval": own} if own else {}))
    limit = min(own or 10, 10)
    node.advance(4 * (limit - left) + (3 if not left else 0))
    worker = subscriber(node, "worker", level=5)
    found = [packet for packet in worker.take() if isinstance(packet, Publish)]
    if left:
        assert [packet.properties["message_expiry_interval"] for packet in found] == [left]
    else:
        assert found == []
        assert node.counted("expired") == 1


def test_the_expiry_of_a_group_is_not_that_of_other_subscribers() -> None:
    node = node_with(expiry=10)
    other = Client(node, "other", level=5)
    other.connack()
    other.send(Subscribe(1, [("t/#", 1)]))
    other.take()
    publish(Client(node, "publisher"), b"1")
    assert other.take_one(Publish).properties == {}


def test_only_the_newest_message_of_each_topic_waits() -> None:
    node = node_with(last_value=True)
    publisher = Client(node, "publisher")
    for number in range(3):
        for topic in ("a", "b"):
            publish(publisher, b"%s%d" % (topic.encode(), number) * (number + 1), topic=f"t/{topic}", qos=2)
    assert waiting(node) == [b"a2a2a2", b"b2b2b2"]
    assert node.turn.queued == 2
    assert node.turn.queued_bytes == group_of(node).waiting_size == 2 * (3 + 6)
    node = restarted(node)
    assert waiting(node) == [b"a2a2a2", b"b2b2b2"]
    publish(Client(node, "publisher"), b"a3", topic="t/a")
    assert waiting(node) == [b"a3", b"b2b2b2"]
    assert payloads(subscriber(node, "worker", 2)) == [b"a3", b"b2b2b2"]
    assert node.turn.queued_bytes == sum(session.queue_bytes for session in node.sessions)


def test_a_message_that_comes_back_yields_to_a_newer_one() -> None:
    node = node_with(last_value=True, window=2)
    publisher = Client(node, "publisher")
    worker = subscriber(node, "worker")
    publish(publisher, b"1", b"2", b"3", b"4")
    assert payloads(worker) == [b"1", b"2"]
    assert waiting(node) == [b"4"]
    worker.close()
    assert waiting(node) == [b"4"]
    node = restarted(node)
    assert waiting(node) == [b"4"]


@pytest.mark.parametrize("first", [0, 1])
def test_the_newer_of_two_that_come_back_waits(first: int) -> None:
    node = node_with(last_value=True, window=1)
    publisher = Client(node, "publisher")
    workers = [subscriber(node, f"worker{number}") for number in range(2)]
    publish(publisher, b"1", b"2")
    workers[first].close()
    workers[1 - first].close()
    assert waiting(node) == [b"2"]
    assert waiting(restarted(node)) == [b"2"]


def test_a_newer_message_does_not_inherit_failures() -> None:
    node = node_with(last_value=True, max_deliveries=2, window=1)
    publisher = Client(node, "publisher")
    for payload in (b"1", b"2", b"3"):
        publish(publisher, payload)
        node = restarted(node)
        publisher = Client(node, "publisher")
        worker = subscriber(node, "worker")
        assert payloads(worker) == [payload]
        worker.close()
    assert waiting(node) == [b"3"]
    assert node.counted("dead_letters") == 0


def test_subscribers_of_a_paused_group_finish_and_get_nothing_new() -> None:
    node = node_with(window=2)
    publisher = Client(node, "publisher")
    workers = [subscriber(node, f"worker{number}", number) for number in range(2)]
    publish(publisher, b"1", b"2")
    assert [payloads(worker) for worker in workers] == [[b"1"], [b"2"]]
    redeclare(node, window=2, paused=True)
    workers[1].send(Puback(1))
    publish(publisher, b"3", b"4")
    publish(publisher, b"0", qos=0)
    assert [payloads(worker) for worker in workers] == [[], []]
    assert waiting(node) == [b"3", b"4"]
    redeclare(node, window=2)
    assert sorted(payload for worker in workers for payload in payloads(worker)) == [b"3", b"4"]


def test_last_value_can_begin_while_messages_wait() -> None:
    node = node_with()
    publisher = Client(node, "publisher")
    publish(publisher, b"1", b"2")
    redeclare(node, last_value=True)
    publish(publisher, b"3")
    assert waiting(node) == [b"1", b"3"]
    redeclare(node)
    publish(publisher, b"4")
    assert waiting(node) == [b"1", b"3", b"4"]


def test_a_replaced_message_that_nobody_could_read_is_given() -> None:
    node = node_with(last_value=True)
    publisher = Client(node, "publisher")
    worker = subscriber(node, "worker", level=5, properties={"maximum_packet_size": 100})
    publish(publisher, b"x" * 200)
    assert waiting(node) == [b"x" * 200]
    publish(publisher, b"y")
    assert payloads(worker) == [b"y"]
    assert waiting(node) == []


def test_a_group_that_begins_with_qos_2_of_a_clean_session_goes_on() -> None:
    node = node_with()
    publisher = Client(node, "publisher")
    worker = subscriber(node, "worker", 2)
    publish(publisher, b"1", qos=2)
    packet = worker.take()[-1]
    assert isinstance(packet, Publish)
    worker.send(Pubrec(packet.packet_id))
    worker.take()
    worker.send(Pubcomp(packet.packet_id))
    assert waiting(restarted(node)) == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t/#", {}),
        ("$share//t", {}),
        ("$share/g", {}),
        ("$share/g+/t", {}),
        ("$share/g/t/#/x", {}),
        (NAME, {"window": 0}),
        (NAME, {"windows": 1}),
        (NAME, {"when_full": "drop"}),
        (NAME, {"strategy": "random"}),
        (NAME, {"dead_letter_topic": "a/#"}),
    ],
)
def test_wrong_declarations_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        declared(name, options)
