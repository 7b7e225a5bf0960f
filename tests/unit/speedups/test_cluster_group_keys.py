"""Order by key in the part of a group at one node of a cluster: the messages that it gets from Redis, and when."""

import struct

from flockmq._speedups.cluster.group_assignments import GroupAssignments
from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.cluster.message_codec import encode_message
from flockmq._speedups.cluster.redis_deliveries import arrive, assigned
from flockmq._speedups.routing.router import Router
from flockmq._speedups.session import session_store
from flockmq._speedups.session.group import Group
from flockmq._speedups.session.group_settings import GroupSettings
from flockmq._speedups.session.session import Session
from flockmq._speedups.session.turn import Turn
from flockmq._speedups.session.turn_limits import TurnLimits
from tests.unit.speedups.test_cluster_group import LIMITS

NAME = b"$share/g/t"
KEY = 77


class Part:
    """A group with an order, and one subscriber: a persistent session without connection."""

    def __init__(self) -> None:
        turn = Turn(ClusterJournal(lambda ahead: b""))
        turn.set_limits(TurnLimits(**LIMITS))
        self.filters = Router(turn).filters
        self.filters.set_group_backing(GroupAssignments)
        self.filters.declare(turn, NAME, GroupSettings(declaration=b"{}", strategy="topic"))
        self.session = Session(turn, 1, b"c", persistent=True, shared=True)
        self.filters.subscribe(self.session, NAME, 1)
        self.numbers = 0

    @property
    def group(self) -> Group:
        return self.filters.groups[NAME]

    @property
    def assignments(self) -> GroupAssignments:
        backing = self.group.backing
        assert isinstance(backing, GroupAssignments)
        return backing

    def message(self) -> bytes:
        return struct.pack("<BId", 0x50, KEY, self.numbers) + encode_message(b"t", b"x", 1, False)

    def assign(self, place: int) -> None:
        self.numbers += 1
        assigned(self.group, place, self.message())

    def load(self, *places: int) -> None:
        """The session's queue is read; it has messages with these places."""
        session_store.load(self.session)
        session_store.restore(self.session, 1, 1)
        for number, place in enumerate(places, 1):
            arrive(self.session, number, struct.pack("<BQH", 0x31, place, len(NAME)) + NAME + self.message())

    def close(self) -> set[int]:
        """Redis takes back what the node has of the key; returns the places that it still has."""
        self.assignments.key_closed(KEY, self.numbers)
        return self.assignments.places


def test_what_redis_takes_back_is_gone_and_may_come_again() -> None:
    part = Part()
    part.assign(1)
    part.assign(2)
    assert (part.assignments.places, part.group.waiting) == ({1, 2}, 2)
    assert part.close() == set()
    assert part.group.waiting == 0
    part.assign(1)  # another key object has this place now
    part.assign(2)
    assert (part.assignments.places, part.group.waiting) == ({1, 2}, 2)


def test_an_answer_to_an_earlier_question_changes_nothing() -> None:
    part = Part()
    part.assign(1)
    part.assign(2)
    part.assignments.key_closed(KEY, 1)
    part.assignments.key_free(KEY, 1)
    part.assignments.key_free(KEY + 1, 1)
    assert part.assignments.places == {1, 2}


def test_an_entry_that_went_back_before_it_was_read_is_not_done() -> None:
    """The session's queue still has it, marked as done; Redis has assigned the message to this node."""
    part = Part()
    part.assign(1)
    part.load(1)
    session_store.restore_done(part.session, 1)
    assert part.group.waiting == 1
    assert part.close() == set(), "it was still known with its key"


def test_a_client_that_is_gone_before_it_was_attached_has_its_whole_window() -> None:
    part = Part()
    part.load(1, 2, 3)
    (subscriber,) = part.group.subscribers
    assert subscriber.given_now == 3
    session_store.unload(part.session)
    part.load(1)
    assert subscriber.given_now == 1


def test_a_lease_that_arrives_twice_is_one_message() -> None:
    part = Part()
    part.assign(1)
    part.assign(1)
    assert part.group.waiting == 1
