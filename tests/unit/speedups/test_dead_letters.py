"""Dead letters of one node: messages that are refused, or come back, as often as `max_deliveries` allows."""

import pytest

from flockmq._speedups.codec.packets import Disconnect, Packet, Puback, Publish, Pubrec, Pubrel, Subscribe
from flockmq._speedups.codec.reason_codes import ReasonCode
from flockmq._speedups.session.group import Group, give_back_sent
from flockmq.broker.core import dead_letters
from tests.harness.inprocess import Client, KeepingStore, Node

FILTER = "$share/g/t/#"
DEAD = "dead/letters"
NEVER = {"session_expiry_interval": 0xFFFFFFFF}
REFUSAL = ReasonCode.QUOTA_EXCEEDED


def new_node(store: KeepingStore | None = None, most: int = 2, topic: str = DEAD, **shared: object) -> Node:
    return Node(store, shared={"max_deliveries": most, "dead_letter_topic": topic, **shared})


def client_of(node: Node, name: str, *, clean: bool = False) -> Client:
    client = Client(node, name, level=5, clean_start=clean, properties={} if clean else NEVER)
    client.connack()
    return client


def subscriber(node: Node, name: str, qos: int = 1, topic_filter: str = FILTER, *, clean: bool = True) -> Client:
    client = client_of(node, name, clean=clean)
    client.send(Subscribe(1, [(topic_filter, qos)]))
    return client


def published(client: Client) -> list[Publish]:
    return [packet for packet in client.take() if isinstance(packet, Publish)]


def publish(node: Node, payload: bytes, qos: int = 1, **properties: object) -> None:
    client = Client(node, "publisher", level=5)
    client.send(Publish("t/a", payload, qos, packet_id=1, properties=properties))
    if qos == 2:
        client.send(Pubrel(1))
    client.close()


def refusal(packet: Publish) -> Packet:
    return (Puback if packet.qos == 1 else Pubrec)(packet.packet_id, REFUSAL)


def group_of(node: Node) -> Group:
    (group,) = node.router.filters.groups.values()
    return group


def history(packet: Publish) -> dict[str, str]:
    return dict(packet.properties["user_property"])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
def test_a_refused_message_goes_to_another_subscriber_and_then_to_the_dead_letters(qos: int, clean: bool) -> None:
    node = new_node()
    watcher = subscriber(node, "watcher", 2, DEAD)
    subscribers = [subscriber(node, name, qos, clean=clean) for name in ("one", "two")]
    publish(node, b"1", qos, user_property=[("a", "b")], content_type="text")
    (first,) = published(subscribers[0])
    subscribers[0].send(refusal(first))
    (second,) = published(subscribers[1])
    assert (second.payload, second.qos, second.dup) == (b"1", qos, False)
    assert published(watcher) == []
    subscribers[1].send(refusal(second))
    (letter,) = published(watcher)
    assert (letter.topic_name, letter.payload, letter.qos) == (DEAD, b"1", qos)
    assert letter.properties["user_property"] == [
        ("a", "b"),
        (dead_letters.GROUP, FILTER),
        (dead_letters.TOPIC, "t/a"),
        (dead_letters.DELIVERIES, "2"),
        (dead_letters.REASON, "refused: 0x97 quota exceeded"),
    ]
    assert letter.properties["content_type"] == "text"
    assert published(subscribers[0]) == published(subscribers[1]) == []
    assert node.turn.counted()["dead_letters"] == 1
    assert group_of(node).waiting == 0
    publish(node, b"2", qos)
    assert [packet.payload for client in subscribers for packet in published(client)] == [b"2"]


def test_without_a_limit_a_refused_message_is_discarded() -> None:
    node = new_node(most=0)
    one, watcher = subscriber(node, "one"), subscriber(node, "watcher", 1, DEAD)
    publish(node, b"1")
    (packet,) = published(one)
    one.send(refusal(packet))
    assert published(one) == published(watcher) == []
    assert node.turn.counted()["dead_letters"] == 0
    assert node.turn.inflight == node.turn.queued == 0


def test_the_only_subscriber_gets_a_message_again_that_it_refuses() -> None:
    node = new_node(most=3)
    one, watcher = subscriber(node, "one"), subscriber(node, "watcher", 1, DEAD)
    publish(node, b"1")
    for _ in range(3):
        (packet,) = published(one)
        one.send(refusal(packet))
    assert published(one) == []
    (letter,) = published(watcher)
    assert history(letter)[dead_letters.DELIVERIES] == "3"
    watcher.send(Puback(letter.packet_id))
    assert node.turn.inflight == node.turn.queued == 0


def test_subscribers_that_die_with_a_message() -> None:
    node = new_node()
    watcher = subscriber(node, "watcher", 1, DEAD)
    first = subscriber(node, "first")
    publish(node, b"1")
    assert len(published(first)) == 1
    last = subscriber(node, "last")
    first.close()
    assert len(published(last)) == 1
    last.close()
    (letter,) = published(watcher)
    assert history(letter)[dead_letters.REASON] == "not acknowledged"


def test_a_message_that_was_never_sent_is_not_counted() -> None:
    node = new_node(most=1, window=1)
    absent = subscriber(node, "absent", clean=False)
    absent.close()
    watcher = subscriber(node, "watcher", 1, DEAD)
    publish(node, b"1")
    assert group_of(node).waiting == 1
    one = subscriber(node, "one")
    (packet,) = published(one)
    one.send(Puback(packet.packet_id))
    assert published(watcher) == []


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
def test_the_count_outlives_the_node(clean: bool) -> None:
    node = new_node(most=3)
    subscriber(node, "watcher", 1, DEAD, clean=False).close()
    subscriber(node, "absent", clean=False).close()
    one = subscriber(node, "one", clean=clean)
    publish(node, b"1")
    (packet,) = published(one)
    one.send(refusal(packet))
    (packet,) = published(one)
    one.send(Disconnect())
    one.close()
    if not clean:
        session = node.sessions.get(b"one")
        assert session is not None
        assert give_back_sent(session) == 1
    node.end_turn()
    node.turn.seal()
    store = node.store
    node.close()
    node = new_node(KeepingStore(store.after(len(store.told))), most=3)
    two, watcher = subscriber(node, "two"), client_of(node, "watcher")
    (packet,) = published(two)
    assert published(watcher) == []
    two.send(refusal(packet))
    (letter,) = published(watcher)
    assert history(letter)[dead_letters.DELIVERIES] == "3"


def test_whenever_the_node_dies_the_message_is_waiting_or_a_dead_letter() -> None:
    node = new_node(most=2)
    subscriber(node, "watcher", 1, DEAD, clean=False).close()
    one = subscriber(node, "one", clean=False)
    publish(node, b"1")
    start = len(node.store.told)
    for _ in range(2):
        (packet,) = published(one)
        one.send(refusal(packet))
    node.turn.seal()
    told, end = node.store, len(node.store.told)
    node.close()
    seen = set()
    for moment in range(start, end + 1):
        node = new_node(KeepingStore(told.after(moment)), most=2)
        node.run()
        watcher = client_of(node, "watcher")
        again = client_of(node, "one")
        letters, rest = len(published(watcher)), len(published(again))
        assert letters + rest == 1, moment
        seen.add((letters, rest))
        node.close()
    assert seen == {(0, 1), (1, 0)}


def test_an_acknowledged_message_leaves_nothing_behind() -> None:
    node = new_node(most=5)
    one = subscriber(node, "one", clean=False)
    publish(node, b"1")
    (packet,) = published(one)
    one.send(refusal(packet))
    (packet,) = published(one)
    one.send(Puback(packet.packet_id))
    node.turn.seal()
    store = node.store
    node.close()
    node = new_node(KeepingStore(store.after(len(store.told))), most=1)
    node.run()
    assert node.turn.counted()["dead_letters"] == 0
    assert group_of(node).waiting == 0


def test_a_dead_letter_that_no_subscriber_acknowledges_is_dropped() -> None:
    node = new_node(most=1, topic="t/dead")
    one = subscriber(node, "one")
    publish(node, b"1")
    for topic in ("t/a", "t/dead"):
        (packet,) = published(one)
        assert packet.topic_name == topic
        one.send(refusal(packet))
    assert published(one) == []
    assert node.turn.counted()["dead_letters"] == 2


def test_without_a_topic_dead_letters_are_dropped_and_counted() -> None:
    node = new_node(most=1, topic="")
    one = subscriber(node, "one", 2)
    publish(node, b"1", 2)
    (packet,) = published(one)
    one.send(refusal(packet))
    assert published(one) == []
    assert node.turn.counted()["dead_letters"] == 1
    assert node.turn.inflight == node.turn.queued == 0


def test_an_episode_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    node = new_node(most=1)
    one = subscriber(node, "one")
    for number in range(3):
        publish(node, b"%d" % number)
        (packet,) = published(one)
        one.send(refusal(packet))
    plane = node.broker.data_plane
    plane.dead_letters.tick(0.0)
    begun = [record for record in caplog.records if "has dead letters" in record.getMessage()]
    assert len(begun) == 1
    plane.dead_letters.close()
    (over,) = [record for record in caplog.records if "no more dead letters" in record.getMessage()]
    assert over.levelname == "WARNING"


def test_a_message_with_as_many_user_properties_as_it_may_have_becomes_a_dead_letter_without_its_history() -> None:
    """Its history was one property too many: the exception left the turn, and those behind the group got nothing."""
    node = new_node(most=1)
    watcher = subscriber(node, "watcher", 1, DEAD)
    worker = subscriber(node, "worker")
    bystander = subscriber(node, "bystander", 1, "t/#")
    publish(node, b"1", user_property=[("a", "b")] * 128)
    (packet,) = published(worker)
    published(bystander)
    worker.write(refusal(packet))
    publish(node, b"2")
    (letter,) = published(watcher)
    assert (letter.payload, letter.properties["user_property"]) == (b"1", [("a", "b")] * 128)
    assert [packet.payload for packet in published(bystander)] == [b"2"]
