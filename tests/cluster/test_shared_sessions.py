"""A persistent session of a cluster at the node that has its client: the messages that arrive from Redis, and when."""

from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.cluster.message_codec import encode_entry, encode_message
from flockmq._speedups.cluster.redis_deliveries import arrive, unfinished
from flockmq._speedups.session import session_store, session_view
from flockmq._speedups.session.session import Session
from flockmq._speedups.session.turn import Turn
from flockmq._speedups.session.turn_limits import TurnLimits


def new_session() -> Session:
    turn = Turn(ClusterJournal(lambda ahead: b""))
    turn.set_limits(
        TurnLimits(
            max_packet_size=1 << 20,
            max_topic_levels=10,
            max_inflight=100,
            max_queued_messages=100,
            max_queued_bytes=1 << 20,
            drop_oldest=False,
            max_awaiting_release=10,
            max_outgoing_bytes=1 << 20,
            max_uncommitted_bytes=1 << 20,
        )
    )
    return Session(turn, 1, b"c", persistent=True, shared=True)


def message(n: int) -> bytes:
    return encode_message(b"t", str(n).encode(), 1, False)


def numbers(session: Session) -> list[int]:
    return [entry[0] for entry in session_view.entries(session)]


def test_what_arrives_before_connack_is_kept() -> None:
    session = new_session()
    session_store.load(session)
    session_store.restore(session, 5, 5)
    arrive(session, 5, message(5))
    session_store.end_restore(session, False)
    session.owner = object()  # admitted; CONNACK waits until its subscriptions hold on all nodes
    arrive(session, 6, message(6))
    assert numbers(session) == [5, 6]
    assert session.next_number == 7


def test_what_arrives_before_the_queue_was_read_is_in_what_is_read() -> None:
    session = new_session()
    session_store.load(session)
    arrive(session, 1 << 40, message(1))  # a long life lies behind it: no room is to be made for that
    session_store.restore(session, (1 << 40) - 1, (1 << 40) - 1)
    arrive(session, (1 << 40) - 1, message(0))
    arrive(session, 1 << 40, message(1))
    session_store.end_restore(session, False)
    assert numbers(session) == [(1 << 40) - 1, 1 << 40]


def test_nothing_arrives_without_a_client() -> None:
    session = new_session()
    arrive(session, 1, message(1))
    assert numbers(session) == []
    session_store.load(session)
    session_store.restore(session, 1, 1)
    arrive(session, 1, message(1))
    session_store.end_restore(session, False)
    session.owner = object()
    session.owner = None
    assert session_store.unload(session) == 1
    arrive(session, 2, message(2))
    assert numbers(session) == []


def test_unfinished_is_what_was_sent_with_qos_2() -> None:
    """As Redis had it, with properties, deadline, RETAIN and identifiers; without its place in a group."""
    entries = [
        encode_message(b"t", b"properties", 2, False, b"\x01\x01", 10_000),
        encode_message(b"t", b"received", 2, False),
        encode_message(b"t", b"QoS 1", 1, False),
        encode_entry(encode_message(b"t", b"retained", 2, True), True, b"\x0b\x05"),
        encode_entry(encode_message(b"t", b"group", 2, False), group=b"$share/g/t", place=9),
        encode_message(b"t", b"not sent", 2, False),
    ]
    session = new_session()
    session_store.load(session)
    session_store.restore(session, 7, 12)
    for number, entry in enumerate(entries, 7):
        arrive(session, number, entry)
    session_store.restore_received(session, 8)
    session_store.end_restore(session, False)
    wanted = [(7, entries[0]), (8, b""), (10, entries[3]), (11, encode_message(b"t", b"group", 2, False))]
    assert unfinished(session) == wanted
    session_store.unload(session)
    assert unfinished(session) == []
