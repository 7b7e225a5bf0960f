"""The times of output: acknowledgements after the store, in order, to every client, and nothing grows until then."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from flockmq._speedups.codec.packets import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flockmq._speedups.session import session_view
from tests.harness import inprocess
from tests.harness.inprocess import Client, KeepingStore, Node


def subscriber(node: Node, client_id: str = "subscriber", qos: int = 2, **connect: Any) -> Client:
    """A client with a persistent session that is subscribed to t/#, all confirmed."""
    client = Client(node, client_id, **{"clean_start": False, **connect})
    node.confirm()
    client.connack()
    client.send(Subscribe(packet_id=1, topic_filters=[("t/#", qos)]))
    node.confirm()
    client.take_one(Suback)
    return client


def connected(node: Node, client_id: str, **connect: Any) -> Client:
    client = Client(node, client_id, **connect)
    node.confirm()
    client.connack()
    return client


def restarted(node: Node) -> Node:
    """The state that a kill right now would leave: the confirmed blocks and nothing else."""
    node.close()
    return Node(KeepingStore(node.store.after(node.store.done)), auto=node.auto, **node.limits)


def kept(node: Node, client_id: str = "subscriber") -> list[Any]:
    """Payloads in the queue of a session, as a kill right now would leave it."""
    copy = Node(KeepingStore(node.store.after(node.store.done)), **node.limits)
    session = copy.sessions.get(client_id.encode())
    copy.close()
    return [] if session is None else [entry[-1] for entry in session_view.entries(session)]


# ---- acknowledged means kept ----


def test_puback_waits_for_the_store() -> None:
    node = Node(auto=False)
    subscriber(node)
    publisher = connected(node, "publisher")
    publisher.send(Publish("t/1", b"one", qos=1, packet_id=7))
    assert publisher.take() == []
    assert kept(node) == []
    node.confirm()
    assert publisher.take_one(Puback).packet_id == 7
    assert kept(node) == [b"one"]


def test_a_busy_store_gets_fewer_and_larger_blocks() -> None:
    node = Node(auto=False)
    subscriber(node)
    publisher = connected(node, "publisher")
    node.turn.limit_commits(2)
    before = node.turn.sealed
    for number in range(1, 6):
        publisher.send(Publish("t/1", b"%d" % number, qos=1, packet_id=number))
    assert node.turn.sealed - before == 2
    assert publisher.take() == []
    node.confirm(1)
    assert [packet.packet_id for packet in publisher.take()] == [1]
    assert node.turn.sealed - before == 3  # the third block has the other three
    node.confirm(1)
    assert [packet.packet_id for packet in publisher.take()] == [2]
    node.confirm(1)
    assert [packet.packet_id for packet in publisher.take()] == [3, 4, 5]
    assert kept(node) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_deferred_block_is_sealed_for_what_has_to_follow_it() -> None:
    node = Node(auto=False)
    subscriber(node)
    publisher = connected(node, "publisher")
    node.turn.limit_commits(1)
    publisher.send(Publish("t/1", b"one", qos=1, packet_id=1))
    before = node.turn.sealed
    node.turn.seal_deferred()
    assert node.turn.sealed == before  # nothing is deferred
    publisher.send(Publish("t/1", b"two", qos=1, packet_id=2))
    assert node.turn.sealed == before
    node.turn.seal_deferred()
    assert node.turn.sealed == before + 1
    node.confirm()
    assert [packet.packet_id for packet in publisher.take()] == [1, 2]


def test_a_large_block_is_not_deferred() -> None:
    node = Node(auto=False)
    subscriber(node)
    publisher = connected(node, "publisher")
    node.turn.limit_commits(1)
    publisher.send(Publish("t/1", b"one", qos=1, packet_id=1))
    before = node.turn.sealed
    for number in range(2, 10):
        publisher.send(Publish("t/1", bytes(50_000), qos=1, packet_id=number))
    assert node.turn.sealed == before + 1


def test_puback_of_what_nobody_keeps_does_not_wait() -> None:
    node = Node(auto=False)
    connected(node, "clean")
    publisher = connected(node, "publisher")
    publisher.send(Publish("t/1", b"one", qos=1, packet_id=7))
    assert publisher.take_one(Puback).packet_id == 7


def test_pubrec_and_pubcomp_wait_for_the_store() -> None:
    node = Node(auto=False)
    subscriber(node)
    publisher = connected(node, "publisher", clean_start=False)
    publisher.send(Publish("t/1", b"one", qos=2, packet_id=7))
    publisher.send(Publish("t/1", b"one", qos=2, packet_id=7, dup=True))  # nor does the duplicate's leave earlier
    assert publisher.take() == []
    node.confirm()
    assert [type(packet) for packet in publisher.take()] == [Pubrec, Pubrec]
    publisher.send(Pubrel(packet_id=7), Pubrel(packet_id=7))
    assert publisher.take() == []
    assert kept(node) == []
    node.confirm()
    assert [type(packet) for packet in publisher.take()] == [Pubcomp, Pubcomp]
    assert kept(node) == [b"one"]


def test_pubrel_waits_until_pubrec_is_stored() -> None:
    node = Node(auto=False)
    client = subscriber(node)
    connected(node, "publisher").send(Publish("t/1", b"one", qos=2, packet_id=7), Pubrel(packet_id=7))
    assert client.take() == []
    node.confirm()
    client.send(Pubrec(packet_id=client.take_one(Publish).packet_id))
    assert client.take() == []
    again = Client(node, "subscriber", clean_start=False)  # nor does reconnecting make it leave earlier
    assert again.take() == []
    node.confirm(1)
    assert all(not isinstance(packet, Pubrel) for packet in client.take())
    node.confirm()
    assert [type(packet) for packet in again.take()] == [Connack, Pubrel]


def test_suback_unsuback_and_connack_wait_for_the_store() -> None:
    node = Node(auto=False)
    client = Client(node, "client", clean_start=False)
    assert client.take() == []
    node.confirm()
    client.connack()
    client.send(Subscribe(packet_id=1, topic_filters=[("t", 1)]))
    assert client.take() == []
    node.confirm()
    client.take_one(Suback)
    client.send(Unsubscribe(packet_id=2, topic_filters=["t"]))
    assert client.take() == []
    node.confirm()
    client.take_one(Unsuback)


def test_a_message_is_delivered_only_after_it_is_stored() -> None:
    """Else a subscriber may see and acknowledge what a kill takes back."""
    node = Node(auto=False)
    client = subscriber(node)
    connected(node, "publisher").send(Publish("t/1", b"one", qos=1, packet_id=7))
    assert client.take() == []
    node.confirm()
    assert client.take_one(Publish).payload == b"one"


@pytest.mark.parametrize("size", [1, 3])
def test_acknowledgements_keep_their_order(size: int) -> None:
    """One that needs no store waits for those before it [MQTT-4.6.0-2]."""
    node = Node(auto=False)
    subscriber(node)
    publisher = connected(node, "publisher")
    for number in range(1, 10):
        publisher.send(Publish("t/1" if number % 3 else "nobody", b"x", qos=1, packet_id=number))
    seen: list[int] = []
    while node.unconfirmed:
        node.confirm(size)
        seen += [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)]
    assert seen == list(range(1, 10))


def test_a_message_that_a_full_queue_refused_after_dropping_another_is_acknowledged() -> None:
    """No reply waits for its only record: the acknowledgement waited for a block already confirmed."""
    node = Node(queue_policy="drop-old", max_queued_bytes=1000, max_inflight=1)
    subscriber(node)
    publisher = connected(node, "publisher")
    for number, size in enumerate((600, 10, 900), start=1):
        publisher.send(Publish("t/1", bytes(size), qos=1, packet_id=number))
        assert publisher.take_one(Puback).packet_id == number
    publisher.send(Publish("t/1", bytes(900), qos=2, packet_id=9), Pubrel(packet_id=9))
    assert [type(packet) for packet in publisher.take()] == [Pubrec, Pubcomp]


# ---- a store that is stuck ----

LIMIT = 65536


@pytest.fixture
def small_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes may wait for the store."""
    monkeypatch.setattr("flockmq.broker.core.data_plane.MAX_UNCOMMITTED_BYTES", LIMIT)


def flood(client: Client, packets: Callable[[int], Packet | bytes]) -> int:
    """Send until the node reads no more; returns how many packets that took."""
    for number in range(1_000_000):
        client.write(packets(number))
        if number % 50 == 0:
            client.node.run()
        if client.unsent:
            client.node.run()
            client.push()
            if client.unsent:
                return number + 1
    raise AssertionError("the node reads for ever")


def waiting_bytes(node: Node) -> int:
    return sum(len(thing) for thing in node.store.told[node.store.done :] if isinstance(thing, bytes)) + len(
        node.turn.journal
    )


@pytest.mark.usefixtures("small_store")
@pytest.mark.parametrize(
    "packet",
    [
        lambda n: Publish("t/1", bytes(100), qos=1, packet_id=n % 65535 + 1),
        lambda n: Publish(f"kept/{n}", b"x", retain=True),
        lambda n: Publish("t/1", bytes(100), qos=2, packet_id=n % 2 + 1) if n % 4 < 2 else Pubrel(packet_id=n % 2 + 1),
        lambda n: Subscribe(packet_id=1, topic_filters=[(f"t/{n % 50}", 1)]),
        lambda n: (Subscribe if n % 2 else Unsubscribe)(packet_id=1, topic_filters=[("t", 1)] if n % 2 else ["t"]),
    ],
    ids=["publish", "retained", "exactly-once", "subscribe", "unsubscribe"],
)
def test_who_gives_a_stuck_store_more_is_read_no_more_and_goes_on_when_it_can(packet: Any) -> None:
    node = Node(auto=False)
    subscriber(node)
    client = connected(node, "client", clean_start=False)
    flood(client, packet)
    assert waiting_bytes(node) < LIMIT + 300_000  # and the bytes of one read of a connection
    quiet = connected_when_stuck(node)
    quiet.send(Publish("nobody", b"x"), Pingreq())
    quiet.take_one(Pingresp)
    answers = 0
    while node.unconfirmed:
        node.confirm(1)
        node.run()
        answers += len(client.take())
    client.send(Pingreq())
    assert isinstance(client.take()[-1], Pingresp)


def connected_when_stuck(node: Node) -> Client:
    """A clean session without a will needs no store."""
    client = Client(node, "quiet")
    client.connack()
    return client


@pytest.mark.usefixtures("small_store")
def test_acknowledgements_that_wait_do_not_pile_up() -> None:
    node = Node(auto=False)
    subscriber(node)
    client = connected(node, "client")
    client.send(Publish("t/1", b"stored", qos=1, packet_id=1))
    # The next messages are not stored, but their acknowledgements must leave after the first.
    sent = flood(client, lambda n: Publish("nobody", b"", qos=1, packet_id=n % 65535 + 1))
    assert sent < 40_000
    node.confirm()
    seen = 0
    while packets := client.take():
        seen += len(packets)
    assert seen == sent + 1


@pytest.mark.usefixtures("small_store")
def test_qos_0_goes_on_while_the_store_is_stuck() -> None:
    node = Node(auto=False)
    subscriber(node)
    flood(connected(node, "stuck"), lambda n: Publish("t/1", bytes(100), qos=1, packet_id=n % 65535 + 1))
    reader = Client(node, "reader")
    reader.connack()
    reader.send(Subscribe(packet_id=1, topic_filters=[("live", 0)]))
    writer = Client(node, "writer")
    writer.connack()
    for number in range(100):
        writer.send(Publish("live", b"%d" % number))
    live = [packet.payload for packet in reader.take() if isinstance(packet, Publish)]
    assert live == [b"%d" % number for number in range(100)]


@pytest.mark.usefixtures("small_store")
def test_held_back_connections_all_resume_when_one_of_them_fills_the_store_again() -> None:
    node = Node(auto=False)
    subscriber(node)
    clients = [connected(node, f"client {number}") for number in range(5)]
    for client in clients:
        client.write(*(Publish("t/1", bytes(1000), qos=1, packet_id=number) for number in range(1, 101)))
    node.run()
    acks = dict.fromkeys(range(5), 0)
    while node.unconfirmed:
        node.confirm(1)
        node.run()
        for index, client in enumerate(clients):
            acks[index] += len(client.take())
    assert acks == dict.fromkeys(range(5), 100)


# ---- keep alive ----


@pytest.mark.usefixtures("small_store")
def test_a_client_that_is_not_read_is_not_timed_out() -> None:
    node = Node(auto=False)
    subscriber(node)
    client = connected(node, "client", keep_alive=1)
    sent = flood(client, lambda n: Publish("t/1", bytes(1000), qos=1, packet_id=n % 65535 + 1))
    node.advance(100)
    assert not client.ended
    node.confirm()
    acks = 0
    while packets := client.take():
        acks += len(packets)
        node.confirm()
    assert acks == sent
    node.advance(100)
    assert client.read().ended


def test_a_client_that_reads_its_answers_late_is_read_again() -> None:
    node = Node(max_outgoing_bytes=1024)
    client = connected(node, "client")
    count = 500_000
    client.send(*[b"\xc0\x00" * count])
    while not node.counted("read_pauses"):
        client.push()
        node.run()
    assert node.counted("packets_received") < count
    answers = 0
    while packets := client.take():
        answers += len(packets)
    assert answers == count


def test_what_has_come_but_was_not_read_yet_counts_for_keep_alive() -> None:
    """After the process was stopped for a while, time passes before the sockets are read."""
    node = Node()
    client = connected(node, "client", keep_alive=1)
    client.write(Pingreq())
    node.reactor.advance(100)
    assert [type(packet) for packet in client.take()] == [Pingresp]
    node.reactor.advance(100)
    assert client.read().ended


@pytest.mark.parametrize("level", [3, 4])
def test_keep_alive_shorter_than_the_connect_timeout(level: int) -> None:
    node = Node()
    client = connected(node, "client", keep_alive=1, level=level)
    node.advance(5)
    assert not client.read().ended
    node.advance(4)
    assert client.read().ended


@pytest.mark.parametrize("keep_alive", [1, 2, 60, 100, 1000])  # the wheel spans 512 ticks: later ones take more rounds
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_keep_alive_ends_at_its_tick(keep_alive: int, step: int) -> None:
    """Seven ticks for a second: one and a half periods are six, and the tick of CONNECT does not count."""
    node = Node()
    client = connected(node, "client", keep_alive=keep_alive)
    left = keep_alive * 6
    while left:
        node.advance(min(step, left))
        left -= min(step, left)
    assert not client.read().ended
    node.advance(1)
    assert client.read().ended


# ---- wills and the store ----


def test_the_end_that_follows_disconnect_says_that_the_will_is_gone_for_good() -> None:
    node = Node(auto=False)
    subscriber(node)
    client = connected(node, "client", will_topic="t/will", will_payload=b"gone", will_qos=1)
    client.send(Disconnect(), Publish("t/1", b"after DISCONNECT", qos=1, packet_id=1))
    assert not client.read().ended  # a kill now would publish the will
    node.confirm()
    assert client.read().ended
    after = restarted(node)
    assert after.wills == {}
    assert kept(after) == []


def test_wills_of_a_crash_are_published_once() -> None:
    node = Node(auto=False)
    subscriber(node)
    connected(node, "client", will_topic="t/will", will_payload=b"gone", will_qos=1)
    node = Node(KeepingStore(node.store.after(node.store.done)), auto=False)
    assert list(node.wills) == [b"client"]
    twice = restarted(node)  # before the block with the will is stored: as if the first start had not been
    assert list(twice.wills) == [b"client"]
    twice.confirm()
    thrice = restarted(twice)
    assert thrice.wills == {}
    assert kept(thrice) == [b"gone"]


def test_will_and_what_it_queued_are_in_one_block() -> None:
    node = Node(auto=False)
    subscriber(node)
    client = connected(node, "client", will_topic="t/will", will_payload=b"gone", will_qos=1)
    client.close()
    for moment in range(node.store.done, len(node.store.told) + 1):
        copy = Node(KeepingStore(node.store.after(moment)))
        session = copy.sessions.get(b"subscriber")
        assert session is not None
        assert [entry[-1] for entry in session_view.entries(session)] == [b"gone"]
        copy.close()


def test_a_kill_at_any_block_keeps_what_was_acknowledged_by_then() -> None:
    node = Node(auto=False)
    client = subscriber(node)
    publisher = connected(node, "publisher", clean_start=False)
    acknowledged: list[bytes] = []
    for number in range(1, 30):
        publisher.send(Publish("t/1", b"%d" % number, qos=1, packet_id=number))
        if number % 3 == 0:
            node.confirm(1)
            acknowledged += [b"%d" % packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)]
            with contextlib.suppress(IndexError):
                client.read()
            assert set(acknowledged) <= set(kept(node))
    assert acknowledged


def test_a_state_that_is_dropped_while_clients_wait_is_freed() -> None:
    """A fenced node builds a new state; the garbage collector does not see references in C to waiting clients."""
    node = Node(auto=False)
    publisher = connected(node, "publisher", clean_start=False)
    subscriber(node)
    publisher.send(Publish("t/1", b"kept", qos=1, packet_id=1))
    assert not publisher.take()  # PUBACK waits, and so does the session of the subscriber
    plane = weakref.ref(node.broker.data_plane)
    inprocess.opened.pop().close()
    node.reactor.abandon()
    del node, publisher
    gc.collect()
    assert plane() is None


def test_a_session_that_fails_to_send_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A hook, or a message that can't be written: those behind it in the turn got nothing any more, for ever."""
    node = Node()
    receivers = [subscriber(node, name) for name in ("one", "two", "three")]
    failing = node.sessions.get(b"two")

    def deliver(session: object, *message: object) -> bool:
        if session is failing:
            raise ValueError("no such property")
        return True

    node.turn.set_hooks(False, deliver)
    publisher = Client(node, "publisher")
    for number in (1, 2):
        publisher.send(Publish("t/a", b"%d" % number, 1, packet_id=number))
    node.confirm()
    found = [[packet.payload for packet in client.take() if isinstance(packet, Publish)] for client in receivers]
    assert found == [[b"1", b"2"], [], [b"1", b"2"]]
    assert caplog.text.count("internal error") == 2
