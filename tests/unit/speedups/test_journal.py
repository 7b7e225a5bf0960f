"""The journal's blocks: what is read is what was written, and bytes that were changed are refused, never believed."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockmq._speedups.codec.errors import MalformedPacket
from flockmq._speedups.codec.packets import Disconnect, Puback, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from flockmq._speedups.session.journal import DamagedBlock, Journal, records
from flockmq.broker.errors import StoreError
from tests.harness.inprocess import Client, KeepingStore, Node


def blocks_of_all_kinds() -> list[bytes]:
    """Blocks that a node wrote, with every kind of record in them."""
    node = Node()
    one = Client(node, "one", clean_start=False, will_topic="will", will_payload=b"gone", will_qos=1, will_retain=True)
    two = Client(node, "two", clean_start=False)
    three = Client(node, "three", clean_start=False)
    for client in (one, two):
        client.send(Subscribe(packet_id=1, topic_filters=[("t/#", 2), ("u", 1)]))
    one.send(Unsubscribe(packet_id=1, topic_filters=["u"]))
    three.send(Publish("t/first", b"x", qos=1, packet_id=1), Publish("kept", b"value", qos=1, packet_id=2, retain=True))
    three.send(Publish("t/second", b"y" * 300, qos=2, packet_id=3), Publish("t/third", b"", qos=2, packet_id=4))
    three.send(Pubrel(packet_id=3))
    three.send(Publish("kept", b"", qos=1, packet_id=5, retain=True), Publish("other", b"v", retain=True))
    two.send(Puback(packet_id=1), Pubrec(packet_id=2))
    three.send(Disconnect())
    Client(node, "three", clean_start=True)
    one.close()
    Client(node, "one", clean_start=False, will_topic="will", will_payload=b"again", will_qos=0)
    node.turn.seal()
    blocks = node.store.after(len(node.store.told))
    node.close()
    return blocks


BLOCKS = blocks_of_all_kinds()


def test_every_kind_of_record_is_tried() -> None:
    kinds = {record[0] for block in BLOCKS for record in records(block)}
    assert kinds == {
        "MESSAGE",
        "QUEUED",
        "DONE",
        "RECEIVED",
        "AWAITING",
        "RELEASED",
        "SESSION",
        "SESSION_GONE",
        "SUBSCRIBED",
        "UNSUBSCRIBED",
        "RETAINED",
        "RETAINED_GONE",
        "WILL",
        "WILL_GONE",
    }


def test_records_say_what_was_written() -> None:
    journal = Journal()
    journal.record_will(b"ignored", b"t", b"p", 1, True)
    assert len(journal) == 0  # nothing is recorded before the start
    journal.start()
    journal.continue_after(41)
    journal.record_will(b"client", b"topic", b"payload", 2, True)
    journal.record_will_gone(b"client")
    block = journal.take()
    assert records(block) == [
        ("MESSAGE", 42, 2, 1, b"topic", b"payload", b"", 0),
        ("WILL", 42, 0, b"client"),
        ("WILL_GONE", 0, 0, b"client"),
    ]
    assert len(journal) == 0


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_cut_block_is_damaged_or_a_prefix(block: bytes) -> None:
    whole = records(block)
    prefixes = 0
    for size in range(len(block)):
        try:
            found = records(block[:size])
        except DamagedBlock:
            continue
        assert found == whole[: len(found)]
        prefixes += 1
    assert prefixes == len(whole)  # it can be cut between records and nowhere else


@pytest.mark.parametrize("layout", [0, 3, 255])
def test_another_layout_is_refused(layout: int) -> None:
    with pytest.raises(DamagedBlock, match=f"layout {layout}"):
        records(bytes([layout]) + BLOCKS[0][1:])


def test_no_bytes_are_no_block() -> None:
    with pytest.raises(DamagedBlock):
        records(b"")


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    try:
        records(b"\1" + data)
    except DamagedBlock as damage:
        assert str(damage)


def restore(blocks: list[bytes]) -> None:
    """Restore from blocks and use what comes of it, or StoreError."""
    try:
        node = Node(KeepingStore(blocks))
    except StoreError as error:
        assert "\n" not in str(error)
        return
    for session in list(node.sessions):
        session.entries()
        session.awaited()
    client = Client(node, "probe", clean_start=False)
    client.connack()
    with contextlib.suppress(MalformedPacket):  # changed bytes of a message are a message
        client.send(Subscribe(packet_id=1, topic_filters=[("#", 2)]))
        client.send(Publish("t/first", b"probe", qos=2, packet_id=7), Pubrel(packet_id=7))
        client.take()
    node.close()


def test_two_sessions_of_one_client_are_refused() -> None:
    """The first would be freed while the tree of filters still has its subscriptions."""
    blocks = [block.replace(b"two", b"one") for block in BLOCKS]
    with pytest.raises(StoreError, match="two sessions"):
        Node(KeepingStore(blocks))


@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes_never_crash_a_restore(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        blocks = [bytearray(block) for block in BLOCKS]
        for _ in range(rng.choice((1, 1, 2, 8))):
            block = rng.choice(blocks)
            block[rng.randrange(1, len(block))] = rng.choice((0, 1, 255, rng.randrange(256)))
        restore([bytes(block) for block in blocks])


@pytest.mark.parametrize("seed", range(3))
def test_blocks_in_another_order_never_crash_a_restore(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        blocks = BLOCKS.copy()
        rng.choice((rng.shuffle, lambda blocks: blocks.pop(rng.randrange(len(blocks)))))(blocks)
        restore(blocks)
