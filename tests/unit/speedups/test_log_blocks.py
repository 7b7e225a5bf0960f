"""The compiled writer of the log of messages, held against the layout in plain Python."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.cluster.commit_block import Block
from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.codec.properties import encode_block
from flockmq._speedups.log.message_log import MessageLog
from flockmq._speedups.routing.router import Router
from flockmq._speedups.session.turn import Turn
from flockmq._speedups.session.turn_limits import TurnLimits
from tests.model.log_block import HEADER, Row, decode

LIMITS = {
    "max_packet_size": 1 << 20,
    "max_topic_levels": 200,
    "max_inflight": 100,
    "max_queued_messages": 100,
    "max_queued_bytes": 1 << 20,
    "drop_oldest": False,
    "max_awaiting_release": 100,
    "max_outgoing_bytes": 1 << 20,
    "max_uncommitted_bytes": 1 << 26,
}
TOPICS = st.text(st.characters(codec="utf-8", exclude_characters="+#\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda topic: not topic.startswith("$")
)
EXPIRY, TYPE = encode_block({"message_expiry_interval": 4_000_000_000}), encode_block({"content_type": "x" * 300})
MESSAGES = st.tuples(
    st.sampled_from(["one", "two", "ü" * 50]) | st.text(min_size=1, max_size=3),
    st.sampled_from(["a/b", "c"]) | TOPICS,
    st.binary(max_size=20) | st.binary(min_size=500, max_size=600),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([None, None, EXPIRY, EXPIRY + TYPE, TYPE]),
)


class Log:
    """A log, and the entries that it has made."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes]] = []
        self.waits = 0
        self.ledger = ClusterJournal(lambda ahead: b"")
        self.turn = Turn(self.ledger, self._commit, self._fail)
        self.turn.set_limits(TurnLimits(**LIMITS))
        self.router = Router(self.turn)
        self.log = MessageLog(self.turn, lambda *entry: self.entries.append(entry), self._wait)
        self.ledger.attach(self.log)
        self.router.filters.subscribe(self.log, b"#", 0)

    def _commit(self, block: Block) -> None:
        if block.entry is not None:
            self.entries.append(block.entry)
        self.turn.confirm()

    def _fail(self, error: Exception) -> None:
        raise error

    def _wait(self) -> None:
        self.waits += 1

    def publish(
        self, client_id: str, topic: str, payload: bytes, qos: int, retain: bool, properties: bytes | None = None
    ) -> None:
        publisher = client_id.encode("utf-8", "surrogatepass")
        self.router.publish(topic.encode(), payload, qos, retain, publisher, properties or b"")

    def rows(self) -> list[Row]:
        return [row for _, block in self.entries for row in decode(block)]


def fits(row: Row, message: tuple[Any, ...]) -> bool:
    return (row.client_id, row.topic, row.payload, row.qos, row.retain, row.properties, row.dup) == (*message, False)


@given(st.lists(st.lists(MESSAGES, max_size=30), max_size=5))
def test_blocks_hold_what_was_published(turns: list[list[tuple[Any, ...]]]) -> None:
    """Messages that are not committed with their turn are in the next block, or written at the log's end; in order."""
    log = Log()
    published: list[tuple[Any, ...]] = []
    for messages in turns:
        for message in messages:
            log.publish(*message)
        published += messages
        log.turn.end()
        if any(qos for *_, qos, _, _ in messages):
            assert len(log.rows()) == len(published)
    log.log.close()
    found = log.rows()
    assert len(found) == len(published)
    assert all(map(fits, found, published))
    position = count = 0
    for entry_id, block in log.entries:
        _, _, _, rows, rows_before, bytes_before, lacking, *_ = HEADER.unpack_from(block)
        assert (rows_before, bytes_before, lacking) == (count, position, 0)
        position += len(block)
        count += rows
        assert int(entry_id.split(b"-")[1]) == position
    assert (log.log.rows_before, log.log.bytes_before) == (count, position)


def test_a_full_block_does_not_wait() -> None:
    log = Log()
    for _ in range(3000):
        log.publish("c", "t", b"x", 0, False)
    log.turn.end()
    assert len(log.entries) == 1 and log.waits == 0
    for _ in range(3):
        log.publish("c", "t", bytes(600_000), 0, False)
    assert len(log.entries) == 2  # within the turn: memory is bounded
    log.turn.end()
    assert len(log.entries) == 3 and log.waits == 0


def test_properties_count_for_the_size_of_a_block() -> None:
    log = Log()
    properties = encode_block({"user_property": [("k", "v" * 60_000)] * 10})
    for _ in range(3):
        log.publish("c", "t", b"", 0, False, properties)
    assert len(log.entries) == 1  # within the turn: memory is bounded
    log.log.close()
    assert [row.properties for row in log.rows()] == [properties] * 3


def test_one_wait_for_a_block() -> None:
    log = Log()
    for _ in range(3):
        log.publish("c", "t", b"x", 0, False)
        log.turn.end()
    assert (log.waits, log.entries) == (1, [])
    log.log.close()
    log.log.close()
    log.publish("c", "t", b"x", 0, False)
    log.turn.end()
    assert (log.waits, len(log.entries)) == (2, 1)


def test_suspended() -> None:
    """QoS 0 is counted in place of being logged; messages to be acknowledged are logged all the same."""
    log = Log()
    log.log.suspended = True
    for qos in (0, 1, 0, 2):
        log.publish("c", "t", b"%d" % qos, qos, False)
    log.turn.end()
    assert [row.payload for row in log.rows()] == [b"1", b"2"]
    log.log.suspended = False
    log.publish("c", "t", b"", 0, False)
    log.log.close()
    assert [HEADER.unpack_from(block)[6] for _, block in log.entries] == [2, 2]
    assert log.turn.counted()["not_logged"] == 2
    assert log.turn.counted()["logged"] == 3


def test_the_brokers_own_messages_are_not_logged() -> None:
    log = Log()
    assert log.router.publish(b"t", b"x", 1, True) == 0
    log.turn.end()
    log.log.close()
    assert log.entries == []
    assert log.turn.counted()["publish_unrouted"] == 1


def test_a_block_with_something_to_acknowledge_is_bounded_too() -> None:
    """QoS 0 that follows in the same turn does not make it as large as the turn."""
    log = Log()
    log.publish("c", "t", b"x", 1, False)
    for _ in range(50):
        log.publish("c", "t", bytes(1_000_000), 0, False)
    log.turn.end()
    log.log.close()
    assert len(log.rows()) == 51
    assert max(len(block) for _, block in log.entries) < 20_000_000
