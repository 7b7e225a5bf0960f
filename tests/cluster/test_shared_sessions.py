"""A persistent session of a cluster at the node that has its client: what arrives from Redis, and when."""

from _speedups.cluster.journal import ClusterJournal, arrive
from _speedups.cluster.message_codec import encode_message
from _speedups.session.session import Session
from _speedups.session.turn import Turn


def new_session() -> Session:
    turn = Turn(ClusterJournal(lambda: b""))
    turn.set_limits(
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
    return Session(turn, 1, b"c", persistent=True, shared=True)


def message(n: int) -> bytes:
    return encode_message(b"t", str(n).encode(), 1, False)


def numbers(session: Session) -> list[int]:
    return [entry[0] for entry in session.entries()]


def test_what_arrives_before_connack_is_kept() -> None:
    session = new_session()
    session.load()
    session.restore(5, 5)
    arrive(session, 5, message(5))
    session.restored(False)
    session.owner = object()  # admitted; CONNACK waits until its subscriptions hold on all nodes
    arrive(session, 6, message(6))
    assert numbers(session) == [5, 6]
    assert session.next_number == 7


def test_what_arrives_before_the_queue_was_read_is_in_what_is_read() -> None:
    session = new_session()
    session.load()
    arrive(session, 1 << 40, message(1))  # a long life lies behind it: no room is to be made for that
    session.restore((1 << 40) - 1, (1 << 40) - 1)
    arrive(session, (1 << 40) - 1, message(0))
    arrive(session, 1 << 40, message(1))
    session.restored(False)
    assert numbers(session) == [(1 << 40) - 1, 1 << 40]


def test_nothing_arrives_without_a_client() -> None:
    session = new_session()
    arrive(session, 1, message(1))
    assert numbers(session) == []
    session.load()
    session.restore(1, 1)
    arrive(session, 1, message(1))
    session.restored(False)
    session.owner = object()
    session.owner = None
    assert session.unload() == 1
    arrive(session, 2, message(2))
    assert numbers(session) == []
