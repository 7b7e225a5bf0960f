"""The journal's blocks: they are read as they were written, and changed bytes are refused, never believed."""

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flockmq._speedups.codec.errors import MalformedPacket
from flockmq._speedups.codec.packets import Disconnect, Puback, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from flockmq._speedups.session import session_view
from flockmq._speedups.session.journal import AS_CONFIGURED, RECORDS, DamagedBlock, Journal, block_of, records
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
        ("WILL", 42, b"client"),
        ("WILL_GONE", b"client"),
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


# A record of each kind, and more of the kinds that have optional parts, with the bytes that stores of layout 1 have.
# Other bytes need another LAYOUT.
STORED: list[tuple[tuple[Any, ...], str]] = [
    (("MESSAGE", 1, 2, 1, b"t", b"ab", b"", 0), "01 01 00 00 00 00 00 00 00 06 01 00 02 00 00 00 74 61 62"),
    (
        ("MESSAGE", 1, 0, 0, b"t", b"ab", b"\1\1", 0),
        "01 01 00 00 00 00 00 00 00 08 01 00 02 00 00 00 02 00 00 00 74 01 01 61 62",
    ),
    (
        ("MESSAGE", 1, 1, 0, b"t", b"ab", b"", 1000),
        "01 01 00 00 00 00 00 00 00 11 01 00 02 00 00 00 e8 03 00 00 00 00 00 00 74 61 62",
    ),
    (
        ("MESSAGE", 1, 1, 0, b"t", b"", b"\1\1", -1),
        "01 01 00 00 00 00 00 00 00 19 01 00 00 00 00 00 02 00 00 00 ff ff ff ff ff ff ff ff 74 01 01",
    ),
    (("QUEUED", 7, 3, 1, 14, b""), "02 07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 0e"),
    (
        ("QUEUED", 7, 3, 1, 1, b"\x0b\5"),
        "02 07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 81 02 00 00 00 0b 05",
    ),
    (("DONE", 7, 3), "03 07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00"),
    (("RECEIVED", 7, 3), "04 07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00"),
    (("AWAITING", 7, 65535, 1), "05 07 00 00 00 00 00 00 00 ff ff 00 00 00 00 00 00 01 00 00 00 00 00 00 00"),
    (("RELEASED", 7, 65535), "06 07 00 00 00 00 00 00 00 ff ff 00 00 00 00 00 00"),
    (
        ("SESSION", 7, 5, 1, 3, 4, b"c"),
        "07 07 00 00 00 00 00 00 00 05 01 03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 01 00 00 00 63",
    ),
    (("SESSION_USER", 7, b"u"), "08 07 00 00 00 00 00 00 00 01 00 00 00 75"),
    (
        ("SESSION_EXPIRY", 7, 4294967295, 0),
        "09 07 00 00 00 00 00 00 00 ff ff ff ff 00 00 00 00 00 00 00 00 00 00 00 00",
    ),
    (
        ("SESSION_EXPIRY", 7, AS_CONFIGURED, 1000),
        "09 07 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff e8 03 00 00 00 00 00 00",
    ),
    (("SESSION_GONE", 7), "0a 07 00 00 00 00 00 00 00"),
    (("SUBSCRIBED", 7, 45, 5, b"t/#"), "0b 07 00 00 00 00 00 00 00 2d 05 00 00 00 03 00 00 00 74 2f 23"),
    (("UNSUBSCRIBED", 7, b"t/#"), "0c 07 00 00 00 00 00 00 00 03 00 00 00 74 2f 23"),
    (("RETAINED", 1), "0d 01 00 00 00 00 00 00 00"),
    (("RETAINED_GONE", b"t"), "0e 01 00 00 00 74"),
    (("WILL", 1, b"c"), "0f 01 00 00 00 00 00 00 00 01 00 00 00 63"),
    (("WILL_AUTHOR", 1, b"cx"), "10 01 00 00 00 00 00 00 00 02 00 00 00 63 78"),
    (("WILL_DELAY", 30, b"c"), "11 1e 00 00 00 00 00 00 00 01 00 00 00 63"),
    (("WILL_DUE", 1000, b"c"), "12 e8 03 00 00 00 00 00 00 01 00 00 00 63"),
    (("WILL_GONE", b"c"), "13 01 00 00 00 63"),
    (("CLOCK", 1000, 2000), "14 e8 03 00 00 00 00 00 00 d0 07 00 00 00 00 00 00"),
    (("GROUP", 9, b"$share/s/t"), "15 09 00 00 00 00 00 00 00 0a 00 00 00 24 73 68 61 72 65 2f 73 2f 74"),
    (("GROUP_DECLARED", 9, b"{}"), "16 09 00 00 00 00 00 00 00 02 00 00 00 7b 7d"),
    (("GROUP_GONE", 9), "17 09 00 00 00 00 00 00 00"),
    (("GROUP_QUEUED", 9, 2, 1), "18 09 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00"),
    (("GROUP_DONE", 9, 2), "19 09 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00"),
    (("GROUP_FAILED", 9, 2, 641), "1a 09 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 81 02 00 00 00 00 00 00"),
    (("GROUP_KEY", 9, 2, 4294967295), "1b 09 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 ff ff ff ff 00 00 00 00"),
    (
        ("GIVEN", 9, 2, 7, 3),
        "1c 09 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00",
    ),
    (("DELAYED", 1, 1000, b"c"), "1d 01 00 00 00 00 00 00 00 e8 03 00 00 00 00 00 00 01 00 00 00 63"),
    (("DELAYED_GONE", 1), "1e 01 00 00 00 00 00 00 00"),
    (("COMMITTED", 7, b"u/n"), "1f 07 00 00 00 00 00 00 00 03 00 00 00 75 2f 6e"),
]


@pytest.mark.parametrize(("record", "stored"), STORED, ids=[f"{record[0]}-{n}" for n, (record, _) in enumerate(STORED)])
def test_the_bytes_of_a_record(record: tuple[Any, ...], stored: str) -> None:
    block = b"\1" + bytes.fromhex(stored)
    assert records(block) == [record]
    assert block_of([record]) == block


def test_the_bytes_of_every_kind_are_known() -> None:
    names = list(dict.fromkeys(record[0] for record, _ in STORED))
    assert [(name, kind) for name, kind, _, _ in RECORDS] == [(name, kind) for kind, name in enumerate(names, 1)]


@pytest.mark.parametrize("layout", [0, 2, 255])
def test_another_layout_is_refused(layout: int) -> None:
    blocks = [*BLOCKS, bytes([layout]) + BLOCKS[0][1:]]
    with pytest.raises(StoreError, match=f"journal layout {layout} is not supported, only layout 1") as raised:
        Node(KeepingStore(blocks))
    assert "use the version of FlockMQ that wrote it" in str(raised.value)


def test_another_kind_is_refused() -> None:
    with pytest.raises(DamagedBlock, match=f"kind {len(RECORDS) + 1} is not supported"):
        records(bytes([1, len(RECORDS) + 1]))


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
        session_view.entries(session)
        session_view.awaited(session)
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
