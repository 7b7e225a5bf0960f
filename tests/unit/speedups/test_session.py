"""Sessions against a plain model: queues, packet identifiers, DUP, QoS 2 states, and their state after a restart."""

import gc
from dataclasses import replace
from typing import Any

import pytest

from flockmq._speedups.codec.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flockmq._speedups.session import session_store, session_view
from flockmq._speedups.session.rights import PUBLISH, Rights
from tests.harness.inprocess import Client, KeepingStore, Node
from tests.unit.speedups.session_machine import state_of

# ---- particular cases ----


def subscribed(node: Node, qos: int = 2, **connect: Any) -> Client:
    client = Client(node, "subscriber", **{"clean_start": False, **connect})
    client.connack()
    client.send(Subscribe(packet_id=1, topic_filters=[("t/#", qos), ("live", 0)]))
    client.take_one(Suback)
    return client


def publish(node: Node, payload: bytes, qos: int = 1, topic: str = "t/1") -> None:
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(Publish(topic, payload, qos=qos, packet_id=1 if qos else 0))
    if qos == 2:
        publisher.send(Pubrel(packet_id=1))
    assert len(publisher.take()) == qos
    publisher.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledgement_that_comes_before_the_message_is_sent_again(qos: int) -> None:
    """A client that has done with a QoS 2 message would take it for a new one."""
    node = Node(max_inflight=2)
    client = subscribed(node)
    publish(node, b"one", qos)
    publish(node, b"two", qos)
    one, two = client.take()
    assert isinstance(one, Publish)
    assert isinstance(two, Publish)
    client.close()
    config = node.broker.config
    node.broker.configure(replace(config, limits=replace(config.limits, max_inflight=1)))  # "two" has to wait
    client = Client(node, "subscriber", clean_start=False)
    client.connack()
    for message in (two, one):
        if qos == 1:
            client.send(Puback(packet_id=message.packet_id))
        else:
            client.send(Pubrec(packet_id=message.packet_id), Pubcomp(packet_id=message.packet_id))
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [b"one"]


@pytest.mark.parametrize("policy", ["drop-new", "drop-old"])
def test_a_full_queue_keeps_to_its_limit_and_policy(policy: str) -> None:
    node = Node(queue_policy=policy, max_queued_messages=10)
    subscribed(node).close()
    for number in range(30):
        publish(node, b"%d" % number)
    session = node.sessions.get(b"subscriber")
    assert session is not None
    wanted = range(10) if policy == "drop-new" else range(20, 30)
    assert [entry[-1] for entry in session_view.entries(session)] == [b"%d" % number for number in wanted]
    assert node.counted("dropped_queue_full") == 20
    node.turn.seal()
    assert state_of(Node(KeepingStore(node.store.after(len(node.store.told))), **node.limits)) == state_of(node)


@pytest.mark.parametrize("connected", [True, False])
def test_dropping_the_oldest_costs_no_memory_when_the_first_is_never_acknowledged(connected: bool) -> None:
    """The numbers between messages in flight and others were kept for ever, and searched for each message."""
    node = Node(queue_policy="drop-old", max_queued_messages=20, max_inflight=2)
    client = subscribed(node)
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(Publish("t/1", b"first", qos=1, packet_id=1))
    assert client.take_one(Publish).payload == b"first"
    if not connected:
        client.close()
    count = 200_000
    for begin in range(0, count, 500):
        publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(begin, begin + 500)))
        publisher.take()
        node.store.told.clear()  # no restart follows
        node.store.done = 0
    session = node.sessions.get(b"subscriber")
    assert session is not None
    entries = [entry[-1] for entry in session_view.entries(session)]
    kept = [int(payload) for payload in entries[-18:]]
    assert entries[0] == b"first"  # it was sent
    assert len(entries) == 20
    assert kept == list(range(kept[0], kept[0] + 18))
    assert kept[0] > 60_000
    assert session_view.capacity(session) <= 131_072


@pytest.mark.parametrize("connected", [True, False])
def test_what_was_sent_is_never_dropped(connected: bool) -> None:
    """When 65 535 others had been dropped, the messages in flight were."""
    node = Node(queue_policy="drop-old", max_queued_messages=5, max_inflight=2)
    client = subscribed(node, qos=2)
    publisher = Client(node, "publisher")
    publisher.connack()
    for number, name in enumerate((b"pubrec", b"sent"), 1):
        publisher.send(Publish("t/1", name, qos=2, packet_id=number), Pubrel(packet_id=number))
    sent = [packet for packet in client.take() if isinstance(packet, Publish)]
    client.send(Pubrec(packet_id=sent[0].packet_id))
    assert client.take() == [Pubrel(packet_id=sent[0].packet_id)]
    if not connected:
        client.close()
    for begin in range(0, 80_000, 500):
        publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(begin, begin + 500)))
        publisher.take()
        node.store.told.clear()  # no restart follows
        node.store.done = 0
    if connected:
        client.close()
    again = Client(node, "subscriber", clean_start=False)
    again.connack()
    assert again.take()[:2] == [
        Pubrel(packet_id=sent[0].packet_id),
        Publish("t/1", b"sent", qos=2, packet_id=sent[1].packet_id, dup=True),
    ]


def test_memory_of_a_long_queue_is_returned() -> None:
    node = Node()
    subscribed(node).close()
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(*(Publish("t/1", b"x", qos=1, packet_id=1) for _ in range(9000)))
    publisher.take()
    session = node.sessions.get(b"subscriber")
    assert session is not None
    assert session.queue_length == 9000
    client = Client(node, "subscriber", clean_start=False)
    while session.queue_length:
        for packet in client.take():
            if isinstance(packet, Publish):
                client.write(Puback(packet_id=packet.packet_id))
        node.run()
    assert session_view.capacity(session) <= 1024
    publish(node, b"goes on")
    goes_on = client.take_one(Publish)
    assert goes_on.payload == b"goes on"
    client.send(Puback(packet_id=goes_on.packet_id))
    node.turn.seal()
    again = Node(KeepingStore(node.store.after(len(node.store.told))))  # a store with all of them
    session = again.sessions.get(b"subscriber")
    assert session is not None
    assert session_view.entries(session) == []
    assert session_view.capacity(session) <= 1024
    publish(again, b"after")
    assert [entry[0] for entry in session_view.entries(session)] == [9002]


def test_the_node_s_totals_follow_a_session_that_the_collector_finds() -> None:
    node = Node()
    turn, sessions = node.turn, node.sessions
    session = sessions.create(b"lamp", persistent=False, level=4)
    node.router.filters.subscribe(session, b"t", 1)
    node.router.publish(b"t", b"hello", 1, False)
    assert (turn.queued, turn.queued_bytes) == (1, 6)
    session.owner = [session]
    sessions.end(session)
    del session
    gc.collect()
    assert (turn.queued, turn.queued_bytes) == (0, 0)
    node.close()


def test_messages_that_await_release_are_bounded_in_bytes() -> None:
    node = Node(max_queued_bytes=100_000)
    client = Client(node, "client", clean_start=False)
    client.connack()
    client.send(*(Publish("t/1", bytes(10_000), qos=2, packet_id=number) for number in range(1, 15)))
    assert len(client.take()) <= 10
    assert client.ended


def test_after_a_kill_all_that_may_have_been_sent_has_dup() -> None:
    """Acknowledgements are stored lazily: far more than a window may have been sent since the last that was stored."""
    node = Node(max_inflight=2)
    client = subscribed(node, 1)
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(10)))
    seen: list[bytes] = []
    while packets := client.take():
        for packet in packets:
            assert isinstance(packet, Publish)
            seen.append(packet.payload)
            client.send(Puback(packet_id=packet.packet_id))
    assert len(seen) == 10
    node.close()
    node = Node(KeepingStore(node.store.after(len(node.store.told))), max_inflight=2)
    client = Client(node, "subscriber", clean_start=False)
    client.connack()
    again: list[Publish] = []
    while packets := client.take():
        again += [packet for packet in packets if isinstance(packet, Publish)]
        client.send(*(Puback(packet_id=packet.packet_id) for packet in packets if isinstance(packet, Publish)))
    assert len(again) == 10
    assert all(packet.dup for packet in again)


def test_after_a_kill_what_was_never_sent_to_an_absent_client_has_no_dup() -> None:
    node = Node(max_inflight=2)
    client = subscribed(node, 1)
    publisher = Client(node, "publisher")
    publisher.connack()
    publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(5)))
    assert len(client.take()) == 2
    client.close()
    publisher.send(*(Publish("t/1", b"%d" % number, qos=1, packet_id=1) for number in range(5, 8)))
    node.turn.seal()
    node.run()
    node.close()
    node = Node(KeepingStore(node.store.after(len(node.store.told))))
    client = Client(node, "subscriber", clean_start=False)
    client.connack()
    again = [packet for packet in client.take() if isinstance(packet, Publish)]
    assert [packet.payload for packet in again] == [b"%d" % number for number in range(8)]
    assert [packet.dup for packet in again] == [True] * 2 + [False] * 6


def test_the_packet_identifier_after_65535_is_1() -> None:
    node = Node()
    session = node.sessions.create(b"subscriber", persistent=True, level=4)
    session_store.load(session)
    session_store.restore(session, 65_534, 65_534)  # as if so many messages had been acknowledged before a restart
    session_store.end_restore(session, False)
    client = subscribed(node)
    for number in range(4):
        publish(node, b"%d" % number)
    identifiers = [packet.packet_id for packet in client.take() if isinstance(packet, Publish)]
    assert identifiers == [65_534, 65_535, 1, 2]
    client.send(*(Puback(packet_id=identifier) for identifier in identifiers))
    assert session_view.entries(session) == []


def test_a_compaction_keeps_all_that_is_live() -> None:
    node = Node(smallest=0)
    subscribed(node).close()
    publish(node, b"queued")
    for topic in ("kept/a", "$x/c"):  # `#` does not find the second
        node.router.publish(topic.encode(), b"kept", 0, True)
    told = len(node.store.told)
    while sum(isinstance(thing, int) for thing in node.store.told[told:]) < 2:  # the first may have been under way
        node.compaction.step()
        node.end_turn()
        node.run()
    state = state_of(node)
    assert len(state["retained"]) == 2 and state["sessions"][b"subscriber"][1] == 1
    assert state_of(Node(KeepingStore(node.store.after(len(node.store.told))))) == state


@pytest.mark.parametrize("level", [4, 5])
def test_a_message_of_qos_2_that_is_repeated_is_never_refused(level: int) -> None:
    """[5: MQTT-4.3.3-9]: the identifier was free for its client; here it stood for the old message."""
    node = Node()
    receiver = subscribed(node)
    publisher = Client(node, "publisher", level=level)
    publisher.connack()
    publisher.send(Publish("t/1", b"1", 2, packet_id=1))
    assert publisher.take() == [Pubrec(1)]
    session = node.sessions.get(b"publisher")
    assert session is not None
    session.set_rights(Rights([(True, PUBLISH, b"t/2")]))
    publisher.send(Publish("t/1", b"1", 2, packet_id=1, dup=True))
    assert publisher.take() == [Pubrec(1)]
    publisher.send(Pubrel(1), Publish("t/2", b"2", 2, packet_id=1), Pubrel(1))
    assert publisher.take() == [Pubcomp(1), Pubrec(1), Pubcomp(1)]
    assert [packet.payload for packet in receiver.take() if isinstance(packet, Publish)] == [b"1", b"2"]


def test_a_reload_takes_nothing_back_that_connack_has_promised() -> None:
    """[5: MQTT-3.3.2-12]: a lower limit cut off all clients with more topic aliases, messages or bytes."""
    node = Node(auto=False, mqtt={"topic_alias_maximum": 16})
    clients = [Client(node, name, level=5, clean_start=False) for name in ("before", "after")]
    node.confirm()
    for client in clients:
        client.connack()
    before, after = clients
    config = node.broker.config
    limits = replace(config.limits, receive_maximum=2, max_packet_size=1000)
    node.broker.configure(replace(config, limits=limits, mqtt=replace(config.mqtt, topic_alias_maximum=4)))
    after.close()
    after = Client(node, "after", level=5, clean_start=False)
    node.confirm()
    assert after.connack().properties["topic_alias_maximum"] == 4
    aliased = Publish("t", b"x" * 2000, properties={"topic_alias": 10})
    before.send(aliased, *(Publish("t", b"", 2, packet_id=number) for number in range(1, 6)))
    node.confirm()
    assert before.take() == [Pubrec(number, 0) for number in range(1, 6)]
    after.send(aliased)
    assert [type(packet) for packet in after.take()] == [Disconnect]


@pytest.mark.parametrize("keeps_first", [False, True])
def test_identifiers_of_many_subscriptions_stay_with_their_messages(keeps_first: bool) -> None:
    """[5: MQTT-3.3.4-3]: after 4096 different ones a queue that was never empty had none for others."""
    node = Node()
    client = Client(node, "subscriber", level=5, clean_start=False)
    client.connack()
    for number in range(1, 4201):
        client.send(Subscribe(1, [(f"t/{number}", 1)], {"subscription_identifier": number}))
    client.take()
    publisher = Client(node, "publisher")
    publisher.send(Publish("t/1", b"", 1, packet_id=1))
    first = client.take_one(Publish)
    if not keeps_first:
        client.send(Puback(first.packet_id))
    held: Publish | None = None
    for number in range(1, 4201):
        publisher.send(Publish(f"t/{number}", b"", 1, packet_id=1))
        (packet,) = client.take()
        assert isinstance(packet, Publish)
        assert packet.properties == {"subscription_identifier": [number]}
        if held is not None:
            client.send(Puback(held.packet_id))
        held = packet  # the queue is never empty


@pytest.mark.parametrize("subscribes", [True, False])
def test_an_acknowledgement_that_is_too_large_for_the_client_ends_the_connection(subscribes: bool) -> None:
    """[5: MQTT-3.1.2-24]; it changes nothing before."""
    node = Node()
    properties = {"maximum_packet_size": 50, "session_expiry_interval": 100}
    client = Client(node, "small", level=5, clean_start=False, properties=properties)
    client.connack()
    filters = [f"t/{number}" for number in range(60)]
    client.send(Subscribe(1, [(name, 1) for name in filters]) if subscribes else Unsubscribe(1, filters))
    assert client.take() == []
    assert client.ended
    session = node.sessions.get(b"small")
    assert session is not None
    assert session.subscriptions_held == 0
